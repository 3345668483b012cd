#!/usr/bin/env bash
# Installs the packages of deploy/release.sh into fresh roots: Debian 12 and 13 the .deb, a third one the .rpm. In each: install,
# edit the file, run as the user of the unit in its sandbox, upgrade, remove, purge. Then the tarball, in Debian 11 with its
# glibc 2.31 and by hand in Debian 12, and the image, unpacked. Last the files for aarch64, if the release has them: the same
# content as those for x86_64, and the program says its version if qemu-aarch64-static is installed.
#
#   tests/packages.sh [DIRECTORY OF THE RELEASE]
#
# Needs root. Exit 0 if everything was as it should be.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

version=$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml | head -n1)
release=$(cd "${1:-target/release-$version}" && pwd)
roots=$PWD/target/packages
token=0123456789abcdef
mkdir -p "$roots"
.ci/need mmdebstrap=mmdebstrap bwrap=bubblewrap rpm=rpm cpio=cpio readelf=binutils umoci=umoci curl=curl redis-cli=redis-tools

fail() { echo "packages.sh: $*" >&2; exit 1; }

# Servers that run, by process id: a failure leaves none behind.
started=()
trap '[ ${#started[@]} = 0 ] || kill "${started[@]}" 2>/dev/null || true' EXIT
step() { echo "--- $*"; }

# A root of a release of Debian, made once.
base() { # SUITE
    local keys=/usr/share/keyrings/debian-archive-keyring.gpg mirror
    mirror=$(apt-get indextargets --format '$(SITE)' 'Identifier: Packages' | grep -m 1 '/debian/*$') || fail "no mirror of Debian"
    [ -d "$roots/$1" ] && return
    mmdebstrap --quiet --variant=minbase --include=ca-certificates,systemd --aptopt='Acquire::Check-Valid-Until "false"' \
        --aptopt='APT::Install-Recommends "false"' "$1" "$roots/$1.new" "deb [signed-by=$keys] $mirror $1 main"
    printf '#!/bin/sh\nexit 101\n' >"$roots/$1.new/usr/sbin/policy-rc.d"
    chmod 755 "$roots/$1.new/usr/sbin/policy-rc.d"
    mv "$roots/$1.new" "$roots/$1"
}

fresh() { # SUITE: a copy of its root in $root
    root=$roots/here
    rm -rf "$root"
    cp -a "$roots/$1" "$root"
    cp -L /etc/resolv.conf "$root/etc/resolv.conf"
    : >>"$root/etc/hosts"
}

# Runs in the root, with /proc and /dev for this command alone.
inside() {
    R=$root unshare -m sh -c 'mount --bind /etc/hosts "$R/etc/hosts" && mount -t proc proc "$R/proc" && mount --bind /dev "$R/dev" && exec chroot "$R" "$@"' sh \
        env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin DEBIAN_FRONTEND=noninteractive "$@" </dev/null
}

# Becomes a command with the user and the sandbox of the unit: only /var/lib/punctual and a /tmp of its own can be written,
# no capability, no new rights. Not the filter of system calls, which needs a running systemd.
as_unit() {
    R=$root C=$roots/credentials exec unshare --mount --ipc --uts sh -c '
        mount --bind "$R" "$R" && mount --bind "$R/var/lib/punctual" "$R/var/lib/punctual" &&
            mount -o remount,bind,ro "$R" && mount -t tmpfs none "$R/tmp" && mount -t tmpfs none "$R/run" &&
            mkdir -p "$R/run/credentials/punctual.service" &&
            mount --bind "$C" "$R/run/credentials/punctual.service" &&
            mount -t proc proc "$R/proc" && mount --bind /dev "$R/dev" &&
            exec chroot "$R" "$@"' sh \
        setpriv --reuid=punctual --regid=punctual --clear-groups --bounding-set=-all --inh-caps=-all --no-new-privs \
        env -i PATH=/usr/bin:/bin PUNCTUAL_DEFAULT__REDIS__DATA_DIR=/var/lib/punctual HOME=/ "$@"
}

