#!/usr/bin/env bash
# Sourced by the examples: a directory to work in, the built program, servers of their own. All is gone at the end.
#
#   $root   the repository
#   $work   a directory; files *.log in it are shown when the example fails
#   $built  where the programs are, after `build`
#   $api    where punctual answers, after `start_punctual`
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
work=$(mktemp -d)
rabbitmq=/usr/lib/rabbitmq/bin # the programs of that name on the PATH change the user and drop the environment

# Process ids, stopped at the end, the last one first.
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

# Waits until COMMAND succeeds, while the process PID lives; WHAT is waited for.
await() { # SECONDS PID WHAT COMMAND...
    local tries=$(($1 * 10)) pid=$2 what=$3
    shift 3
    until "$@" >/dev/null 2>&1; do
        kill -0 "$pid" 2>/dev/null || fail "$what ended before it was ready"
        [ $((tries -= 1)) -gt 0 ] || fail "$what was not ready in time"
        sleep 0.1
    done
}

# Into VARIABLE a port without a listener, below those that the kernel gives to clients. Runs side by side begin apart.
next_port=$((20000 + $$ % 9000))
free_port() { # VARIABLE
    while listens "$next_port"; do next_port=$((next_port + 1)); done
    printf -v "$1" %s "$next_port"
    next_port=$((next_port + 1))
}
listens() { # PORT
    (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null
}

# Installs what is missing, see .ci/need, and builds.
build() { # PROGRAM=PACKAGE...
    command -v cargo >/dev/null || PATH="$PATH:${CARGO_HOME:-$HOME/.cargo}/bin"
    command -v cargo >/dev/null || fail "cargo is missing: install Rust first, https://rustup.rs"
    "$root/.ci/need" build redis-server=redis-server redis-cli=redis-tools curl=curl "$@"
    echo "building (a few minutes the first time)"
    # The same for all examples: for other targets cargo chooses other features, and builds everything anew.
    (cd "$root" && cargo build --release --locked --bin punctual --examples)
    built=$(cd "$root" && cd "${CARGO_TARGET_DIR:-target}" && pwd)/release
}

# With `embedded` in the configuration, Redis' data and socket are in $work/data.
start_punctual() { # CONFIGURATION
    local port
    free_port port
    api=http://127.0.0.1:$port
    export PUNCTUAL__SERVER__LISTEN=127.0.0.1:$port PUNCTUAL__REDIS__DATA_DIR=$work/data
    "$built/punctual" check --connect -c "$1" || fail "$1 cannot be used"
    # In a session of its own, so that Ctrl-C reaches the script alone, which then stops it.
    setsid "$built/punctual" serve -c "$1" 2>"$work/punctual.log" &
    punctual=$!
    running+=("$punctual")
    await 20 "$punctual" punctual curl -fs --max-time 2 "$api/readyz"
}

# A Redis for source and queue; its port is in $redis.
start_redis() { # SETTING...
    free_port redis
    redis-server --port "$redis" --bind 127.0.0.1 --dir "$work" --appendonly yes --save '' "$@" >"$work/redis.log" &
    running+=($!)
    await 10 $! redis-server redis-cli -p "$redis" PING
}

# Builds; the broker's URL is in $amqp: that of one of its own, unless URL names another.
build_with_rabbitmq() { # URL PROGRAM=PACKAGE...
    amqp=$1
    shift
    [ -n "$amqp" ] || set -- "$rabbitmq/rabbitmq-server=rabbitmq-server" "$@"
    build "$@"
    [ -n "$amqp" ] || start_rabbitmq
}

# A broker whose data, log and cookie are in $work, and which hears this machine only; its URL is in $amqp.
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
    # RUNNING_UNDER_SYSTEMD: the script becomes the node instead of its parent, so that its process id is the node's.
    env HOME="$work" RABBITMQ_NODENAME="punctual-example-$$@localhost" RABBITMQ_DIST_PORT="$distribution" \
        RABBITMQ_MNESIA_BASE="$work/mnesia" RABBITMQ_LOG_BASE="$work/log" RABBITMQ_PID_FILE="$work/pid" \
        RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS='-kernel inet_dist_use_interface {127,0,0,1}' \
        RABBITMQ_ENABLED_PLUGINS_FILE="$work/plugins" RABBITMQ_CONFIG_FILE="$work/rabbitmq.conf" \
        RUNNING_UNDER_SYSTEMD=true "$rabbitmq/rabbitmq-server" >"$work/broker.log" 2>&1 &
    running+=($!)
    await 60 $! RabbitMQ listens "$port"
    amqp=amqp://127.0.0.1:$port/%2f
}

# Starts the built example PROGRAM, whose output goes into FILE, and waits for the first line, which says that it reads.
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

# Waits until FILE has COUNT lines `WORD ID ...` of different ids: a message that came twice must not hide one that did
# not come.
await_lines() { # SECONDS COUNT WORD FILE WHERE
    local deadline=$((SECONDS + $1)) count=$2 arrived=0
    while [ "$arrived" -lt "$count" ] && [ "$SECONDS" -lt "$deadline" ]; do
        sleep 0.1
        arrived=$(awk -v word="$3" '$1 == word { print $2 }' "$4" | sort -u | wc -l)
    done
    echo "$arrived of $count arrived $5"
    [ "$arrived" -ge "$count" ] || fail "a message did not arrive"
}

# Takes envelopes out of the list `jobs`, and shows each with its lateness, until COUNT ids were there. The Redis is
# that of `redis-cli OPTION...`.
await_list() { # SECONDS COUNT OPTION...
    local deadline=$((SECONDS + $1)) count=$2 envelope now id due
    local -A arrived=()
    shift 2
    while [ "${#arrived[@]}" -lt "$count" ] && [ "$SECONDS" -lt "$deadline" ]; do
        # Two lines, the list and its element; none when a second has passed.
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
