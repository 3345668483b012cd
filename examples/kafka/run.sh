#!/usr/bin/env bash
# Five messages through punctual into a Kafka topic, each shown as a consumer reads it.
#
#   examples/kafka/run.sh BROKER:PORT [TOPIC]
#
# The topic (orders.due) is created where it is missing. Exit 0 when all arrived, else 1.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
[ $# -ge 1 ] || { echo "usage: run.sh BROKER:PORT [TOPIC]" >&2; exit 2; }
export KAFKA=$1 TOPIC=${2:-orders.due}
messages=5
patience=20 # seconds for the last of them, far beyond its five

work=$(mktemp -d "${TMPDIR:-/tmp}/punctual.XXXXXX")
punctual='' consumer='' tail=''
clean_up() {
    local pid
    for pid in $punctual $consumer $tail; do
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
"$root/.ci/need" build redis-server=redis-server curl=curl
echo "building (a few minutes the first time)"
(cd "$root" && cargo build --release --locked --bin punctual --example kafka)
built=$(cd "$root" && cd "${CARGO_TARGET_DIR:-target}" && pwd)/release

"$built/examples/kafka" "$KAFKA" "$TOPIC" >"$work/consumer.out" 2>"$work/consumer.log" &
consumer=$!
for _ in $(seq 200); do
    ! grep -q '^reading' "$work/consumer.out" || break
    kill -0 "$consumer" 2>/dev/null || fail "there is no topic to read at $KAFKA"
    sleep 0.1
done
grep -q '^reading' "$work/consumer.out" || fail "$KAFKA does not answer"

# A port that nobody listens on, below those that the kernel gives to clients.
port=$((20000 + $$ % 10000))
while (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; do port=$((port + 1)); done
export PUNCTUAL__SERVER__LISTEN=127.0.0.1:$port PUNCTUAL__REDIS__DATA_DIR=$work/data
"$built/punctual" check --connect -c "$root/examples/kafka/pipeline.yaml"
"$built/punctual" serve -c "$root/examples/kafka/pipeline.yaml" 2>"$work/punctual.log" &
punctual=$!
api=http://127.0.0.1:$port
until curl -fs --max-time 2 "$api/readyz" >/dev/null 2>&1; do
    kill -0 "$punctual" 2>/dev/null || fail "punctual ended before it was ready"
    [ $((waited = ${waited:-0} + 1)) -le 200 ] || fail "punctual was not ready within 20 s"
    sleep 0.1
done

for n in $(seq "$messages"); do
    curl -sS --fail-with-body --max-time 10 "$api/v1/routes/order-timeout/messages" -H 'Content-Type: application/json' \
        -d "{\"delay\": \"${n}s\", \"key\": \"customer-$n\", \"payload\": {\"order\": $n}}" || fail "scheduling failed"
    echo
done
tail -n +2 -f "$work/consumer.out" &
tail=$!
# By id: a message that came twice must not hide one that did not come.
arrived() { awk '/^kafka / { print $2 }' "$work/consumer.out" | sort -u | wc -l; }
deadline=$((SECONDS + patience))
while [ "$(arrived)" -lt "$messages" ] && [ "$SECONDS" -lt "$deadline" ]; do sleep 0.1; done
echo "$(arrived) of $messages arrived in $TOPIC"
[ "$(arrived)" -ge "$messages" ] || fail "a message did not arrive"
