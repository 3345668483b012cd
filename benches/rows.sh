# Sourced by run.sh: one function for each row. A round measures every one that a row compares, so that what else the
# machine does meets all of them.

schedule() { # OPTION...
    "$load" schedule --api "$api" "$@"
}

# Messages of route r0 that are due, and wait until it is resumed.
fill() { # COUNT [OPTION...]
    curl -fs -X POST "$api/v1/routes/r0/pause" >/dev/null
    schedule --count "$@" >/dev/null
}

drain() {
    "$load" drain --api "$api" --redis "$redis_url" --pid "$punctual"
}

bullmq() { # COMMAND...
    node "$bench/bullmq/bench.js" "$redis" "$@"
}

asynq() { # COMMAND...
    "$bench/asynq" "$redis" "$@"
}

# Each with an empty Redis; in a quick run in the first round only.
peers() { # ROW COMMAND...
    local row=$1 who
    shift
    [ "$round" = 1 ] || [ -z "$quick" ] || return 0
    for who in bullmq asynq; do
        fresh_redis
        record "$row" "$who" "$who" "$@"
    done
}

# What the programs of this suite reach on their own: they must not be what is measured.
row_limits() {
    for round in $(seq "$rounds"); do
        fresh_redis
        fresh_receiver
        record limits load "$load" schedule --api "$receiver" --count "$(size 1000000 300000)"
        "$load" bare-drain --redis "$redis_url" --count 300000 >/dev/null
        record limits list "$load" list --redis "$redis_url" --count 300000
    done
}

row_schedule() {
    local count
    count=$(size 500000 200000)
    for round in $(seq "$rounds"); do
        fresh_redis
        record schedule bare "$load" bare-schedule --redis "$redis_url" --count "$count"
        fresh_punctual '{ type: redis_list, key: due }'
        record schedule punctual schedule --redis "$redis_url" --count "$count" --wait 3600000
        peers schedule schedule $((count / 5))
    done
}

row_drain() {
    local count
    count=$(size 500000 200000)
    for round in $(seq "$rounds"); do
        fresh_redis
        record drain bare "$load" bare-drain --redis "$redis_url" --count "$count"
        fresh_punctual '{ type: redis_list, key: due }'
        fill "$count"
        record drain punctual drain
        peers drain process $((count / 10))
    done
}

# One route with 6 partitions: on one server, then on a cluster.
row_cluster() {
    local count primaries cluster=
    count=$(size 200000 60000)
    for round in $(seq "$rounds"); do
        for primaries in 1 3 6; do
            stop_to "$kept"
            fresh_receiver
            kept=1
            fresh_redis
            redis_urls=("$redis_url")
            [ "$primaries" = 1 ] || fresh_cluster "$primaries"
            fresh_routes "${cluster:-url: \"$redis_url/0\"}" "{ type: http, url: \"$receiver/due\" }" 1 'partitions: 6'
            fill "$count"
            record cluster "$primaries" "$load" drain --partitions 6 --api "$api" "${redis_urls[@]/#/--redis=}" --pid "$punctual"
            kept=0 cluster=''
        done
    done
}

# Plain hyper, then punctual with default settings and with 100 messages in flight, each to a receiver of its own.
row_http() {
    local count settings
    count=$(size 300000 100000)
    for round in $(seq "$rounds"); do
        stop_to "$kept"
        fresh_receiver
        record http hyper "$load" flood --url "$receiver" --count "$count"
        for settings in '' 'max_in_flight: 100'; do
            stop_to "$kept"
            fresh_receiver
            kept=1
            fresh_punctual "{ type: http, url: \"$receiver/due\" }" 1 "$settings"
            fill "$count"
            record http "punctual${settings:+-100}" drain
            record http "received${settings:+-100}" curl -fs "$receiver/stats"
            kept=0
        done
    done
}

