#!/usr/bin/env bash
# Sends five messages through punctual to an exchange of RabbitMQ, and shows each as a consumer gets it.
#
#   examples/rabbitmq/run.sh [URL [EXCHANGE]]
#
# Without a URL such as amqp://localhost:5672/%2f, a broker is started, and stopped at the end. The exchange (billing)
# is declared if it is missing. Exit 0 if all messages arrived, otherwise 1.
. "$(dirname "${BASH_SOURCE[0]}")/../stage.sh"

messages=5
build_with_rabbitmq "${1:-}"
export RABBITMQ=$amqp EXCHANGE=${2:-billing}
start_reader "$work/consumer.out" rabbitmq "$RABBITMQ" "$EXCHANGE"
start_punctual "$root/examples/rabbitmq/pipeline.yaml"
for n in $(seq "$messages"); do
    curl -sS --fail-with-body --max-time 10 "$api/v1/routes/invoices/messages" -H 'Content-Type: application/json' -d "{
        \"delay\": \"${n}s\", \"key\": \"invoice.due\", \"payload\": {\"invoice\": $n},
        \"properties\": {\"correlation_id\": \"customer-$n\", \"type\": \"invoice\"}}" || fail "scheduling failed"
    echo
done
show "$work/consumer.out"
await_lines 20 "$messages" rabbitmq "$work/consumer.out" "in $EXCHANGE"
