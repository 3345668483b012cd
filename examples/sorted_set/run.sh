#!/usr/bin/env bash
# Payloads and tasks that redis-cli adds to sorted sets, delivered when they are due; the one that it removes is not.
#
#   examples/sorted_set/run.sh
#
# Starts a Redis of its own with keyspace notifications, and takes it away again. Exit 0 when all arrived, else 1.
. "$(dirname "${BASH_SOURCE[0]}")/../stage.sh"

build
# K: tell of changes by key; z: of sorted sets. Without them punctual looks every second.
start_redis --notify-keyspace-events Kz
export REDIS=redis://127.0.0.1:$redis/0
start_punctual "$root/examples/sorted_set/pipeline.yaml"

cli() { redis-cli -p "$redis" "$@"; }
now=$(date +%s)
for n in 1 2 3; do
    cli ZADD delay_queue:demo "$((now + n)).5" "{\"reminder\": $n}" >/dev/null
    cli HSET "task:$n" type mail to "customer-$n@example.org" >/dev/null
    cli ZADD delayed_queue "$((now + n + 1))" "task:$n" >/dev/null
done
cli ZADD delay_queue:demo "$((now + 2))" cancelled >/dev/null
echo "waiting: $(cli ZCARD delay_queue:demo) payloads, $(cli ZCARD delayed_queue) tasks; cancelled: $(cli ZREM delay_queue:demo cancelled)"
await_list 20 6 -p "$redis"