row_kafka() {
    local count
    count=$(size 500000 200000)
    start_kafka
    kept=${#running[@]}
    for round in $(seq "$rounds"); do
        "$load" topic --brokers "$brokers" --topic "due-$round" >/dev/null
        record kafka librdkafka "$load" produce --brokers "$brokers" --topic "due-$round" --count "$count"
        fresh_punctual "{ type: kafka, brokers: [\"$brokers\"], topic: due-$round }"
        fill "$count"
        record kafka punctual drain
    done
}

row_rabbitmq() {
    local count
    count=$(size 150000 50000)
    start_rabbitmq
    kept=${#running[@]}
    for round in $(seq "$rounds"); do
        "$load" queue --url "$amqp" --name due >/dev/null
        record rabbitmq perf_test perf_test "$(size 12 6)"
        "$load" queue --url "$amqp" --name due >/dev/null
        fresh_punctual "{ type: rabbitmq, url: \"$amqp\", exchange: due, routing_key: due }"
        fill "$count"
        record rabbitmq punctual drain
    done
}

# One producer; 1000 unconfirmed messages as punctual has. The median of its seconds but the first, in which Java starts.
perf_test() { # SECONDS
    local headers=punctual-id=m000000000000000,punctual-route=r0,punctual-attempt=1,punctual-due=1795255200000
    java -cp "$bench/perf_test/*" com.rabbitmq.perf.PerfTest --uri "$amqp" --predeclared --exchange due --routing-key due \
        --producers 1 --consumers 0 --confirm 1000 --flag persistent --flag mandatory --size 100 --time "$1" \
        --message-properties "contentType=application/json,$headers" |
        sed -n 's/.* confirmed: \([0-9]*\) msg.*/\1/p' | tail -n +2 | sort -n |
        awk '{ rate[NR] = $1 } END { printf "{\"rate\":%d}\n", rate[int((NR + 1) / 2)] }'
}

# A route without `flow`, then with a rate above the load: all messages of one flow, and of 1,000 flows that take turns.
row_flow() {
    local count flows
    count=$(size 300000 100000)
    for round in $(seq "$rounds"); do
        for flows in 0 1 1000; do
            fresh_flows '{ type: redis_list, key: due }' "$flows"
            fill "$count" --flows "$flows"
            record 'flow list' "$flows" drain
        done
        for flows in 0 1 1000; do
            stop_to "$kept"
            fresh_receiver
            kept=1
            fresh_flows "{ type: http, url: \"$receiver/due\" }" "$flows"
            fill "$count" --flows "$flows"
            record 'flow http' "$flows" drain
            kept=0
        done
    done
    round=1
    for flows in 0 1 4; do tenants "$flows"; done
}

# 200,000 messages of one tenant that are due at once, beside 100 tenants with 10 messages a second each. INSTANCES: 0 for
# one instance and a route without `flow`.
tenants() { # INSTANCES
    local n
    fresh_flows '{ type: redis_list, key: due }' "$1" 'rate: 100/s, burst: 20'
    for ((n = 1; n < $1; n++)); do start_punctual "$work/punctual.yaml" >"$work/check.log"; done
    record tenants "$1" "$load" tenants --api "$api" --redis "$redis_url" --pid "$punctual" --big 200000 --rate 100 \
        --burst 20 --seconds "$(size 60 30)" --wait 6000
}

# A route without `history`, then with one that is full before a third is drained.
row_history() {
    local count max
    count=$(size 300000 100000)
    for round in $(seq "$rounds"); do
        for max in 0 $((count / 3)); do
            fresh_history '{ type: redis_list, key: due }' "$max"
            fill "$count"
            record 'history list' "$([ "$max" = 0 ] && echo off || echo on)" drain
        done
        for max in 0 $((count / 3)); do
            stop_to "$kept"
            fresh_receiver
            kept=1
            fresh_history "{ type: http, url: \"$receiver/due\" }" "$max"
            fill "$count"
            record 'history http' "$([ "$max" = 0 ] && echo off || echo on)" drain
            kept=0
        done
    done
}

fresh_history() { # SINK MAX
    local settings=''
    [ "$2" = 0 ] || settings="history: { for: 7d, max: $2 }"
    fresh_punctual "$1" 1 "$settings"
}

fresh_flows() { # SINK FLOWS [FLOW]
    local settings=''
    [ "$2" = 0 ] || settings="flow: { ${3:-rate: 1000000/s} }"
    fresh_punctual "$1" 1 "$settings"
}

# Messages due at an even rate, into a list that is read at once.
row_lateness() {
    local rate
    for round in $(seq "$(size 3 1)"); do
        for rate in $(size '1000 5000 10000 20000 40000 80000' '5000 20000'); do
            fresh_punctual '{ type: redis_list, key: due }'
            late_list "lateness $rate" $((rate * $(size 8 5))) $(($(size 8 5) * 1000))
        done
    done
}

# Reads the list while COUNT messages are due over SPREAD ms.
late_list() { # ROW COUNT SPREAD
    "$load" list --redis "$redis_url" --count "$2" >"$work/late" &
    local reader=$!
    schedule --count "$2" --spread "$3" --wait $((3000 + $2 / 25)) >/dev/null
    wait "$reader"
    record "$1" punctual cat "$work/late"
}

# 50,000 messages due within one second.
row_burst() {
    for round in $(seq "$(size 3 1)"); do
        fresh_punctual '{ type: redis_list, key: due }'
        late_list burst 50000 1000
        stop_to "$kept"
        fresh_receiver
        kept=1
        fresh_punctual "{ type: http, url: \"$receiver/due\" }"
        late_http 50000
        kept=0
        peers burst burst 50000
    done
}

late_http() { # COUNT
    local base
    base=$(schedule --count "$1" --spread 1000 --wait 4000 | sed 's/.*"base":\([0-9]*\).*/\1/')
    "$load" steady --redis "$redis_url" --pid "$punctual" --base "$base" --spread 1000 >/dev/null
    record burst punctual-http curl -fs "$receiver/stats"
}

# What Redis and punctual need for 5,000 messages a second, of one route and of 100.
row_economy() {
    local routes base seconds
    seconds=$(size 10 6)
    for round in $(seq "$(size 3 1)"); do
        for routes in 1 100; do
            fresh_punctual '{ type: redis_list, key: due }' "$routes"
            base=$(schedule --routes "$routes" --count $((seconds * 5000)) --spread $((seconds * 1000)) --wait 4000 |
                sed 's/.*"base":\([0-9]*\).*/\1/')
            record "economy $routes" punctual "$load" steady --redis "$redis_url" --pid "$punctual" --routes "$routes" \
                --base "$base" --spread $((seconds * 1000))
        done
    done
}

row_memory() {
    local bytes who count
    # Of a power of two, on which the size of Redis' hash tables depends, both are the same share.
    count=$(size 100000 25000)
    for bytes in 16 100 1000; do
        fresh_punctual '{ type: redis_list, key: due }'
        record "memory $bytes" punctual \
            grown "$count" schedule --wait 3600000 --spread 3600000 --size "$bytes" --count "$count"
        for who in bullmq asynq; do
            fresh_redis
            record "memory $bytes" "$who" grown "$count" "$who" schedule "$count" "$bytes"
        done
    done
}

# By how many bytes for each of COUNT messages Redis grows while COMMAND runs.
grown() { # COUNT COMMAND...
    local before count=$1
    shift
    before=$(redis_value memory used_memory)
    "$@" >/dev/null
    awk -v more=$(($(redis_value memory used_memory) - before)) -v count="$count" \
        'BEGIN { printf "{\"bytes\":%.1f}\n", more / count }'
}

redis_value() { # SECTION NAME
    redis-cli -p "$redis" INFO "$1" | tr -d '\r' | sed -n "s/^$2://p"
}

# Commands each second without any message, all at once, each with a Redis of its own.
row_idle() {
    local who seconds
    local -A ports before
    seconds=$(size 60 31)
    for who in punctual bullmq asynq; do
        if [ "$who" = punctual ]; then
            fresh_punctual '{ type: redis_list, key: due }'
        else
            mkdir "$work/redis-$who"
            start_redis --dir "$work/redis-$who"
            "idle_$who"
        fi
        ports[$who]=$redis
    done
    # Beyond their starts.
    sleep 3
    for who in "${!ports[@]}"; do before[$who]=$(commands "${ports[$who]}"); done
    sleep "$seconds"
    for who in "${!ports[@]}"; do
        # One is the first of the two questions.
        record idle "$who" awk -v more=$(($(commands "${ports[$who]}") - before[$who] - 1)) -v seconds="$seconds" \
            'BEGIN { printf "{\"per_second\":%.2f}\n", more / seconds }'
    done
}

idle_bullmq() {
    node "$bench/bullmq/bench.js" "$redis" idle >"$work/bullmq.log" 2>&1 &
    running+=($!)
}

idle_asynq() {
    "$bench/asynq" "$redis" idle >"$work/asynq.log" 2>&1 &
    running+=($!)
}

commands() { # PORT
    redis=$1 redis_value stats total_commands_processed
}
