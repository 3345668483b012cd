#!/usr/bin/env bash
# punctual in one command, on a Debian machine with Rust: builds it, starts it with a Redis of its own and
# examples/quickstart.yaml, schedules messages one to five seconds ahead to an HTTP receiver and to a Redis
# list, shows each arriving with its lateness, and serves until Ctrl-C.
#
#   examples/quickstart.sh [--once]
#
# With --once, or without a terminal, it stops when all have arrived: exit 0, or 1 if one did not.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
messages=5      # to each of the two destinations
patience=15     # seconds that the last of them may take, far beyond its five

once=false
case "${1:-}" in
    "") [ -t 0 ] && [ -t 1 ] || once=true ;;
    --once) once=true ;;
    *) echo "usage: quickstart.sh [--once]" >&2; exit 2 ;;
esac

say() { printf '%s\n' "$*"; }
fail() {
    say "quickstart: $*" >&2
    [ ! -s "$work/punctual.log" ] || { say "--- punctual's log:" && tail -n 30 "$work/punctual.log"; } >&2
    exit 1
}

work=$(mktemp -d "${TMPDIR:-/tmp}/punctual.XXXXXX")
punctual='' receiver='' tail=''

# Asks punctual to stop, and lets it.
stop_punctual() {
    local pid=$punctual
    punctual=''
    [ -n "$pid" ] || return 0
    kill -TERM "$pid" 2>/dev/null || true
    wait "$pid"
}
clean_up() {
    stop_punctual || true
    local pid
    for pid in $receiver $tail; do
        kill -TERM "$pid" 2>/dev/null || true
        wait "$pid" 2>/dev/null || true
    done
    rm -rf "$work"
}
trap clean_up EXIT
trap 'exit 130' INT TERM HUP

command -v cargo >/dev/null || PATH="$PATH:${CARGO_HOME:-$HOME/.cargo}/bin"
command -v cargo >/dev/null || fail "cargo is missing: install Rust first, https://rustup.rs"
"$root/.ci/need" build redis-server=redis-server redis-cli=redis-tools curl=curl

say "building (a few minutes the first time)"
(cd "$root" && cargo build --release --locked --bin punctual --example receiver)
built=$(cd "$root" && cd "${CARGO_TARGET_DIR:-target}" && pwd)/release

# The receiver takes a free port and says which.
"$built/examples/receiver" 0 >"$work/receiver.out" 2>&1 &
receiver=$!
for _ in $(seq 100); do
    receiver_url=$(sed -n 's/^listening on //p' "$work/receiver.out")
    [ -z "$receiver_url" ] || break
    sleep 0.05
done
[ -n "$receiver_url" ] || fail "the receiver did not start: $(cat "$work/receiver.out")"

# A port that nobody listens on, below those that the kernel gives to clients; runs side by side begin apart.
port=$((20000 + $$ % 10000))
while (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; do port=$((port + 1)); done
api=http://127.0.0.1:$port

# In a session of its own, so that Ctrl-C reaches this script alone, which then stops it.
RECEIVER_URL=$receiver_url \
    PUNCTUAL__SERVER__LISTEN=127.0.0.1:$port \
    PUNCTUAL__REDIS__DATA_DIR=$work/data \
    setsid "$built/punctual" serve -c "$root/examples/quickstart.yaml" >"$work/punctual.log" 2>&1 &
punctual=$!
until curl -fs --max-time 2 "$api/readyz" >/dev/null 2>&1; do
    kill -0 "$punctual" 2>/dev/null || fail "punctual ended before it was ready"
    [ $((waited = ${waited:-0} + 1)) -le 200 ] || fail "punctual was not ready within 20 s"
    sleep 0.1
done
say "punctual is ready at $api, its Redis at $work/data/redis.sock"

say
for n in $(seq "$messages"); do
    for route in reminders jobs; do
        curl -sS --fail-with-body --max-time 10 "$api/v1/routes/$route/messages" -H 'Content-Type: application/json' \
            -d "{\"id\": \"$route-$n\", \"delay\": \"${n}s\", \"payload\": {\"n\": $n}}" || fail "scheduling failed"
        say
    done
done

say
say "to    id                late  payload, or the whole envelope"
# Every line but the first is a request.
tail -n +2 -f "$work/receiver.out" &
tail=$!

# By id: a message that came twice must not hide one that did not come.
declare -A arrived=()
deadline=$((SECONDS + patience))
while [ "${#arrived[@]}" -lt "$messages" ] && [ "$SECONDS" -lt "$deadline" ]; do
    # Two lines, the list and its element; none when a second has passed.
    envelope=$(redis-cli -s "$work/data/redis.sock" --raw BLPOP jobs 1 | sed -n 2p) || fail "Redis does not answer"
    [ -n "$envelope" ] || continue
    now=$(date +%s%3N)
    id=$(sed -n 's/.*"id":"\([^"]*\)".*/\1/p' <<<"$envelope")
    due=$(sed -n 's/.*"due":\([0-9]*\).*/\1/p' <<<"$envelope")
    printf 'list  %-12s %+6d ms  %s\n' "$id" "$((now - due))" "$envelope"
    arrived[${id:-?}]=yes
done
received() { awk '/^http / { print $2 }' "$work/receiver.out" | sort -u | wc -l; }
while [ "$(received)" -lt "$messages" ] && [ "$SECONDS" -lt "$deadline" ]; do sleep 0.1; done

say
say "$(received) of $messages arrived by HTTP, ${#arrived[@]} of $messages in the list"
if [ "$(received)" -lt "$messages" ] || [ "${#arrived[@]}" -lt "$messages" ]; then
    fail "a message did not arrive"
fi

if $once; then
    stop_punctual || fail "punctual did not stop cleanly: exit code $?"
    say "stopped"
    exit 0
fi

cat <<END

Try next:
  curl $api/v1/routes/reminders/messages -d '{"delay": "10s", "payload": "hello"}' -H 'Content-Type: application/json'
  curl $api/v1/routes
  curl $api/metrics
  curl $api/openapi.json
  redis-cli -s $work/data/redis.sock

Ctrl-C stops it.
END
trap 'say; stop_punctual || fail "punctual did not stop cleanly: exit code $?"; say stopped; exit 0' INT TERM HUP
wait "$punctual" || fail "punctual ended by itself: exit code $?"
