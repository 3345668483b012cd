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

# ring is compiled with cc; the tests start redis-server.
step packages .ci/need cc=build-essential redis-server=redis-server

if cargo fmt --version >/dev/null 2>&1; then
    step fmt cargo fmt --all --check
else
    skip fmt "rustfmt is not installed (rustup component add rustfmt)"
fi
if cargo clippy --version >/dev/null 2>&1; then
    step clippy cargo clippy --locked --all-targets -- -D warnings
else
    skip clippy "clippy is not installed (rustup component add clippy)"
fi
step test cargo test --locked --no-fail-fast "$@"
step doc env RUSTDOCFLAGS="-D warnings" cargo doc --locked --no-deps

echo "=== summary"
printf '%s\n' "${summary[@]}"
exit "$failed"
