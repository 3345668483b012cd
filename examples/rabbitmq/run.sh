#!/usr/bin/env bash
# Five messages through punctual into an exchange of RabbitMQ, each shown as a consumer gets it.
#
#   examples/rabbitmq/run.sh [URL [EXCHANGE]]
#
# Without a URL such as amqp://localhost:5672/%2f, a broker of its own is started and stopped again. The exchange
# (billing) is declared where it is missing. Exit 0 when all arrived, else 1.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
export RABBITMQ=${1:-} EXCHANGE=${2:-billing}
messages=5
patience=20 # seconds for the last of them, far beyond its five
programs=/usr/lib/rabbitmq/bin # those on the PATH change the user and drop the environment

work=$(mktemp -d "${TMPDIR:-/tmp}/punctual.XXXXXX")
punctual='' consumer='' tail='' node='' epmd=''
clean_up() {
    local pid
    for pid in $punctual $consumer $tail $node $epmd; do
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

# Ports that nobody listens on, below those that the kernel gives to clients.
next=$((20000 + $$ % 9000))
free_port() { # VARIABLE
    while (exec 3<>"/dev/tcp/127.0.0.1/$next") 2>/dev/null; do next=$((next + 1)); done
    printf -v "$1" %s "$next"
    next=$((next + 1))
}

# A node of its own: its data, log and cookie are in $work, and it hears this machine only.
start_broker() {
    local port distribution name=punctual-example-$$
    free_port port
    free_port distribution
    free_port ERL_EPMD_PORT
    export ERL_EPMD_PORT
    epmd -address 127.0.0.1 -port "$ERL_EPMD_PORT" &
    epmd=$!
    echo '[].' >"$work/plugins"
    echo "listeners.tcp.local = 127.0.0.1:$port" >"$work/rabbitmq.conf"
    # RUNNING_UNDER_SYSTEMD: the script becomes the node instead of its parent, so that its process id is the node's.
    env HOME="$work" RABBITMQ_NODENAME="$name@localhost" RABBITMQ_DIST_PORT="$distribution" \
        RABBITMQ_MNESIA_BASE="$work/data" RABBITMQ_LOG_BASE="$work/log" RABBITMQ_PID_FILE="$work/pid" \
        RABBITMQ_ENABLED_PLUGINS_FILE="$work/plugins" RABBITMQ_CONFIG_FILE="$work/rabbitmq.conf" \
        RUNNING_UNDER_SYSTEMD=true "$programs/rabbitmq-server" >"$work/broker.log" 2>&1 &
    node=$!
    RABBITMQ=amqp://127.0.0.1:$port/%2f
    for _ in $(seq 600); do
        ! (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null || return 0
        kill -0 "$node" 2>/dev/null || fail "RabbitMQ ended before it was ready"
        sleep 0.1
    done
    fail "RabbitMQ was not ready within a minute"
}

command -v cargo >/dev/null || PATH="$PATH:${CARGO_HOME:-$HOME/.cargo}/bin"
needed=(redis-server=redis-server curl=curl)
[ -n "$RABBITMQ" ] || needed+=("$programs/rabbitmq-server=rabbitmq-server")
"$root/.ci/need" build "${needed[@]}"
echo "building (a few minutes the first time)"
(cd "$root" && cargo build --release --locked --bin punctual --example rabbitmq)
built=$(cd "$root" && cd "${CARGO_TARGET_DIR:-target}" && pwd)/release
[ -n "$RABBITMQ" ] || start_broker

"$built/examples/rabbitmq" "$RABBITMQ" "$EXCHANGE" >"$work/consumer.out" 2>"$work/consumer.log" &
consumer=$!
for _ in $(seq 200); do
    ! grep -q '^reading' "$work/consumer.out" || break
    kill -0 "$consumer" 2>/dev/null || fail "the broker lets nobody read from $EXCHANGE"
    sleep 0.1
done
grep -q '^reading' "$work/consumer.out" || fail "the broker does not answer"

free_port port
export PUNCTUAL__SERVER__LISTEN=127.0.0.1:$port PUNCTUAL__REDIS__DATA_DIR=$work/redis
"$built/punctual" check --connect -c "$root/examples/rabbitmq/pipeline.yaml"
"$built/punctual" serve -c "$root/examples/rabbitmq/pipeline.yaml" 2>"$work/punctual.log" &
punctual=$!
api=http://127.0.0.1:$port
until curl -fs --max-time 2 "$api/readyz" >/dev/null 2>&1; do
    kill -0 "$punctual" 2>/dev/null || fail "punctual ended before it was ready"
    [ $((waited = ${waited:-0} + 1)) -le 200 ] || fail "punctual was not ready within 20 s"
    sleep 0.1
done

for n in $(seq "$messages"); do
    curl -sS --fail-with-body --max-time 10 "$api/v1/routes/invoices/messages" -H 'Content-Type: application/json' -d "{
        \"delay\": \"${n}s\", \"key\": \"invoice.due\", \"payload\": {\"invoice\": $n},
        \"properties\": {\"correlation_id\": \"customer-$n\", \"type\": \"invoice\"}}" || fail "scheduling failed"
    echo
done
tail -n +2 -f "$work/consumer.out" &
tail=$!
# By id: a message that came twice must not hide one that did not come.
arrived() { awk '/^rabbitmq / { print $2 }' "$work/consumer.out" | sort -u | wc -l; }
deadline=$((SECONDS + patience))
while [ "$(arrived)" -lt "$messages" ] && [ "$SECONDS" -lt "$deadline" ]; do sleep 0.1; done
echo "$(arrived) of $messages arrived in $EXCHANGE"
[ "$(arrived)" -ge "$messages" ] || fail "a message did not arrive"
