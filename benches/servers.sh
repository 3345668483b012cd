# Sourced by run.sh: what is built and fetched, and the servers beside those of examples/stage.sh.

bench=$root/target/bench

# Sets $load, the program of loads and baselines, and $built.
build_load() {
    "$root/.ci/need" build redis-server=redis-server redis-cli=redis-tools curl=curl python3=python3
    echo "building (a few minutes the first time)"
    cd "$root"
    load=$(cargo build --release --locked --bin punctual --bench load --message-format=json-render-diagnostics |
        sed -n 's/.*"executable":"\([^"]*\/load-[^"]*\)".*/\1/p')
    built=$(cd "${CARGO_TARGET_DIR:-target}" && pwd)/release
}

# Besides, all that punctual is compared with.
build_all() {
    "$root/.ci/need" java=default-jre-headless mvn=maven node=nodejs npm=npm go=golang-go \
        "$rabbitmq/rabbitmq-server=rabbitmq-server"
    build_load
    mkdir -p "$bench/bullmq"
    jars tests/kafka/pom.xml target/kafka/libs
    jars benches/perf_test/pom.xml target/bench/perf_test
    # Beside the modules, where the program finds them.
    cp benches/bullmq/* "$bench/bullmq"
    # Not `npm ci`: that refuses a lock without the optional packages of every other system.
    npm install --prefix "$bench/bullmq" --no-save --silent --no-audit --no-fund
    (cd benches/asynq && go build -o "$bench/" .) && mv "$bench/bench" "$bench/asynq"
}

# Fetches what a pom names, as a whole or not at all.
jars() { # POM DIRECTORY
    [ -d "$2" ] && [ "$2" -nt "$1" ] && return
    rm -rf "$2" "$2.new"
    mvn -q -B -f "$1" dependency:copy-dependencies -DoutputDirectory="$root/$2.new"
    mv "$2.new" "$2"
}

versions() {
    own_versions
    rustc --version
    echo "RabbitMQ $(basename "$(dirname "$(dirname "$(readlink -f "$rabbitmq/rabbitmq-server")")")")"
    (cd "$root" && ls target/kafka/libs/kafka_2* target/bench/perf_test/perf-test* | xargs -n 1 basename)
    java -version 2>&1 | head -n 1
    echo "node $(node --version)"
    (cd "$bench/bullmq" && npm ls --depth 0 2>/dev/null | sed -n 's/.*── //p')
    (cd "$root/benches/asynq" && go version && go list -m github.com/hibiken/asynq)
    cargo tree --manifest-path "$root/Cargo.toml" --locked --depth 1 --prefix none -e normal |
        grep -E '^(hyper|rdkafka|lapin|redis|reqwest) '
    machine
}

own_versions() {
    echo "punctual $("$built/punctual" --version | cut -d' ' -f2), commit $(git -C "$root" describe --always --dirty)"
    redis-server --version | cut -d' ' -f1-3
}

machine() {
    uname -sr
    echo "$(nproc) cores, $(sed -n 's/^model name.*: //p' /proc/cpuinfo | head -n 1)"
    awk '/MemTotal/ { print int($2 / 1048576) " GiB of memory" }' /proc/meminfo
    echo "load average before: $(cut -d' ' -f1-3 /proc/loadavg)"
}

# Stops the servers that were started last, until as many as N run.
stop_to() { # N
    local pid
    while [ ${#running[@]} -gt "$1" ]; do
        pid=${running[-1]}
        unset 'running[-1]'
        kill -TERM "$pid" 2>/dev/null || true
        wait "$pid" 2>/dev/null || true
    done
}

# Servers that stay from one measurement to the next: the broker of a row.
kept=0
stop_all() {
    kept=0
    stop_to 0
}

# Into $redis_url an empty Redis with an append-only file; stops that of the measurement before.
fresh_redis() {
    stop_to "$kept"
    rm -rf "$work/redis"
    mkdir "$work/redis"
    # No rewrite of the append-only file in some measurements and not in others.
    start_redis --dir "$work/redis" --auto-aof-rewrite-percentage 0
    redis_url=redis://127.0.0.1:$redis
}

# An empty Redis and punctual, whose routes r0, r1, ... lead to SINK.
fresh_punctual() { # SINK [ROUTES [SETTINGS]]
    fresh_redis
    fresh_routes "url: \"$redis_url/0\"" "$@"
}

# A cluster without replicas; $cluster is its setting, $redis_urls are its servers.
fresh_cluster() { # PRIMARIES
    local n bus servers=()
    redis_urls=()
    for ((n = 0; n < $1; n++)); do
        mkdir -p "$work/redis/$n"
        free_port bus
        start_redis --dir "$work/redis/$n" --cluster-enabled yes --cluster-port "$bus"
        servers+=("127.0.0.1:$redis")
        redis_urls+=("redis://127.0.0.1:$redis")
    done
    redis-cli --cluster create "${servers[@]}" --cluster-yes >"$work/cluster.log"
    printf -v cluster '"%s", ' "${redis_urls[@]}"
    cluster="cluster: { urls: [${cluster%, }] }"
}

# punctual, whose routes r0, r1, ... lead to SINK. REDIS: the settings of its Redis.
fresh_routes() { # REDIS SINK [ROUTES [SETTINGS]]
    local n
    {
        echo "redis: { $1 }"
        echo "sinks: { out: $2 }"
        echo "route_defaults: { ${4:-} }"
        echo "routes:"
        for ((n = 0; n < ${3:-1}; n++)); do echo "  r$n: { sink: out }"; done
    } >"$work/punctual.yaml"
    start_punctual "$work/punctual.yaml" >"$work/check.log"
}

# A receiver of HTTP requests at $receiver.
fresh_receiver() {
    rm -f "$work/receiver"
    "$load" receive >"$work/receiver" &
    running+=($!)
    await 5 $! receiver grep -q . "$work/receiver"
    receiver=$(head -n 1 "$work/receiver")
}

# Kafka with one node; its address is in $brokers.
start_kafka() {
    local port controller
    free_port port
    free_port controller
    brokers=127.0.0.1:$port
    cat >"$work/kafka.properties" <<PROPERTIES
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:$controller
listeners=PLAINTEXT://$brokers,CONTROLLER://127.0.0.1:$controller
advertised.listeners=PLAINTEXT://$brokers
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT
log.dirs=$work/kafka
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
auto.create.topics.enable=false
PROPERTIES
    local java=(java -Xmx512m -cp "$root/target/kafka/libs/*")
    "${java[@]}" kafka.tools.StorageTool format -t AAAAAAAAQACAAAAAAAAAAQ -c "$work/kafka.properties" >"$work/kafka.log" 2>&1
    "${java[@]}" kafka.Kafka "$work/kafka.properties" >>"$work/kafka.log" 2>&1 &
    running+=($!)
    await 60 $! Kafka listens "$port"
}
