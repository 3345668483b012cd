// Asynq as its documents recommend; prints one JSON object.
//
//	asynq PORT schedule COUNT SIZE   enqueues tasks that are not due, 64 at once: there is no call for several
//	asynq PORT process COUNT         processes tasks that became due, with an empty handler; looks for them each 50 ms
//	asynq PORT burst COUNT           how late tasks come that are due within one second, with the default interval of 5 s
//	asynq PORT idle                  a server without tasks, until it is stopped
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"os"
	"regexp"
	"sort"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"
)

const atOnce = 64

var (
	address string
	count   int
	size    = 100
)

func main() {
	address = "127.0.0.1:" + os.Args[1]
	if len(os.Args) > 3 {
		count = number(os.Args[3])
	}
	if len(os.Args) > 4 {
		size = number(os.Args[4])
	}
	var result map[string]any
	switch os.Args[2] {
	case "schedule":
		due := time.Now().Add(time.Hour)
		result = measure(func() { enqueue(func(int) time.Time { return due }) })
	case "process":
		result = process()
	case "burst":
		result = burst()
	default:
		if err := server(0).Run(asynq.HandlerFunc(nothing)); err != nil {
			log.Fatal(err)
		}
		return
	}
	if err := json.NewEncoder(os.Stdout).Encode(result); err != nil {
		log.Fatal(err)
	}
}

func number(text string) int {
	n, err := strconv.Atoi(text)
	if err != nil {
		log.Fatal(err)
	}
	return n
}

func nothing(context.Context, *asynq.Task) error { return nil }

// An interval of 0 is the default.
func server(interval time.Duration) *asynq.Server {
	return asynq.NewServer(asynq.RedisClientOpt{Addr: address},
		asynq.Config{Concurrency: atOnce, DelayedTaskCheckInterval: interval, LogLevel: asynq.WarnLevel})
}

func enqueue(due func(n int) time.Time) {
	client := asynq.NewClient(asynq.RedisClientOpt{Addr: address, PoolSize: atOnce})
	defer client.Close()
	var next atomic.Int64
	var tasks sync.WaitGroup
	for range atOnce {
		tasks.Go(func() {
			for {
				n := int(next.Add(1)) - 1
				if n >= count {
					return
				}
				at := due(n)
				task := asynq.NewTask("job", payload(n, at))
				if _, err := client.Enqueue(task, asynq.ProcessIn(time.Until(at)), asynq.TaskID(fmt.Sprintf("m%015d", n))); err != nil {
					log.Fatal(err)
				}
			}
		})
	}
	tasks.Wait()
}

func payload(n int, due time.Time) []byte {
	if size < 40 {
		return []byte(fmt.Sprintf(`{"n":%0*d}`, size-6, n))
	}
	head := fmt.Sprintf(`{"due":%013d,"t":"`, due.UnixMilli())
	return []byte(head + strings.Repeat("x", size-len(head)-2) + `"}`)
}

func process() map[string]any {
	due := time.Now().Add(3*time.Second + time.Duration(count)*50*time.Microsecond)
	enqueue(func(int) time.Time { return due })
	// Its times are whole seconds.
	time.Sleep(time.Until(due) + time.Second)
	return measure(func() {
		work(50*time.Millisecond, nothing)
	})
}

// Returns when all tasks were processed.
func work(interval time.Duration, handler asynq.HandlerFunc) {
	var done atomic.Int64
	all := make(chan struct{})
	started := server(interval)
	err := started.Start(asynq.HandlerFunc(func(ctx context.Context, task *asynq.Task) error {
		err := handler(ctx, task)
		if done.Add(1) == int64(count) {
			close(all)
		}
		return err
	}))
	if err != nil {
		log.Fatal(err)
	}
	<-all
}

func burst() map[string]any {
	base := time.Now().Add(3*time.Second + time.Duration(count)*50*time.Microsecond)
	late := make([]float64, 0, count)
	var lock sync.Mutex
	go func() {
		enqueue(func(n int) time.Time { return base.Add(time.Duration(n) * time.Second / time.Duration(count)) })
		if time.Now().After(base) {
			log.Fatal("tasks were due before all were enqueued")
		}
	}()
	work(0, func(_ context.Context, task *asynq.Task) error {
		now := time.Now()
		var body struct {
			Due int64 `json:"due"`
		}
		if err := json.Unmarshal(task.Payload(), &body); err != nil {
			return err
		}
		lock.Lock()
		defer lock.Unlock()
		late = append(late, float64(now.UnixMicro())/1000-float64(body.Due))
		return nil
	})
	sort.Float64s(late)
	return map[string]any{"measured": count, "p50_ms": late[count/2], "p99_ms": late[count*99/100], "max_ms": late[count-1]}
}

func measure(run func()) map[string]any {
	client := redis.NewClient(&redis.Options{Addr: address})
	defer client.Close()
	cpu, started := redisSeconds(client), time.Now()
	run()
	seconds := time.Since(started).Seconds()
	used := (redisSeconds(client) - cpu) * 1e6 / float64(count)
	return map[string]any{"count": count, "seconds": seconds, "rate": float64(count) / seconds, "redis_us": used}
}

func redisSeconds(client *redis.Client) float64 {
	info, err := client.Info(context.Background(), "cpu").Result()
	if err != nil {
		log.Fatal(err)
	}
	total := 0.0
	for _, found := range regexp.MustCompile(`(?m)^used_cpu_(?:user|sys):([0-9.]+)`).FindAllStringSubmatch(info, -1) {
		seconds, err := strconv.ParseFloat(found[1], 64)
		if err != nil {
			log.Fatal(err)
		}
		total += seconds
	}
	return total
}
