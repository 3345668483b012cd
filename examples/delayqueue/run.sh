#!/usr/bin/env bash
# Publishes messages like a producer with hdt3213/delayqueue. They are delivered when due, except the intercepted one.
#
#   examples/delayqueue/run.sh
#
# Starts a Redis with keyspace notifications, and removes it at the end. Exit 0 if all messages arrived, otherwise 1.
. "$(dirname "${BASH_SOURCE[0]}")/../stage.sh"

build
# K: notifications by key; z: of sorted sets, l: of lists. Without them, punctual polls every second.
start_redis --notify-keyspace-events Kzl
export REDIS=redis://127.0.0.1:$redis/0
start_punctual "$root/examples/delayqueue/pipeline.yaml"

cli() { redis-cli -p "$redis" "$@"; }
# The commands of SendDelayMsg, with three retries, and of TryIntercept for the last message.
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
