#!/usr/bin/env bash
# All tests, on real servers, on a fresh Debian machine with Rust: installs what is missing. Goes on after a failure, so that
# one run shows all of them; exit 0 only when nothing failed. Other arguments go to `cargo test`.
#
# `tests/run.sh --lint` checks everything else that must hold before a change lands: formatting, lints, licences, the
# documentation of the code. `.ci/run` runs both.
#
# `tests/run.sh --full` runs each test in its long form: longer outages, more messages, and also the slow tests, which the plain
# run leaves to CI. The plain run has a short form of each property.
#
# `tests/run.sh --matrix` runs nothing but the tests of RabbitMQ, of the store, of rights and of fail-overs, on each version
# that is supported: RabbitMQ 3.10, 4.0 and 4.3, Redis 6.2, 7.0 and 8.0, Valkey 8 and 9. It needs root rights, for the roots of other
# releases of Debian where the newer servers run.
#
# `tests/run.sh --fuzz [MINUTES]` runs nothing but the parsers, on mutations of `tests/corpus/`, for 30 minutes in all unless
# told otherwise. An input that breaks one is saved there; the ordinary tests try it from then on.
#
# `tests/run.sh --mutants [lua|rust]` tests the tests: it makes edits of the scripts in `lua/` and of the code, and runs the tests
# on each. Scripts take an hour or two. 700 edits of the code take two hours, all 4,999 about fourteen; PUNCTUAL_MUTANTS=700 limits
# their number. docs/reliability.md has the results.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1

# A shell that is no login shell may not have rustup's directory on its PATH.
command -v cargo >/dev/null || PATH="$PATH:${CARGO_HOME:-$HOME/.cargo}/bin"
if ! command -v cargo >/dev/null; then
    echo "run.sh: cargo is missing: install Rust first, https://rustup.rs" >&2
    exit 1
fi

# Ctrl-C also ends what runs in the background, which does not take it.
trap 'trap "" TERM; kill 0; exit 130' INT

summary=()
failed=0

step() { # NAME COMMAND...
    local name=$1 started=$SECONDS
    shift
    echo "=== $name: $*"
    if "$@"; then
        summary+=("ok      $name ($((SECONDS - started)) s)")
    else
        summary+=("FAILED  $name ($((SECONDS - started)) s)")
        failed=1
    fi
}

skip() { # NAME REASON
    echo "=== $1: skipped, $2"
    summary+=("skipped $1: $2")
}

# Installs the tools of some tests. Without them these tests are left out; in CI that is a failure.
optional() { # NAME REASON COMMAND...
    local name=$1 reason=$2
    shift 2
    if [ "${CI:-}" = true ]; then
        step "$name" "$@"
    elif "$@"; then
        summary+=("ok      $name")
    else
        skip "$name" "$reason"
    fi
}

# What cargo builds with; the tests start redis-server and rabbitmq-server.
step packages .ci/need build redis-server=redis-server /usr/lib/rabbitmq/bin/rabbitmq-server=rabbitmq-server

optional "deploy tools" "they cannot be installed; the tests of deploy/ do not run" .ci/need promtool=prometheus systemd-analyze=systemd

finish() {
    echo "=== summary"
    printf '%s\n' "${summary[@]}"
    exit "$failed"
}

# Whether cargo has SUBCOMMAND, if need be after rustup has installed COMPONENT.
component() { # SUBCOMMAND COMPONENT
    cargo "$1" --version >/dev/null 2>&1 ||
        { command -v rustup >/dev/null && rustup component add "$2" && cargo "$1" --version >/dev/null; }
}
# A program without connectors and spans, and so without their libraries; in CI also with each alone.
features() {
    local feature connectors="" failed=0
    if [ "${CI:-}" = true ]; then
        connectors=$(sed -n 's/^default = \[\(.*\)\]$/\1/p' Cargo.toml | tr -d '",')
        [ -n "$connectors" ] || { echo "Cargo.toml has no line of default features" >&2; return 1; }
        connectors+=" otlp"
    fi
    for feature in $connectors ""; do
        cargo clippy --locked --lib --bins --no-default-features --features "$feature" -- -D warnings || failed=1
    done
    return "$failed"
}
lint() {
    if component fmt rustfmt; then
        step fmt cargo fmt --all --check
    else
        skip fmt "rustfmt is not installed, and rustup cannot add it"
    fi
    if component clippy clippy; then
        step clippy cargo clippy --locked --all-targets -- -D warnings
        step features features
    else
        skip clippy "clippy is not installed, and rustup cannot add it"
    fi
    # Licences, sources and duplicate versions of what is compiled in (deny.toml). Known advisories only where their database is:
    # it comes over the network, `cargo deny fetch`.
    if ! cargo deny --version >/dev/null 2>&1; then
        skip deny "cargo-deny is not installed (cargo install --locked cargo-deny)"
    elif ! cargo fetch --locked; then
        skip deny "it wants the crates of all systems, and they cannot be fetched"
    else
        step deny cargo deny --locked --offline check bans licenses sources
        if compgen -G "${CARGO_HOME:-$HOME/.cargo}/advisory-dbs/*" >/dev/null; then
            step advisories cargo deny --locked --offline check advisories
        else
            skip advisories "their database is not there (cargo deny fetch db)"
        fi
    fi
    step doc env RUSTDOCFLAGS="-D warnings" cargo doc --locked --no-deps
}
if [ "${1:-}" = --lint ]; then
    lint
    finish
