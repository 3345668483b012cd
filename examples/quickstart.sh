#!/usr/bin/env bash
# Runs punctual with one command, on a Debian machine with Rust: builds it and runs `punctual demo`. The demo starts
# punctual with a private Redis and a receiver, shows ten messages arriving with their lateness, and serves until
# Ctrl-C.
#
#   examples/quickstart.sh [--once]
#
# With --once, or without a terminal, it stops when all messages have arrived. Exit 0, or 1 if a message did not arrive.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

fail() { # TEXT...
    echo "quickstart.sh: $*" >&2
    exit 1
}

case "$#:${1:-}" in
    0:* | 1:--once) ;;
    *) echo "usage: quickstart.sh [--once]" >&2; exit 2 ;;
esac

command -v cargo >/dev/null || PATH="$PATH:${CARGO_HOME:-$HOME/.cargo}/bin"
command -v cargo >/dev/null || fail "cargo is missing: install Rust first, https://rustup.rs"
# An older cargo would fail at the lock file or at the edition, with an error that does not name the cause.
required=$(sed -n 's/^rust-version = "\(.*\)"$/\1/p' "$root/Cargo.toml")
version=$(cd "$root" && cargo --version) || fail "cargo does not run: install Rust $required or later, https://rustup.rs"
found=$(cut -d' ' -f2 <<<"$version")
[ "$(printf '%s\n' "$required" "$found" | sort -V | head -n1)" = "$required" ] ||
    fail "Rust $found is too old: $required or later is needed, \`rustup update\` or https://rustup.rs"
"$root/.ci/need" build redis-server=redis-server ||
    fail "packages are missing (see above): install them, or run this as root, or with sudo installed"
echo "building (a few minutes the first time)"
# Builds only the program, without optimisation: this takes half the time, and ten messages do not need optimisation. Where nothing
# was built before, it also leaves out files for the next build and line numbers for backtraces, like tests/run.sh.
(cd "$root" && [ -d "${CARGO_TARGET_DIR:-target}/debug/incremental" ]) || export CARGO_INCREMENTAL=0 CARGO_PROFILE_DEV_DEBUG=0
(cd "$root" && cargo build --locked --bin punctual) ||
    fail "the build failed (see above): it downloads crates from crates.io"
built=$(cd "$root" && cd "${CARGO_TARGET_DIR:-target}" && pwd)/debug
exec "$built/punctual" demo "$@"
