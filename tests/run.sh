#!/usr/bin/env bash
# Everything that must hold before a change lands, on a fresh Debian machine with Rust: installs what is
# missing, then formatting, lints, all tests on real servers, documentation. Goes on after a failure, so that
# one run shows all of them; exit 0 only when nothing failed. Arguments go to `cargo test`.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1

# A shell that is no login shell may not have rustup's directory on its PATH.
command -v cargo >/dev/null || PATH="$PATH:${CARGO_HOME:-$HOME/.cargo}/bin"
if ! command -v cargo >/dev/null; then
    echo "run.sh: cargo is missing: install Rust first, https://rustup.rs" >&2
    exit 1
fi

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

# What cargo builds with; the tests start redis-server and rabbitmq-server.
step packages .ci/need build redis-server=redis-server /usr/lib/rabbitmq/bin/rabbitmq-server=rabbitmq-server

# The tests start Apache Kafka from its jars, unless PUNCTUAL_TEST_KAFKA=host:port names a broker. Without either they
# make do with librdkafka's mock of one, except in CI.
kafka() {
    .ci/need java=default-jre-headless mvn=maven || return
    # Only as a whole: a fetch that was cut off must not look like one.
    rm -rf target/kafka
    mvn -q -B -f tests/kafka/pom.xml dependency:copy-dependencies -DoutputDirectory="$PWD/target/kafka/new" &&
        mv target/kafka/new target/kafka/libs
}
if [ -n "${PUNCTUAL_TEST_KAFKA:-}" ]; then
    summary+=("ok      kafka: the broker at $PUNCTUAL_TEST_KAFKA; tests that stop one need the jars")
elif [ -d target/kafka/libs ] && [ target/kafka/libs -nt tests/kafka/pom.xml ] && command -v java >/dev/null; then
    summary+=("ok      kafka (fetched before)")
elif [ "${CI:-}" = true ]; then
    step kafka kafka
else
    kafka || skip kafka "it cannot be fetched; its tests run on librdkafka's mock cluster or not at all"
fi

# Whether cargo has SUBCOMMAND, if need be after rustup has installed COMPONENT.
component() { # SUBCOMMAND COMPONENT
    cargo "$1" --version >/dev/null 2>&1 ||
        { command -v rustup >/dev/null && rustup component add "$2" && cargo "$1" --version >/dev/null; }
}
if component fmt rustfmt; then
    step fmt cargo fmt --all --check
else
    skip fmt "rustfmt is not installed, and rustup cannot add it"
fi
if component clippy clippy; then
    step clippy cargo clippy --locked --all-targets -- -D warnings
else
    skip clippy "clippy is not installed, and rustup cannot add it"
fi
step test cargo test --locked --no-fail-fast "$@"
step doc env RUSTDOCFLAGS="-D warnings" cargo doc --locked --no-deps

echo "=== summary"
printf '%s\n' "${summary[@]}"
exit "$failed"
