#!/usr/bin/env bash
# Adds payloads and tasks to sorted sets with redis-cli. They are delivered when due, except the payload that is
# removed.
#
#   examples/sorted_set/run.sh
#
# Starts a Redis with keyspace notifications, and removes it at the end. Exit 0 if all messages arrived, otherwise 1.
. "$(dirname "${BASH_SOURCE[0]}")/../stage.sh"

build
# K: notifications by key; z: of sorted sets. Without them, punctual polls every second.
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
