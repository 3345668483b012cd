module delayqueue

go 1.19
