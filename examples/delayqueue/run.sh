#!/usr/bin/env bash
# Messages as a producer with hdt3213/delayqueue publishes them, delivered when they are due; the intercepted one is not.
#
#   examples/delayqueue/run.sh
#
# Starts a Redis of its own with keyspace notifications, and takes it away again. Exit 0 when all arrived, else 1.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
messages=3
patience=20 # seconds for the last of them, far beyond its five

work=$(mktemp -d "${TMPDIR:-/tmp}/punctual.XXXXXX")
punctual='' server=''
clean_up() {
    local pid
    for pid in $punctual $server; do
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
# With the examples: what quickstart.sh built is then not built anew.
(cd "$root" && cargo build --release --locked --bin punctual --examples)
built=$(cd "$root" && cd "${CARGO_TARGET_DIR:-target}" && pwd)/release

# Ports that nobody listens on, below those that the kernel gives to clients.
port=$((20000 + $$ % 10000))
free_port() {
    port=$((port + 1))
    while (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; do port=$((port + 1)); done
}
free_port
redis=$port
# K: tell of changes by key; z: of sorted sets, l: of lists. Without them punctual looks every second.
redis-server --port "$redis" --bind 127.0.0.1 --dir "$work" --appendonly yes --save '' \
    --notify-keyspace-events Kzl >"$work/redis.log" &
server=$!
cli() { redis-cli -p "$redis" "$@"; }
until [ "$(cli PING 2>/dev/null)" = PONG ]; do
    kill -0 "$server" 2>/dev/null || fail "redis-server ended"
    sleep 0.05
done

free_port
export REDIS=redis://127.0.0.1:$redis/0 PUNCTUAL__SERVER__LISTEN=127.0.0.1:$port
"$built/punctual" check --connect -c "$root/examples/delayqueue/pipeline.yaml"
"$built/punctual" serve -c "$root/examples/delayqueue/pipeline.yaml" 2>"$work/punctual.log" &
punctual=$!
until curl -fs --max-time 2 "http://127.0.0.1:$port/readyz" >/dev/null 2>&1; do
    kill -0 "$punctual" 2>/dev/null || fail "punctual ended before it was ready"
    [ $((waited = ${waited:-0} + 1)) -le 200 ] || fail "punctual was not ready within 20 s"
    sleep 0.1
done

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

arrived=0
deadline=$((SECONDS + patience))
while [ "$arrived" -lt "$messages" ] && [ "$SECONDS" -lt "$deadline" ]; do
    # Two lines, the list and its element; none when a second has passed.
    envelope=$(cli --raw BLPOP jobs 1 | sed -n 2p)
    [ -n "$envelope" ] || continue
    now=$(date +%s%3N)
    due=$(sed -n 's/.*"due":\([0-9]*\).*/\1/p' <<<"$envelope")
    printf '%+6d ms  %s\n' "$((now - due))" "$envelope"
    arrived=$((arrived + 1))
done
echo "$arrived of $messages arrived"
[ "$arrived" -ge "$messages" ] || fail "a message did not arrive"
