#!/usr/bin/env bash
# Measures what many pending messages need of Redis: memory, rates, snapshots, restarts; and what a connection costs.
#
#   benches/sizing.sh [--quick] [--out DIRECTORY]
#
# 1 and 10 million messages, in 1 and in 6 partitions: 5 GiB of memory and of disk, and 25 minutes where other programs use the
# cores. --quick has a hundredth of them. DIRECTORY (target/bench/sizing by default) gets raw.jsonl with one line for each
# figure, versions.txt, and table.md, the tables of docs/sizing.md.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=examples/stage.sh
. "$here/../examples/stage.sh"
# shellcheck source=benches/servers.sh
. "$here/servers.sh"

million=1000000 results=$root/target/bench/sizing
while [ $# -gt 0 ]; do
    case $1 in
        --quick) million=10000 ;;
        --out) results=$2 && shift ;;
        *) fail "usage: benches/sizing.sh [--quick] [--out DIRECTORY]" ;;
    esac
    shift
done

# Messages that are scheduled each second while a snapshot is written.
rate=5000
# When messages are due that are not delivered here, and over how many ms: a day, an hour.
later=(--wait 86400000 --spread 3600000)

note() { # CASE NAME VALUE
    echo "{\"case\":\"$1\",\"name\":\"$2\",\"value\":$3}" | tee -a "$results/raw.jsonl"
}

# Figures of what the load program printed last, $measured; their names get PREFIX.
note_all() { # CASE PREFIX NAME...
    local case=$1 prefix=$2 name
    shift 2
    for name in "$@"; do
        note "$case" "$prefix$name" "$(sed -n "s/.*\"$name\":\([0-9.e+-]*\).*/\1/p" <<<"$measured")"
    done
}

info() { # SECTION NAME
    redis-cli -p "$redis" INFO "$1" | tr -d '\r' | sed -n "s/^$2://p"
}

now() { # milliseconds
    date +%s%3N
}

schedule() { # COUNT OPTION...
    measured=$("$load" schedule --api "$api" --redis "$redis_url" --first "$scheduled" --count "$@")
    scheduled=$((scheduled + $1))
}

# Until the child process of Redis that was asked for has ended.
await_child() { # SECTION IN_PROGRESS STATUS
    while [ "$(info "$1" "$2")" != 0 ]; do sleep 0.05; done
    [ "$(info "$1" "$3")" = ok ] || fail "$2 failed"
}

snapshot() { # CASE NAME: while nothing or a load writes
    local case=$1 name=$2 started second
    started=$(now)
    redis-cli -p "$redis" BGSAVE >/dev/null
    while [ "$name" = busy ] && [ "$(info persistence rdb_bgsave_in_progress)" != 0 ]; do
        second=$(now)
        schedule "$rate" "${later[@]}"
        second=$((1000 - $(now) + second))
        [ "$second" -le 0 ] || sleep "$(printf '0.%03d' "$((second == 1000 ? 999 : second))")"
    done
    await_child persistence rdb_bgsave_in_progress rdb_last_bgsave_status
    note "$case" "$name.snapshot_ms" $(($(now) - started))
    note "$case" "$name.fork_us" "$(info stats latest_fork_usec)"
    note "$case" "$name.copied" "$(info persistence rdb_last_cow_size)"
}

# Stops it and starts it with its data; how long it takes until it answers.
restart_redis() { # CASE NAME
    local started
    stop_to 0
    # Not those of start_redis: it waits for ten seconds.
    redis-server --port "$redis" --bind 127.0.0.1 --dir "$work/redis" --appendonly yes --save '' \
        --auto-aof-rewrite-percentage 0 >"$work/redis.log" &
    running+=($!)
    started=$(now)
    until [ "$(redis-cli -p "$redis" PING 2>/dev/null)" = PONG ]; do
        kill -0 "${running[0]}" || fail "redis-server ended"
        sleep 0.02
    done
    note "$1" "$2" $(($(now) - started))
}