# The credentials of the unit, as systemd makes them of /etc/punctual/secrets.
credentials() {
    rm -rf "$roots/credentials"
    install -d -m 755 "$roots/credentials"
    for file in "$root"/etc/punctual/secrets/*; do
        install -m 400 -o "$(stat -c %u "$root/var/lib/punctual")" "$file" "$roots/credentials/secrets_$(basename "$file")"
    done
}

# An operator's edit of the file that the package brought.
edit() {
    printf %s "$token" >"$root/etc/punctual/secrets/token"
    sed -i -e "s|listen: 127.0.0.1:8080|listen: 127.0.0.1:$port|" -e 's|^  # auth:|  auth:|' \
        "$root/etc/punctual/punctual.yaml"
    printf 'sinks: { jobs: { type: redis_list, key: jobs } }\nroutes: { nightly: { sink: jobs } }\n' >>"$root/etc/punctual/punctual.yaml"
    grep -q "auth: { tokens:" "$root/etc/punctual/punctual.yaml" || fail "the file has no line for a token"
}

call() { curl -s --fail-with-body --max-time 5 -H "Authorization: Bearer $token" "http://127.0.0.1:$port$1" "${@:2}"; }

# Serves, delivers a message with this payload, and stops.
serve() { # PAYLOAD
    local pid
    credentials
    (as_unit /usr/bin/punctual check -c /etc/punctual/punctual.yaml)
    (as_unit /usr/bin/punctual serve -c /etc/punctual/punctual.yaml) >"$roots/serve.log" 2>&1 </dev/null &
    pid=$!
    started+=("$pid")
    for _ in {1..150}; do
        call /readyz >/dev/null 2>&1 && break
        kill -0 "$pid" 2>/dev/null || fail "punctual ended: $(cat "$roots/serve.log")"
        sleep 0.2
    done
    [ "$(stat -c %U "/proc/$pid")" != root ] || fail "it runs as root"
    call /v1/routes/nightly/messages -d '{"delay":"500ms","payload":"'"$1"'"}' >/dev/null || fail "it takes no message: $(cat "$roots/serve.log")"
    for _ in {1..50}; do
        jobs | grep -q "$1" && break
        sleep 0.1
    done
    jobs | grep -q "$1" || fail "$1 was not delivered: $(cat "$roots/serve.log")"
    kill "$pid"
    wait "$pid" || fail "it ended with $?: $(cat "$roots/serve.log")"
    started=()
}
jobs() { redis-cli -s "$root/var/lib/punctual/redis.sock" lrange jobs 0 -1; }

# The systemd of the root accepts the unit, and finds it as hard as docs/deploy.md says. It is not enabled before an administrator
# enables it.
unit() {
    local said level
    said=$(inside systemd-analyze verify --man=no punctual.service 2>&1) || fail "systemd refuses the unit: $said"
    [ -z "$said" ] || fail "an unknown setting is no error to systemd: $said"
    level=$(inside systemd-analyze security --offline=true --no-pager punctual.service | sed -n 's/.*exposure level for punctual.service: \([0-9.]*\).*/\1/p')
    grep "exposure level is" docs/deploy.md | grep -q " $level[, ]" || fail "docs/deploy.md says another exposure level: $level"
    [ "$(inside systemctl is-enabled punctual)" = disabled ] || fail "the unit is enabled"
}

# Credentials are there only while the unit runs.
without_credentials() {
    local command code
    for command in check serve; do
        code=0
        inside punctual "$command" -c /etc/punctual/punctual.yaml >"$roots/check.log" 2>&1 || code=$?
        # systemd does not restart the unit after this one.
        [ "$code" = 2 ] || fail "$command without credentials ends with $code: $(cat "$roots/check.log")"
        grep -q /run/credentials/punctual.service/secrets_token "$roots/check.log" || fail "$command does not name the missing file"
    done
}

# Files, users and groups of the root, without the records of package managers.
listing() {
    (cd "$root" && find . -xdev \( -path ./proc -o -path ./dev -o -path ./tmp -o -path ./var/cache -o -path ./var/log -o \
        -path ./var/lib/dpkg -o -path ./var/lib/apt -o -path ./var/lib/rpm -o -path ./run -o -name '*-' -path './etc/*' \) -prune -o -print | sort
        cut -d: -f1 etc/passwd etc/group)
}

# Whether a listing has no more than the first one, and what is allowed.
nothing() { # LISTING PATTERN
    local left
    left=$(diff "$roots/before" "$1" | grep '^>' | grep -v "$2" || true)
    [ -z "$left" ] || fail "these are left: $left"
}

port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')

