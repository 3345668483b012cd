#!/usr/bin/env bash
# Sends five messages through punctual to a Kafka topic, and shows each as a consumer reads it.
#
#   examples/kafka/run.sh BROKER:PORT [TOPIC]
#
# The topic (orders.due) is created if it is missing. Exit 0 if all messages arrived, otherwise 1.
. "$(dirname "${BASH_SOURCE[0]}")/../stage.sh"

[ $# -ge 1 ] || { echo "usage: run.sh BROKER:PORT [TOPIC]" >&2; exit 2; }
export KAFKA=$1 TOPIC=${2:-orders.due}
messages=5

build
start_reader "$work/consumer.out" kafka "$KAFKA" "$TOPIC"
start_punctual "$root/examples/kafka/pipeline.yaml"
for n in $(seq "$messages"); do
    curl -sS --fail-with-body --max-time 10 "$api/v1/routes/order-timeout/messages" -H 'Content-Type: application/json' \
        -d "{\"delay\": \"${n}s\", \"key\": \"customer-$n\", \"payload\": {\"order\": $n}}" || fail "scheduling failed"
    echo
done
show "$work/consumer.out"
await_lines 20 "$messages" kafka "$work/consumer.out" "in $TOPIC"
