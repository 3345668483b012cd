#!/usr/bin/env bash
# Sourced by the examples: provides a work directory, the built program, and own servers. All of them are removed at the
# end.
#
#   $root   the repository
#   $work   the work directory; its *.log files are shown if the example fails
#   $built  the directory of the programs, after `build`
#   $api    the URL of the API, after `start_punctual`
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
work=$(mktemp -d)
rabbitmq=/usr/lib/rabbitmq/bin # its namesakes on the PATH change the user and drop the environment

# Ids of processes that are stopped at the end, the last one first.
running=()
clean_up() {
    local n
    for ((n = ${#running[@]} - 1; n >= 0; n--)); do
        kill -TERM "${running[n]}" 2>/dev/null || true
        wait "${running[n]}" 2>/dev/null || true
    done
    rm -rf "$work"
}
trap clean_up EXIT
trap 'exit 130' INT TERM HUP

fail() { # TEXT...
    echo "$(basename "$0"): $*" >&2
    tail -n 30 "$work"/*.log >&2 2>/dev/null || true
    exit 1
}

# Waits until COMMAND succeeds. Fails if the process PID ends. WHAT names the process in errors.
await() { # SECONDS PID WHAT COMMAND...
    local tries=$(($1 * 10)) pid=$2 what=$3
    shift 3
    until "$@" >/dev/null 2>&1; do
        kill -0 "$pid" 2>/dev/null || fail "$what ended before it was ready"
        [ $((tries -= 1)) -gt 0 ] || fail "$what was not ready in time"
        sleep 0.1
    done
}

# Sets VARIABLE to a port without a listener, below the kernel's ephemeral ports. Concurrent runs begin at different
# ports.
next_port=$((20000 + $$ % 9000))
free_port() { # VARIABLE
    while listens "$next_port"; do next_port=$((next_port + 1)); done
    printf -v "$1" %s "$next_port"
    next_port=$((next_port + 1))
}
listens() { # PORT
    (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null
}

# Installs missing packages, see .ci/need, and builds.
build() { # PROGRAM=PACKAGE...
    command -v cargo >/dev/null || PATH="$PATH:${CARGO_HOME:-$HOME/.cargo}/bin"
    command -v cargo >/dev/null || fail "cargo is missing: install Rust first, https://rustup.rs"
    "$root/.ci/need" build redis-server=redis-server redis-cli=redis-tools curl=curl "$@"
    echo "building (a few minutes the first time)"
    # All examples build the same targets: for other targets, cargo would choose other features and rebuild everything.
    (cd "$root" && cargo build --release --locked --bin punctual --examples)
    built=$(cd "$root" && cd "${CARGO_TARGET_DIR:-target}" && pwd)/release
}

# Starts punctual. With `embedded` in the configuration, the data and socket of Redis are in $work/data.
start_punctual() { # CONFIGURATION
    local port
    free_port port
    api=http://127.0.0.1:$port
    export PUNCTUAL__SERVER__LISTEN=127.0.0.1:$port PUNCTUAL__REDIS__DATA_DIR=$work/data
    "$built/punctual" check --connect -c "$1" || fail "$1 cannot be used"
    # In its own session: only the script gets Ctrl-C, and stops punctual.
    setsid "$built/punctual" serve -c "$1" 2>"$work/punctual.log" &
    punctual=$!
    running+=("$punctual")
    await 20 "$punctual" punctual curl -fs --max-time 2 "$api/readyz"
}

# Starts a Redis for source and queue. Its port is in $redis.
start_redis() { # SETTING...
    free_port redis
    redis-server --port "$redis" --bind 127.0.0.1 --dir "$work" --appendonly yes --save '' "$@" >"$work/redis.log" &
    running+=($!)
    await 10 $! redis-server redis-cli -p "$redis" PING
}

# Builds. The broker's URL is in $amqp: URL, or if that is empty, the URL of a broker that is started.
build_with_rabbitmq() { # URL PROGRAM=PACKAGE...
    amqp=$1
    shift
    [ -n "$amqp" ] || set -- "$rabbitmq/rabbitmq-server=rabbitmq-server" "$@"
    build "$@"
    [ -n "$amqp" ] || start_rabbitmq
}

# Starts a broker that listens on the loopback interface only. Its data, log and cookie are in $work, its URL is in
# $amqp.
start_rabbitmq() {
    local port distribution
    free_port port
    free_port distribution
    free_port ERL_EPMD_PORT
    export ERL_EPMD_PORT
    epmd -address 127.0.0.1 -port "$ERL_EPMD_PORT" &
    running+=($!)
    echo '[].' >"$work/plugins"
    echo "listeners.tcp.local = 127.0.0.1:$port" >"$work/rabbitmq.conf"
    # RUNNING_UNDER_SYSTEMD: the script executes the node instead of starting it as a child, so $! is the node's process
    # id.
    env HOME="$work" RABBITMQ_NODENAME="punctual-example-$$@localhost" RABBITMQ_DIST_PORT="$distribution" \
        RABBITMQ_MNESIA_BASE="$work/mnesia" RABBITMQ_LOG_BASE="$work/log" RABBITMQ_PID_FILE="$work/pid" \
        RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS='-kernel inet_dist_use_interface {127,0,0,1}' \
        RABBITMQ_ENABLED_PLUGINS_FILE="$work/plugins" RABBITMQ_CONFIG_FILE="$work/rabbitmq.conf" \
        RUNNING_UNDER_SYSTEMD=true "$rabbitmq/rabbitmq-server" >"$work/broker.log" 2>&1 &
    running+=($!)
    await 60 $! RabbitMQ listens "$port"
    amqp=amqp://127.0.0.1:$port/%2f
}

# Starts the built example PROGRAM with its output in FILE, and waits for the first line: the program is reading.
start_reader() { # FILE PROGRAM ARGUMENT...
    local file=$1 program=$2
    shift 2
    "$built/examples/$program" "$@" >"$file" 2>"$file.log" &
    running+=($!)
    await 20 $! "examples/$program $*" grep -q . "$file"
}

# Shows FILE from its second line on, as it grows.
show() { # FILE
    tail -n +2 -f "$1" &
    running+=($!)
}

# Waits until FILE has COUNT lines `WORD ID ...` with different ids: a duplicate must not hide a missing message.
await_lines() { # SECONDS COUNT WORD FILE WHERE
    local deadline=$((SECONDS + $1)) count=$2 arrived=0
    while [ "$arrived" -lt "$count" ] && [ "$SECONDS" -lt "$deadline" ]; do
        sleep 0.1
        arrived=$(awk -v word="$3" '$1 == word { print $2 }' "$4" | sort -u | wc -l)
    done
    echo "$arrived of $count arrived $5"
    [ "$arrived" -ge "$count" ] || fail "a message did not arrive"
}

# Takes envelopes from the list `jobs` and shows each with its lateness, until COUNT different ids have arrived.
# `redis-cli OPTION...` connects to the Redis.
await_list() { # SECONDS COUNT OPTION...
    local deadline=$((SECONDS + $1)) count=$2 envelope now id due
    local -A arrived=()
    shift 2
    while [ "${#arrived[@]}" -lt "$count" ] && [ "$SECONDS" -lt "$deadline" ]; do
        # Two lines, the list and its element; no line after one second without an element.
        envelope=$(redis-cli "$@" --raw BLPOP jobs 1 | sed -n 2p)
        [ -n "$envelope" ] || continue
        now=$(date +%s%3N)
        id=$(sed -n 's/.*"id":"\([^"]*\)".*/\1/p' <<<"$envelope")
        due=$(sed -n 's/.*"due":\([0-9]*\).*/\1/p' <<<"$envelope")
        printf 'list  %-12s %+6d ms  %s\n' "${id:0:12}" "$((now - due))" "$envelope"
        arrived[${id:-?}]=yes
    done
    echo "${#arrived[@]} of $count arrived in the list"
    [ "${#arrived[@]}" -ge "$count" ] || fail "a message did not arrive"
}
