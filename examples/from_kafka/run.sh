#!/usr/bin/env bash
# Five records of Kafka's console producer, each with a delay, through punctual into another topic.
#
#   examples/from_kafka/run.sh BROKER:PORT [FROM [TO]]
#
# Missing topics (orders.delayed, orders.due) are created. The console producer comes from KAFKA_HOME, or from the jars
# that tests/run.sh fetched. Exit 0 if all messages arrived, otherwise 1.
. "$(dirname "${BASH_SOURCE[0]}")/../stage.sh"

[ $# -ge 1 ] || { echo "usage: run.sh BROKER:PORT [FROM [TO]]" >&2; exit 2; }
export KAFKA=$1 FROM=${2:-orders.delayed} TOPIC=${3:-orders.due}
messages=5
libs=${KAFKA_HOME:-$root/target/kafka}/libs
[ -d "$libs" ] || fail "no jars in $libs: run tests/run.sh once, or set KAFKA_HOME"

build java=default-jre-headless
# The reader of examples/kafka also creates its topic.
start_reader "$work/from.out" kafka "$KAFKA" "$FROM"
start_reader "$work/to.out" kafka "$KAFKA" "$TOPIC"
start_punctual "$root/examples/from_kafka/pipeline.yaml"
for n in $(seq "$messages"); do printf 'punctual-delay:%ds\tcustomer-%d\t{"order": %d}\n' "$n" "$n" "$n"; done |
    java -cp "$libs/*" org.apache.kafka.tools.ConsoleProducer --bootstrap-server "$KAFKA" --topic "$FROM" \
        --property parse.headers=true --property parse.key=true 2>"$work/producer.log" || fail "the producer failed"
show "$work/to.out"
await_lines 30 "$messages" kafka "$work/to.out" "in $TOPIC"