debian() { # SUITE
    local deb=$release/punctual_${version}_amd64.deb begun
    step "$1: install"
    base "$1"
    fresh "$1"
    inside apt-get -qq update
    begun=$SECONDS
    cp "$deb" "$root/tmp/"
    inside apt-get -qq -o APT::Install-Recommends=true install -y "/tmp/${deb##*/}" >"$roots/apt.log" 2>&1 || fail "$(cat "$roots/apt.log")"
    # A shell of the demo's user: the network of the machine, a /tmp that can be written.
    inside punctual demo --once >"$roots/demo.log" 2>&1 || fail "$(cat "$roots/demo.log")"
    [ "$(grep -c '^http  demo-' "$roots/demo.log")" = 10 ] || fail "not ten messages: $(cat "$roots/demo.log")"
    echo "ten messages $((SECONDS - begun)) s after the beginning of the installation"
    inside punctual --version
    [ "$(stat -c '%a %U:%G' "$root/etc/punctual/secrets")" = "700 root:root" ] || fail "others can read secrets"
    [ "$(stat -c %a "$root/etc/punctual/punctual.yaml")" = 640 ] || fail "others can read the configuration"
    for file in usr/lib/systemd/system/punctual.service usr/share/man/man1/punctual.1.gz usr/share/man/man1/punctual-serve.1.gz \
        usr/share/bash-completion/completions/punctual usr/share/zsh/vendor-completions/_punctual \
        usr/share/fish/vendor_completions.d/punctual.fish usr/share/doc/punctual/licences.txt.gz; do
        [ -e "$root/$file" ] || [ -e "$root/${file#usr/}" ] || fail "no /$file"
    done

    step "$1: edit, run"
    unit
    inside systemctl --quiet enable punctual
    edit
    without_credentials
    serve first
    step "$1: upgrade over itself, and to a later version"
    cp "$root/etc/punctual/punctual.yaml" "$roots/edited.yaml"
    inside dpkg -i "/tmp/${deb##*/}" >"$roots/apt.log" 2>&1 || fail "$(cat "$roots/apt.log")"
    rm -rf "$roots/later"
    dpkg-deb -R "$deb" "$roots/later"
    sed -i "s/^Version: .*/&.1/" "$roots/later/DEBIAN/control"
    dpkg-deb -b "$roots/later" "$root/tmp/later.deb" >/dev/null
    inside dpkg -i /tmp/later.deb >"$roots/apt.log" 2>&1 || fail "$(cat "$roots/apt.log")"
    cmp "$root/etc/punctual/punctual.yaml" "$roots/edited.yaml" || fail "the edit is lost"
    [ "$(inside systemctl is-enabled punctual)" = enabled ] || fail "an upgrade disables the unit"
    serve second
    step "$1: remove, purge"
    inside apt-get -qq remove -y punctual >"$roots/apt.log" 2>&1
    cmp "$root/etc/punctual/punctual.yaml" "$roots/edited.yaml" || fail "the edit is lost"
    inside apt-get -qq purge -y punctual >"$roots/apt.log" 2>&1
    listing >"$roots/with-data"
    [ -e "$root/var/lib/punctual/appendonlydir" ] || fail "data is lost"
    [ -z "$(find "$root/etc/systemd" "$root/var/lib/systemd" -name 'punctual*')" ] || fail "the unit is left enabled"
    # A package that has never run leaves nothing at all.
    rm -rf "$root/var/lib/punctual"
    inside userdel punctual
    listing >"$roots/before"
    nothing "$roots/with-data" '^> ./var/lib/punctual\|^> punctual$'
    inside dpkg -i "/tmp/${deb##*/}" >"$roots/apt.log" 2>&1 || fail "$(cat "$roots/apt.log")"
    inside apt-get -qq purge -y punctual >"$roots/apt.log" 2>&1
    listing >"$roots/after"
    nothing "$roots/after" '^$'
}

