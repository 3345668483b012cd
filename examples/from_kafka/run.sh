#!/usr/bin/env bash
# Five records of Kafka's console producer, each with a delay, through punctual into another topic.
#
#   examples/from_kafka/run.sh BROKER:PORT [FROM [TO]]
#
# The topics (orders.delayed, orders.due) are created where they are missing. The console producer is that of
# KAFKA_HOME, or of the jars that tests/run.sh fetched. Exit 0 when all arrived, else 1.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
[ $# -ge 1 ] || { echo "usage: run.sh BROKER:PORT [FROM [TO]]" >&2; exit 2; }
export KAFKA=$1 FROM=${2:-orders.delayed} TOPIC=${3:-orders.due}
messages=5
patience=30 # seconds for the last of them, far beyond its five

work=$(mktemp -d "${TMPDIR:-/tmp}/punctual.XXXXXX")
punctual='' consumers='' tail=''
clean_up() {
    local pid
    for pid in $punctual $consumers $tail; do
        kill -TERM "$pid" 2>/dev/null || true
        wait "$pid" 2>/dev/null || true
    done
    rm -rf "$work"
}
trap clean_up EXIT
trap 'exit 130' INT TERM HUP
fail() {
    echo "run.sh: $*" >&2
    tail -n 30 "$work"/*.log >&2 2>/dev/null || true
    exit 1
}

command -v cargo >/dev/null || PATH="$PATH:${CARGO_HOME:-$HOME/.cargo}/bin"
"$root/.ci/need" build redis-server=redis-server curl=curl java=default-jre-headless
libs=${KAFKA_HOME:-$root/target/kafka}/libs
[ -d "$libs" ] || fail "no jars in $libs: run tests/run.sh once, or set KAFKA_HOME"
echo "building (a few minutes the first time)"
(cd "$root" && cargo build --release --locked --bin punctual --example kafka)
built=$(cd "$root" && cd "${CARGO_TARGET_DIR:-target}" && pwd)/release

# The reader of the example beside this one also creates its topic.
for topic in "$FROM" "$TOPIC"; do
    "$built/examples/kafka" "$KAFKA" "$topic" >"$work/$topic.out" 2>"$work/$topic.log" &
    consumers="$consumers $!"
    for _ in $(seq 200); do
        ! grep -q '^reading' "$work/$topic.out" || break
        sleep 0.1
    done
    grep -q '^reading' "$work/$topic.out" || fail "there is no topic $topic to read at $KAFKA"
done

# A port that nobody listens on, below those that the kernel gives to clients.
port=$((20000 + $$ % 10000))
while (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; do port=$((port + 1)); done
export PUNCTUAL__SERVER__LISTEN=127.0.0.1:$port PUNCTUAL__REDIS__DATA_DIR=$work/data
"$built/punctual" check --connect -c "$root/examples/from_kafka/pipeline.yaml" || fail "the configuration cannot be used"
"$built/punctual" serve -c "$root/examples/from_kafka/pipeline.yaml" 2>"$work/punctual.log" &
punctual=$!
until curl -fs --max-time 2 "http://127.0.0.1:$port/readyz" >/dev/null 2>&1; do
    kill -0 "$punctual" 2>/dev/null || fail "punctual ended before it was ready"
    [ $((waited = ${waited:-0} + 1)) -le 200 ] || fail "punctual was not ready within 20 s"
    sleep 0.1
done

tail -n +2 -f "$work/$TOPIC.out" &
tail=$!
for n in $(seq "$messages"); do printf 'punctual-delay:%ds\tcustomer-%d\t{"order": %d}\n' "$n" "$n" "$n"; done |
    java -cp "$libs/*" org.apache.kafka.tools.ConsoleProducer --bootstrap-server "$KAFKA" --topic "$FROM" \
        --property parse.headers=true --property parse.key=true 2>"$work/producer.log" || fail "the producer failed"
arrived() { grep -c '^kafka ' "$work/$TOPIC.out" || true; }
deadline=$((SECONDS + patience))
while [ "$(arrived)" -lt "$messages" ] && [ "$SECONDS" -lt "$deadline" ]; do sleep 0.1; done
echo "$(arrived) of $messages arrived in $TOPIC"
[ "$(arrived)" -ge "$messages" ] || fail "a message did not arrive"