restart_punctual() { # CASE
    local started
    started=$(now)
    setsid "$built/punctual" serve -c "$work/punctual.yaml" 2>"$work/punctual.log" &
    punctual=$!
    running+=("$punctual")
    until curl -fs --max-time 2 "$api/readyz" >/dev/null; do
        kill -0 "$punctual" || fail "punctual ended"
    done
    note "$1" punctual_ms $(($(now) - started))
}

measure() { # MILLIONS PARTITIONS
    local case="$1 $2" count=$(($1 * million)) before written
    scheduled=0
    fresh_punctual '{ type: redis_list, key: due }' 1 "partitions: $2"
    redis-cli -p "$redis" CONFIG SET auto-aof-rewrite-percentage 0 >/dev/null
    before=$(info memory used_memory)
    while [ $((scheduled + million)) -lt "$count" ]; do schedule "$million" "${later[@]}"; done
    # The last ones are due at once, and are delivered in the end.
    curl -fs -X POST "$api/v1/routes/r0/pause" >/dev/null
    schedule "$million" --spread 1000
    note_all "$case" schedule. rate redis_us
    note "$case" messages "$scheduled"
    note "$case" used $(($(info memory used_memory) - before))
    note "$case" resident "$(info memory used_memory_rss)"
    note "$case" written "$(info persistence aof_current_size)"
    snapshot "$case" idle
    note "$case" snapshot "$(stat -c %s "$work/redis/dump.rdb")"
    snapshot "$case" busy
    rm "$work/redis/dump.rdb"
    restart_redis "$case" load_written_ms
    redis-cli -p "$redis" BGREWRITEAOF >/dev/null
    await_child persistence aof_rewrite_in_progress aof_last_bgrewrite_status
    note "$case" rewritten "$(info persistence aof_current_size)"
    restart_redis "$case" load_rewritten_ms
    restart_punctual "$case"
    written=$(info persistence aof_current_size)
    measured=$("$load" drain --api "$api" --redis "$redis_url" --pid "$punctual" --partitions "$2" \
        --keep $((scheduled - million)))
    note_all "$case" drain. rate redis_us
    note "$case" drain.written $((($(info persistence aof_current_size) - written) / million))
    stop_all
    rm -rf "$work/redis"
}

# Of connections that do nothing, and of an instance that does nothing.
measure_connections() {
    local before started partitions
    fresh_redis
    measured=$("$load" connections --redis "$redis_url")
    note_all connection '' open_us bytes idle_us
    for partitions in 1 6; do
        fresh_punctual '{ type: redis_list, key: due }' 1 "partitions: $partitions"
        # Beyond its start.
        sleep 2
        # One is that of the question.
        note "instance $partitions" connections $(($(info clients connected_clients) - 1))
        before=$(redis_cpu) started=$(now)
        sleep 20
        note "instance $partitions" idle_us "$(awk -v before="$before" -v after="$(redis_cpu)" -v ms=$(($(now) - started)) \
            'BEGIN { printf "%.0f", (after - before) * 1e9 / ms }')"
    done
    stop_all
}

redis_cpu() { # seconds
    redis-cli -p "$redis" INFO cpu | tr -d '\r' | awk -F: '/^used_cpu_(user|sys):/ { sum += $2 } END { print sum }'
}

mkdir -p "$results"
results=$(cd "$results" && pwd)
build_load
rm -f "$results/raw.jsonl"
SECONDS=0
{ own_versions && machine; } >"$results/versions.txt"
for millions in 1 10; do
    for partitions in 1 6; do
        started=$SECONDS
        measure "$millions" "$partitions"
        echo "=== $millions, $partitions partitions: $((SECONDS - started)) s"
    done
done
measure_connections
echo "load average after: $(cut -d' ' -f1-3 /proc/loadavg)" >>"$results/versions.txt"
python3 "$here/sizing.py" "$results/raw.jsonl" | tee "$results/table.md"
echo "=== $SECONDS s without the build; results are in $results"