# Fedora's own root cannot be had everywhere: its package, by its program and its scripts, in a root of Debian.
rpm_root() {
    local package=$release/punctual-$version-1.x86_64.rpm
    local install=(rpm --root "$roots/here" --dbpath /var/lib/rpm --nodeps --noplugins)
    step "rpm: install"
    base bookworm
    fresh bookworm
    inside apt-get -qq update
    inside apt-get -qq install -y redis-server >"$roots/apt.log" 2>&1
    listing >"$roots/before"
    rpm -qp --list "$package" | grep -x /usr/lib/systemd/system/punctual.service
    [ "$(rpm -qp --configfiles "$package")" = /etc/punctual/punctual.yaml ] || fail "configuration files: $(rpm -qp --configfiles "$package")"
    rpm -qp --requires "$package" | grep -x 'glibc >= 2.31'
    "${install[@]}" -i "$package"
    [ "$(stat -c %a "$root/etc/punctual/punctual.yaml")" = 640 ] || fail "others can read the configuration"
    unit
    edit
    step "rpm: run, upgrade, erase"
    serve first
    cp "$root/etc/punctual/punctual.yaml" "$roots/edited.yaml"
    "${install[@]}" -U --force "$package"
    cmp "$root/etc/punctual/punctual.yaml" "$roots/edited.yaml" || fail "the edit is lost"
    serve second
    "${install[@]}" -e punctual
    listing >"$roots/after"
    # rpm keeps an edited file.
    [ -e "$root/etc/punctual/punctual.yaml.rpmsave" ] || fail "the edit is lost"
    # Directories of completions belong to the shells there.
    nothing "$roots/after" '^> ./var/lib/punctual\|^> ./etc/punctual\|^> punctual$\|^> ./usr/share/\(fish\|zsh\)'
}

tarball() {
    step "tarball: Debian 11, glibc 2.31"
    base bullseye
    fresh bullseye
    tar -xzf "$release/punctual-$version-x86_64-linux.tar.gz" -C "$root/opt"
    inside "/opt/punctual-$version-x86_64-linux/bin/punctual" --version
    printf 'redis: { url: "redis://127.0.0.1:1/0" }\n' >"$root/etc/punctual.yaml"
    inside "/opt/punctual-$version-x86_64-linux/bin/punctual" check -c /etc/punctual.yaml

    step "tarball: the unit by hand, as in docs/deploy.md"
    base bookworm
    fresh bookworm
    inside apt-get -qq update
    inside apt-get -qq install -y redis-server >"$roots/apt.log" 2>&1
    tar -xzf "$release/punctual-$version-x86_64-linux.tar.gz" -C "$root/opt"
    inside sh -ec "cd /opt/punctual-$version-x86_64-linux && cp bin/punctual /usr/bin && cp systemd/punctual.service /etc/systemd/system
        mkdir /etc/punctual && cp etc/punctual.yaml /etc/punctual && mkdir -m 700 /etc/punctual/secrets
        $(grep -o 'useradd --system [^\`]*' docs/deploy.md)"
    unit
    edit
    # StateDirectory= of the unit.
    inside install -d -m 700 -o punctual -g punctual /var/lib/punctual
    serve first
}

image() {
    local layout=$roots/layout bundle=$roots/bundle redis pid
    step "image: layers, user, a read-only root"
    rm -rf "$layout" "$bundle"
    mkdir -p "$layout"
    tar -xf "$release/punctual-$version-x86_64-linux.oci.tar" -C "$layout"
    umoci stat --image "$layout:$version" | sed -n '/LAYER/,$p'
    umoci unpack --image "$layout:$version" "$bundle"
    [ "$(python3 -c 'import json, sys; user = json.load(open(sys.argv[1]))["process"]["user"]; print(user["uid"], user["gid"])' "$bundle/config.json")" = "10001 10001" ] ||
        fail "the user of the image"
    [ ! -e "$bundle/rootfs/bin/sh" ] || fail "it has a shell"
    redis=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
    rm -rf "$roots/redis"
    mkdir "$roots/redis"
    redis-server --port "$redis" --bind 127.0.0.1 --save '' --appendonly yes --dir "$roots/redis" >"$roots/redis.log" </dev/null &
    local server=$!
    started+=("$server")
    bwrap --ro-bind "$bundle/rootfs" / --dev /dev --proc /proc --unshare-user --uid 10001 --gid 10001 --die-with-parent --clearenv \
        --setenv PUNCTUAL_DEFAULT__SERVER__LISTEN 127.0.0.1:"$port" --setenv PUNCTUAL__REDIS__URL "redis://127.0.0.1:$redis/0" \
        --setenv PUNCTUAL__SERVER__AUTH__TOKENS "$token" \
        --setenv PUNCTUAL__SINKS__JOBS__TYPE redis_list --setenv PUNCTUAL__SINKS__JOBS__KEY jobs --setenv PUNCTUAL__ROUTES__NIGHTLY__SINK jobs \
        /usr/bin/punctual serve >"$roots/serve.log" 2>&1 </dev/null &
    pid=$!
    started+=("$pid")
    for _ in {1..150}; do
        call /readyz >/dev/null 2>&1 && break
        kill -0 "$pid" 2>/dev/null || fail "punctual ended: $(cat "$roots/serve.log")"
        sleep 0.2
    done
    call /v1/routes/nightly/messages -d '{"delay":"500ms","payload":"image"}' >/dev/null || fail "it takes no message: $(cat "$roots/serve.log")"
    for _ in {1..50}; do
        [ "$(redis-cli -p "$redis" llen jobs)" = 1 ] && break
        sleep 0.1
    done
    [ "$(redis-cli -p "$redis" llen jobs)" = 1 ] || fail "not delivered: $(cat "$roots/serve.log")"
    kill "$pid" "$server"
    wait "$pid" "$server" || true
    started=()
}

