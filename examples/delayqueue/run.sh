#!/usr/bin/env bash
# Messages as a producer with hdt3213/delayqueue publishes them, delivered when they are due; the intercepted one is not.
#
#   examples/delayqueue/run.sh
#
# Starts a Redis of its own with keyspace notifications, and takes it away again. Exit 0 when all arrived, else 1.
. "$(dirname "${BASH_SOURCE[0]}")/../stage.sh"

build
# K: tell of changes by key; z: of sorted sets, l: of lists. Without them punctual looks every second.
start_redis --notify-keyspace-events Kzl
export REDIS=redis://127.0.0.1:$redis/0
start_punctual "$root/examples/delayqueue/pipeline.yaml"

cli() { redis-cli -p "$redis" "$@"; }
# What its SendDelayMsg sends, three retries; then its TryIntercept of the last.
now=$(date +%s)
for n in 1 2 3 4; do
    cli SET "dp:order-close:msg:id-$n" "{\"order\": $n}" PX 3605000 >/dev/null
    cli HSET dp:order-close:retry:cnt "id-$n" 3 >/dev/null
    cli ZADD dp:order-close:pending "$((now + n + 1))" "id-$n" >/dev/null
done
echo "pending: $(cli ZCARD dp:order-close:pending); intercepted: $(cli ZREM dp:order-close:pending id-4)"
cli DEL dp:order-close:msg:id-4 >/dev/null
cli HDEL dp:order-close:retry:cnt id-4 >/dev/null
await_list 20 3 -p "$redis"