fi

# Each test of RabbitMQ has its name in its path, as source, sink or sink contract.
matrix() {
    local roots=$PWD/target/matrix enter=$PWD/tests/matrix/enter
    local tests=(cargo test --locked --no-fail-fast --test it -- --include-ignored)
    step roots tests/matrix/roots.sh
    step build cargo test --locked --test it --no-run
    step "RabbitMQ 3.10" "${tests[@]}" rabbitmq
    step "RabbitMQ 4.0" env PUNCTUAL_TEST_RABBITMQ="$enter $roots/trixie" "${tests[@]}" rabbitmq
    step "RabbitMQ 4.3" env PUNCTUAL_TEST_RABBITMQ="$enter $roots/forky" "${tests[@]}" rabbitmq
    # Further fail-over tests, of clusters, are below the same path.
    local redis=(store:: program::rights program::failover)
    # This build has no TLS, and CLUSTER has fewer commands.
    step "Redis 6.2" env PUNCTUAL_TEST_REDIS="$roots/redis-6.2/redis-server" \
        "${tests[@]}" "${redis[@]}" --skip take_tls_only --skip failover::cluster
    step "Redis 7.0" "${tests[@]}" "${redis[@]}"
    step "Redis 8.0" env PUNCTUAL_TEST_REDIS="$enter $roots/trixie redis-server" "${tests[@]}" "${redis[@]}"
    step "Valkey 8" env PUNCTUAL_TEST_REDIS="$enter $roots/trixie valkey-server" "${tests[@]}" "${redis[@]}"
    step "Valkey 9" env PUNCTUAL_TEST_REDIS="$enter $roots/forky valkey-server" "${tests[@]}" "${redis[@]}"
}
if [ "${1:-}" = --matrix ]; then
    matrix
    finish
fi

