#!/usr/bin/env bash
# Five messages with x-delay from a Python producer, through punctual, to a Python consumer of the same RabbitMQ.
#
#   examples/from_rabbitmq/run.sh [AMQP-URL]
#
# Declares exchanges and queues named punctual-example.*. Exit 0 when all arrived, else 1.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
export AMQP=${1:-amqp://localhost:5672/%2f}
here=$root/examples/from_rabbitmq

work=$(mktemp -d "${TMPDIR:-/tmp}/punctual.XXXXXX")
punctual=''
clean_up() {
    if [ -n "$punctual" ]; then
        kill -TERM "$punctual" 2>/dev/null || true
        wait "$punctual" 2>/dev/null || true
    fi
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
"$root/.ci/need" build redis-server=redis-server curl=curl python3=python3
python3 -c 'import ensurepip' 2>/dev/null || "$root/.ci/need" /usr/share/python-wheels=python3-venv
echo "building (a few minutes the first time)"
# With the examples: what quickstart.sh built is then not built anew.
(cd "$root" && cargo build --release --locked --bin punctual --examples)
built=$(cd "$root" && cd "${CARGO_TARGET_DIR:-target}" && pwd)/release
python3 -m venv "$work/python"
"$work/python/bin/pip" install -q -r "$root/tests/clients/amqp/requirements.txt"
"$work/python/bin/python" "$here/client.py" "$AMQP" declare || fail "$AMQP cannot be used"

# A port that nobody listens on, below those that the kernel gives to clients.
port=$((20000 + $$ % 10000))
while (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; do port=$((port + 1)); done
export PUNCTUAL__SERVER__LISTEN=127.0.0.1:$port PUNCTUAL__REDIS__DATA_DIR=$work/data
"$built/punctual" check --connect -c "$here/pipeline.yaml"
"$built/punctual" serve -c "$here/pipeline.yaml" 2>"$work/punctual.log" &
punctual=$!
until curl -fs --max-time 2 "http://127.0.0.1:$port/readyz" >/dev/null 2>&1; do
    kill -0 "$punctual" 2>/dev/null || fail "punctual ended before it was ready"
    [ $((waited = ${waited:-0} + 1)) -le 200 ] || fail "punctual was not ready within 20 s"
    sleep 0.1
done
"$work/python/bin/python" "$here/client.py" "$AMQP" run 5 || fail "a message did not arrive"