# Names, modes and owners of what packages and tarball contain.
names() { # ARCHITECTURE, ITS NAME IN DEBIAN
    dpkg-deb --fsys-tarfile "$release/punctual_${version}_$2.deb" | tar -tv | awk '{ print "deb", $1, $2, $6 }'
    dpkg-deb -f "$release/punctual_${version}_$2.deb" Package Version Depends Recommends
    rpm -qp --queryformat '[rpm %{FILEMODES:perms} %{FILEUSERNAME}:%{FILEGROUPNAME} %{FILENAMES}\n]' "$release/punctual-$version-1.$1.rpm"
    rpm -qp --requires --recommends --scripts "$release/punctual-$version-1.$1.rpm"
    tar -tvzf "$release/punctual-$version-$1-linux.tar.gz" | awk '{ print "tar", $1, $2, $6 }' | sed "s/$1/ARCHITECTURE/"
}

aarch64() {
    local place=$roots/aarch64 tar=punctual-$version-aarch64-linux program
    step "aarch64: content, architectures"
    rm -rf "$place"
    mkdir -p "$place"/{deb,rpm,layout}
    [ "$(names aarch64 arm64 | grep -c '/bin/punctual$')" = 3 ] || fail "not each file has the program"
    diff <(names x86_64 amd64) <(names aarch64 arm64) || fail "the packages for aarch64 have other content"
    [ "$(dpkg-deb -f "$release/punctual_${version}_arm64.deb" Architecture)" = arm64 ] || fail "the architecture of the .deb"
    [ "$(rpm -qp --queryformat '%{ARCH}' "$release/punctual-$version-1.aarch64.rpm")" = aarch64 ] || fail "the architecture of the .rpm"
    dpkg-deb -x "$release/punctual_${version}_arm64.deb" "$place/deb"
    # rpm2cpio ends with 1 when all is written: cargo-generate-rpm states no size of the archive.
    (cd "$place/rpm" && { rpm2cpio "$release/punctual-$version-1.aarch64.rpm" || true; } | cpio -id --quiet)
    tar -xzf "$release/$tar.tar.gz" -C "$place"
    tar -xf "$release/$tar.oci.tar" -C "$place/layout"
    umoci unpack --image "$place/layout:$version" "$place/bundle"
    python3 - "$place/layout" <<'END' || fail "the architecture of the image"
import json, pathlib, sys
def blob(digest): return json.loads(layout.joinpath("blobs", *digest.split(":")).read_text())
layout = pathlib.Path(sys.argv[1])
[manifest] = json.loads(layout.joinpath("index.json").read_text())["manifests"]
sys.exit(blob(blob(manifest["digest"])["config"]["digest"])["architecture"] != "arm64")
END
    program=$place/bundle/rootfs/usr/bin/punctual
    for copy in "$place/deb/usr/bin/punctual" "$place/rpm/usr/bin/punctual" "$place/$tar/bin/punctual"; do
        cmp "$copy" "$program"
    done
    readelf --file-header "$program" | grep -q 'Machine: *AArch64' || fail "the program is not for aarch64"
    if command -v qemu-aarch64-static >/dev/null; then
        # The C library is that of the image.
        qemu-aarch64-static -L "$place/bundle/rootfs" "$program" --version
    fi
}

(cd "$release" && sha256sum --check --quiet SHA256SUMS)
debian bookworm
debian trixie
rpm_root
tarball
image
[ ! -e "$release/punctual_${version}_arm64.deb" ] || aarch64
rm -rf "$roots/here" "$roots/bundle" "$roots/layout" "$roots/aarch64" "$roots/redis" "$roots/redis.log"
echo "--- all packages are as they should be"
