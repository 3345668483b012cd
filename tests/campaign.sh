#!/usr/bin/env bash
# The fault campaign: clients use three instances of the release build while faults hit all processes at random, and a judge
# compares what the sinks got with what the answers promised. docs/reliability.md describes it.
#
# `tests/campaign.sh [--minutes N] [--seed N] [--only KINDS] [--every SECONDS] [--world sentinel|cluster]`: 30 minutes, a random
# seed and a primary with sentinels unless told otherwise. KINDS is a list with commas of kill, stop, terminate, older, unread,
# network, redis-kill, redis-freeze, fail-over, cut-off, slots, script-flush, client-kill, right, memory, clock, endpoint,
# endpoint-network, kafka, kafka-network, leader, rabbitmq, rabbitmq-network, broker-freeze, exchange, queue-full, other-redis and
# other-redis-network, or `none`. SECONDS is the mean time between two faults of a kind. PUNCTUAL_CAMPAIGN_PROGRAM names another build,
# PUNCTUAL_CAMPAIGN_DURABLE=0 replies before replicas have a message, PUNCTUAL_CAMPAIGN_RATE messages or arrays a second, PUNCTUAL_CAMPAIGN_MAX_P99 the lateness in calm
# times that a busy machine permits, in milliseconds (400). A breach prints its seed, and the history of its message.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

minutes=30 seed=$((RANDOM * 32768 + RANDOM)) only= every=0 world=sentinel
while [ $# -gt 0 ]; do
    case $1 in
    --minutes) minutes=$2 ;;
    --seed) seed=$2 ;;
    --only) only=$2 ;;
    --every) every=$2 ;;
    --world) world=$2 ;;
    *)
        sed -n '2,11s/^# \?//p' "$0" >&2
        exit 2
        ;;
    esac
    shift 2
done

command -v cargo >/dev/null || PATH="$PATH:${CARGO_HOME:-$HOME/.cargo}/bin"
.ci/need build redis-server=redis-server /usr/lib/rabbitmq/bin/rabbitmq-server=rabbitmq-server
[ -d target/kafka/libs ] || echo "campaign.sh: without Kafka, which tests/run.sh fetches, the routes of brokers are left out" >&2
if [ -z "${PUNCTUAL_CAMPAIGN_PROGRAM:-}" ]; then
    cargo build --release --locked --bin punctual
    export PUNCTUAL_CAMPAIGN_PROGRAM=$PWD/target/release/punctual
fi
# A breach is an assertion: its place in the code says nothing.
export RUST_BACKTRACE=0
export PUNCTUAL_CAMPAIGN_MINUTES=$minutes PUNCTUAL_CAMPAIGN_SEED=$seed PUNCTUAL_CAMPAIGN_ONLY=$only
export PUNCTUAL_CAMPAIGN_EVERY=$every PUNCTUAL_CAMPAIGN_WORLD=$world
exec cargo test --locked --test it -- --ignored --exact --nocapture campaign::faults_at_random_break_no_promise
