#!/usr/bin/env bash
# punctual in one command, on a Debian machine with Rust: builds it, starts it with a Redis of its own and
# examples/quickstart.yaml, schedules messages one to five seconds ahead to an HTTP receiver and to a Redis
# list, shows each arriving with its lateness, and serves until Ctrl-C.
#
#   examples/quickstart.sh [--once]
#
# With --once, or without a terminal, it stops when all have arrived: exit 0, or 1 if one did not.
. "$(dirname "${BASH_SOURCE[0]}")/stage.sh"

messages=5      # to each of the two destinations
patience=15     # seconds that the last of them may take, far beyond its five

once=false
case "${1:-}" in
    "") [ -t 0 ] && [ -t 1 ] || once=true ;;
    --once) once=true ;;
    *) echo "usage: quickstart.sh [--once]" >&2; exit 2 ;;
esac

stop() {
    kill -TERM "$punctual" 2>/dev/null || true
    wait "$punctual" || fail "punctual did not stop cleanly: exit code $?"
    echo stopped
    exit 0
}

build
# The receiver takes a free port and says which.
start_reader "$work/receiver.out" receiver 0
RECEIVER_URL=$(sed -n 's/^listening on //p' "$work/receiver.out")
export RECEIVER_URL
start_punctual "$root/examples/quickstart.yaml"
echo "punctual is ready at $api, its Redis at $work/data/redis.sock"

echo
for n in $(seq "$messages"); do
    for route in reminders jobs; do
        curl -sS --fail-with-body --max-time 10 "$api/v1/routes/$route/messages" -H 'Content-Type: application/json' \
            -d "{\"id\": \"$route-$n\", \"delay\": \"${n}s\", \"payload\": {\"n\": $n}}" || fail "scheduling failed"
        echo
    done
done

echo
echo "to    id                late  payload, or the whole envelope"
show "$work/receiver.out"
await_list "$patience" "$messages" -s "$work/data/redis.sock"
await_lines "$patience" "$messages" http "$work/receiver.out" "by HTTP"
! $once || stop

cat <<END

Try next:
  curl $api/v1/routes/reminders/messages -d '{"delay": "10s", "payload": "hello"}' -H 'Content-Type: application/json'
  curl $api/v1/routes
  curl $api/metrics
  curl $api/openapi.json
  redis-cli -s $work/data/redis.sock

Ctrl-C stops it.
END
trap 'echo; stop' INT TERM HUP
wait "$punctual" || fail "punctual ended by itself: exit code $?"