# The target runs on its own, with 8 GiB of address space. What it was given last is in target/fuzz/ until it ends well: a stack
# overflow and an endless loop leave no other trace.
explore() { # TEST SECONDS
    (
        ulimit -v $((8 * 1024 * 1024))
        PUNCTUAL_FUZZ_SECONDS=$2 timeout --kill-after=5 $(($2 + 60)) \
            cargo test --locked --lib --quiet -- --ignored --exact --nocapture "$1"
    ) && return
    local last name
    for last in target/fuzz/*; do
        [ -f "$last" ] || continue
        name=$(basename "$last")
        mv "$last" "tests/corpus/$name/died-$(sha256sum "$last" | cut -c1-16)" && ls "tests/corpus/$name"/died-*
    done
    return 1
}
fuzz() { # MINUTES
    local tests test seconds
    step build cargo test --locked --lib --no-run
    mapfile -t tests < <(cargo test --locked --lib --quiet -- --ignored --list fuzz:: | sed -n 's/: test$//p')
    if [ ${#tests[@]} = 0 ] || ! [ "$1" -gt 0 ] 2>/dev/null; then
        echo "run.sh: no target to run, or \`$1\` is no number of minutes" >&2
        exit 2
    fi
    rm -rf target/fuzz
    seconds=$(($1 * 60 / ${#tests[@]}))
    for test in "${tests[@]}"; do
        step "$test" explore "$test" "$seconds"
    done
}
if [ "${1:-}" = --fuzz ]; then
    fuzz "${2:-30}"
    finish
fi

# Edits of the files in .cargo/mutants.toml. PUNCTUAL_MUTANTS is their maximum number.
mutants_of_rust() {
    cargo mutants --version >/dev/null 2>&1 || cargo install --locked cargo-mutants || return
    tests/mutants/rust.py --sample "${PUNCTUAL_MUTANTS:-0}"
}
mutants() { # KIND
    step python .ci/need python3=python3
    [ "$1" = rust ] || step "mutants of lua/" tests/mutants/lua.py
    [ "$1" = lua ] || step "mutants of src/" mutants_of_rust
}
if [ "${1:-}" = --mutants ]; then
    mutants "${2:-both}"
    finish
fi

# The tests start Apache Kafka from its jars, unless PUNCTUAL_TEST_KAFKA=host:port names a broker.
kafka() {
    .ci/need java=default-jre-headless mvn=maven || return
    # Only as a whole: a fetch that was cut off must not look like one.
    rm -rf target/kafka
    mvn -q -B -f tests/kafka/pom.xml dependency:copy-dependencies -DoutputDirectory="$PWD/target/kafka/new" &&
        mv target/kafka/new target/kafka/libs && { tests/kafka/archive.sh || echo "brokers start without an archive of classes"; }
}
# Producers in other languages.
python_client() {
    local venv=target/clients/python
    [ -x $venv/bin/pip ] || python3 -m venv $venv 2>/dev/null ||
        { .ci/need python3=python3 /usr/share/doc/python3-venv=python3-venv && python3 -m venv --clear $venv; } || return
    $venv/bin/pip install --quiet --disable-pip-version-check -r tests/clients/python/requirements.txt \
        -r examples/clients/python/requirements.txt -r examples/testing/python/requirements.txt
}
node_client() {
    .ci/need node=nodejs npm=npm && mkdir -p target/clients/node && cp tests/clients/node/package.json target/clients/node &&
        npm install --prefix target/clients/node --silent --no-audit --no-fund
}
go_client() {
    .ci/need go=golang-go && (cd tests/clients/go && go build -o ../../../target/clients/go/ .) &&
        (cd examples/clients/go && go build -o ../../../target/clients/go/ .)
}
amqp_client() {
    .ci/need python3=python3 || return
    python3 -c 'import ensurepip' 2>/dev/null || .ci/need /usr/share/python-wheels=python3-venv || return
    [ -x target/clients/amqp/bin/pip ] || python3 -m venv --clear target/clients/amqp || return
    target/clients/amqp/bin/pip install --quiet --disable-pip-version-check -r tests/clients/amqp/requirements.txt
}
java_client() {
    .ci/need javac=default-jdk-headless mvn=maven || return
    # Only as a whole: a fetch that was cut off must not look like one.
    rm -rf target/clients/java
    mvn -q -B -f tests/clients/java/pom.xml dependency:copy-dependencies -DoutputDirectory="$PWD/target/clients/java/new" &&
        javac -cp 'target/clients/java/new/*' -d target/clients/java/new tests/clients/java/Publish.java &&
        mv target/clients/java/new target/clients/java/libs &&
        mvn -q -B -f examples/clients/java/pom.xml dependency:copy-dependencies -DoutputDirectory="$PWD/target/clients/java/new" &&
        mv target/clients/java/new target/clients/java/schedule &&
        mvn -q -B dependency:copy -Dartifact="$(<examples/testing/java/junit)" -DoutputDirectory="$PWD/target/clients/java/junit"
}
# A browser for the tests of the console: Debian's, driven by the packages of tests/console/package-lock.json.
console() {
    .ci/need node=nodejs npm=npm chromium=chromium || return
    local packages=target/console
    # Only as a whole: an installation that was cut off must not look like one.
    cmp -s tests/console/package-lock.json $packages/package-lock.json && [ -d $packages/node_modules ] && return
    rm -rf $packages $packages.new && mkdir -p $packages.new && cp tests/console/package.json tests/console/package-lock.json $packages.new &&
        npm ci --prefix $packages.new --silent --no-audit --no-fund && mv $packages.new $packages
}
# All of that, beside the build: it waits for the network, and gets the time that the build leaves.
fetch() {
    renice -n 19 "$BASHPID" >/dev/null
    if [ -n "${PUNCTUAL_TEST_KAFKA:-}" ]; then
        summary+=("ok      kafka: the broker at $PUNCTUAL_TEST_KAFKA; tests that stop one need the jars")
    elif [ -d target/kafka/libs ] && [ target/kafka/libs -nt tests/kafka/pom.xml ] && command -v java >/dev/null; then
        summary+=("ok      kafka (fetched before)")
    else
        optional kafka "it cannot be fetched; its tests run on librdkafka's mock cluster or not at all" kafka
    fi
    for language in python node go amqp java; do
        optional "client $language" "it cannot be installed; its tests do not run" "${language}_client"
    done
    optional console "the browser cannot be installed; its tests do not run" console
    printf '%s\n' "${summary[@]}" >target/fetch/summary
    exit "$failed"
}
rm -rf target/fetch && mkdir -p target/fetch
(summary=() failed=0; fetch) >target/fetch/log 2>&1 </dev/null &
fetching=$!
fetched() {
    local lines code=0
    wait "$fetching" || code=$?
    cat target/fetch/log
    mapfile -t lines <target/fetch/summary
    summary+=("${lines[@]}")
    return "$code"
}

# Most tests wait: for servers, for clocks, and for their turn. Those that measure run one at a time (`alone`), those with many
# servers in threes (`heavy`). So six for each core leave little of its time; with eight the run is not shorter, and more tests fail
# beside others.
threads=$((6 * $(nproc)))
export RUST_TEST_THREADS=${RUST_TEST_THREADS:-$((threads < 12 ? threads : 12))}

# On a busy machine a test that measures may fail beside others. What failed is run once more by itself, after the tests of the
# library; the summary names it.
again() { # LOG OF cargo test
    local names name
    mapfile -t names < <(sed -n 's/^test \(.*\) \.\.\. FAILED$/\1/p' "$1" | sort -u)
    [ ${#names[@]} -ge 1 ] && [ ${#names[@]} -le 12 ] || return 1
    for name in "${names[@]}"; do summary+=("again   $name"); done
    while kill -0 "$running" 2>/dev/null; do sleep 1; done
    RUST_TEST_THREADS=1 cargo test --locked --no-fail-fast -- --exact --include-ignored "${names[@]}"
}
tests() { # ARGUMENTS OF cargo test
    cargo test --locked --no-fail-fast "$@" 2>&1 | tee target/tests.log
    [ "${PIPESTATUS[0]}" = 0 ] || again target/tests.log
}
# The tests of the library need no servers. They get the time that the others leave.
library() {
    local code=0
    wait "$running" || code=$?
    cat target/library.log
    [ "$code" = 0 ] || again target/library.log
}

# In CI, and where nothing was built before, this build is often the only one. Without files for the next one and line numbers for
# backtraces, punctual itself takes 163 instead of 261 s. After a build by cargo alone, the run has both, because cargo shares its
# results.
if [ "${CI:-}" = true ] || [ ! -d target/debug/incremental ]; then
    export CARGO_INCREMENTAL=0 CARGO_PROFILE_DEV_DEBUG=0
fi
step build cargo test --locked --no-run
step fetch fetched
running=""
if [ $# = 0 ]; then
    RUST_TEST_THREADS=$(nproc) nice -n 19 cargo test --locked --no-fail-fast --lib --bins >target/library.log 2>&1 </dev/null &
    running=$!
fi

# tests/it/support/scale.rs has the long forms. The ignored tests are the slow ones and the campaign.
if [ "${1:-}" = --full ]; then
    shift
    step chart deploy/helm/check.sh
    [[ " $* " == *" -- "* ]] || set -- "$@" --
    export PUNCTUAL_TEST_FULL=1 PUNCTUAL_SIMULATION=10 PROPTEST_CASES=500
    step "test --full" tests "$@" --include-ignored
elif [ -n "$running" ]; then
    step test tests --test '*'
    step "test of the library" library
    step "test of the comments" cargo test --locked --doc
else
    step test tests "$@"
fi
# Most have many servers, so fewer run at once.
slow() { RUST_TEST_THREADS=$((2 * $(nproc))) tests --test it -- --ignored --skip campaign::; }
[ "${CI:-}" != true ] || [ -z "$running" ] || step "slow tests" slow
# Two minutes of the fault campaign, with a plan that is the same in every run: CI alone, which has the time.
if [ "${CI:-}" = true ]; then
    step campaign env PUNCTUAL_CAMPAIGN_PROGRAM="$PWD/target/debug/punctual" tests/campaign.sh --minutes 2 --seed 1 \
        --only kill,terminate,stop,endpoint,script-flush,client-kill,memory,exchange,fail-over
fi
[ -x target/helm/helm ] || skip chart "helm is not installed; deploy/helm/check.sh does that"
finish
