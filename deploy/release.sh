#!/usr/bin/env bash
# Makes the files of a release from this checkout, on a Debian machine with Rust: packages, a tarball, an image, their sums.
#
#   deploy/release.sh [--allow-dirty] [--aarch64] [DIRECTORY]
#
# DIRECTORY is target/release-VERSION unless given. Two runs of one commit make the same bytes: times are that of the commit
# (or SOURCE_DATE_EPOCH), the place of the build is always /var/tmp/punctual-release, archives are sorted. A checkout that
# differs from its commit is refused, unless --allow-dirty says that the files are not for others. --aarch64 makes the files for
# aarch64, too: a trial, see docs/release.md.
#
#   punctual_VERSION_amd64.deb, punctual-VERSION-1.x86_64.rpm   packages; glibc 2.31 or later
#   punctual-VERSION-x86_64-linux.tar.gz                        for other distributions with glibc 2.31 or later
#   punctual-VERSION-x86_64-linux.oci.tar                       the image, in the OCI layout
#   punctual-VERSION.cdx.json, punctual-VERSION-licences.txt    components of the program for x86_64, and their terms
#   punctual_VERSION_arm64.deb, punctual-VERSION*aarch64*       with --aarch64: the same for aarch64
#   punctual-chart-VERSION.tgz                                  the Helm chart
#   SHA256SUMS
#
# The tools come from Debian, PyPI and crates.io, in the versions below.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

architectures=(x86_64)
# The oldest one that the program runs with: Debian 11, Ubuntu 20.04, RHEL 9.
glibc=2.31
features=otlp,vendored
cargo_deb=3.8.0 cargo_generate_rpm=0.21.1
# zig is the C compiler and the linker: it has the headers and symbols of each glibc, for each architecture.
pip=(cargo-zigbuild==0.24.1 ziglang==0.17.1)

fail() { echo "release.sh: $*" >&2; exit 1; }

dirty=
while [[ ${1:-} == --* ]]; do
    case $1 in
    --allow-dirty) dirty=yes ;;
    --aarch64) architectures+=(aarch64) ;;
    *) fail "unknown option $1" ;;
    esac
    shift
done
[ -n "$dirty" ] || [ -z "$(git status --porcelain)" ] || fail "the checkout differs from its commit (--allow-dirty for a trial)"
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml | head -n1)
out=${1:-target/release-$version}
revision=$(git rev-parse HEAD)
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
PUNCTUAL_COMMIT="${revision::12}${dirty:+ with changes} of $(date -u -d "@$SOURCE_DATE_EPOCH" +%F)"
export SOURCE_DATE_EPOCH PUNCTUAL_COMMIT LC_ALL=C.UTF-8 TZ=UTC
umask 022

.ci/need build git=git perl=perl python3=python3 /usr/share/doc/python3-venv=python3-venv umoci=umoci xz=xz-utils
python3 -c 'import tomllib' 2>/dev/null || fail "Python 3.11 or later is needed"
command -v cargo >/dev/null || PATH="$PATH:${CARGO_HOME:-$HOME/.cargo}/bin"
command -v cargo >/dev/null || fail "cargo is missing: install Rust first, https://rustup.rs"
for arch in "${architectures[@]}"; do
    [ -d "$(rustc --print target-libdir --target "$arch-unknown-linux-gnu")" ] ||
        fail "rustc has no library for $arch: rustup target add $arch-unknown-linux-gnu"
done

# OpenSSL has the paths and options of its build in it. With one place for sources, crates and caches they are the same in
# every checkout and for every user.
work=/var/tmp/punctual-release
mkdir -p "$work"
[ -O "$work" ] || fail "$work belongs to another user"
exec 7>"$work/lock"
flock -n 7 || fail "another release is being made"
rm -rf "$out"
mkdir -p "$out"
out=$(cd "$out" && pwd)
# Extracted with the present time (-m): cargo compares times, and takes an older file for one that it has compiled already.
rm -rf "$work/source"
mkdir -p "$work/source"
if [ -n "$dirty" ]; then
    git ls-files -z --cached --others --exclude-standard | xargs -0 sh -c 'for f; do [ -e "$f" ] && printf "%s\0" "$f"; done' sh |
        tar --create --null --files-from=- | tar -xm -C "$work/source"
else
    git archive "$revision" | tar -xm -C "$work/source"
fi
# The toolchain stays where it is; a variable of the caller would change the program.
export RUSTUP_HOME=${RUSTUP_HOME:-$HOME/.rustup}
for name in "${!CARGO_@}" "${!RUSTC_@}" RUSTFLAGS CFLAGS CXXFLAGS LDFLAGS CC CXX AR RANLIB; do unset "$name"; done
export CARGO_HOME=$work/cargo CARGO_TARGET_DIR=$work/target CARGO_ZIGBUILD_CACHE_DIR=$work/zig
export ZIG_GLOBAL_CACHE_DIR=$work/zig/global ZIG_LOCAL_CACHE_DIR=$work/zig/local
cd "$work/source"

tools=$work/tools
[ -x "$tools/bin/pip" ] || python3 -m venv "$tools"
"$tools/bin/pip" install --quiet --disable-pip-version-check "${pip[@]}"
for tool in "cargo-deb@$cargo_deb" "cargo-generate-rpm@$cargo_generate_rpm"; do
    [ -x "$tools/bin/${tool%@*}" ] || CARGO_TARGET_DIR=$tools/build cargo install --quiet --locked --root "$tools" "$tool"
done
PATH="$tools/bin:$PATH"

# Sets what differs between architectures.
of() { # ARCHITECTURE
    arch=$1 target=$1-unknown-linux-gnu program=$CARGO_TARGET_DIR/$1-unknown-linux-gnu/dist/punctual components=punctual-$version-$1
    case $1 in
    x86_64) debian=amd64 components=punctual-$version ;;
    aarch64) debian=arm64 ;;
    esac
}

build() {
    local pair rust="" c="-g0" zig="-target $arch-linux-gnu.$glibc" compiler=()
    for pair in "$work/source=/punctual" "$work/target=/build" "$work/cargo=/cargo"; do
        rust+=" --remap-path-prefix=$pair"
        c+=" -ffile-prefix-map=$pair"
    done
    # cargo-zigbuild names the compiler to crates that ask for the one of a target. librdkafka's configure asks for CC, and uses the
    # machine's gcc without it. Its list of symbols names one that it does not define: rd_ut_coverage_check. zig's linker refuses
    # that unless it is told otherwise.
    [ "$arch" = x86_64 ] || compiler=(CC="zig-cc $zig" CXX="zig-c++ $zig" AR=zig-ar LDFLAGS=-Wl,--undefined-version)
    env RUSTFLAGS="$rust" CFLAGS="$c" CXXFLAGS="$c" "${compiler[@]}" \
        cargo zigbuild --locked --profile dist --bin punctual --features "$features" --target "$target.$glibc"
    [ "$(printf '%s\n' "$(needed "$program")" "$glibc" | sort -V | tail -n1)" = "$glibc" ] ||
        fail "the program for $arch needs glibc $(needed "$program"), later than $glibc"
}

# The oldest glibc that has all symbols of a program.
needed() {
    readelf --version-info --wide "$1" | grep -o 'GLIBC_[0-9.]*' | sort -Vu | tail -n1 | cut -d_ -f2
}

# Files of the packages, which Cargo.toml names. The program of this machine writes those that are the same for each.
pages() {
    local here=$CARGO_TARGET_DIR/$(uname -m)-unknown-linux-gnu/dist/punctual
    rm -rf target/package
    mkdir -p target/package/{man,completions}
    "$here" man target/package/man
    gzip -9n target/package/man/*
    "$here" completions bash >target/package/completions/punctual
    "$here" completions zsh >target/package/completions/_punctual
    "$here" completions fish >target/package/completions/punctual.fish
}

stage() {
    rm -rf target/package/{doc,tarball,root,oci,packages}
    mkdir target/package/doc
    cp "$program" target/package/punctual
    cp CHANGELOG.md target/package/doc/CHANGELOG.md
    cp LICENSE target/package/doc/LICENSE
    python3 deploy/package/components.py --target "$target" --features "$features" \
        --sbom target/package/doc/punctual.cdx.json --licences target/package/doc/licences.txt
    cp target/package/doc/punctual.cdx.json "$out/$components.cdx.json"
    cp target/package/doc/licences.txt "$out/$components-licences.txt"
    gzip -9n target/package/doc/licences.txt
}

# One order, one owner, one time.
archive() { # DIRECTORY NAMES...
    tar --create --format=gnu --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner --mode=u+rw,go=rX \
        --directory "$@"
}

tarball() {
    local name=punctual-$version-$arch-linux root=target/package/tarball
    mkdir -p "$root/$name"/{bin,etc,share/doc,systemd}
    cp target/package/punctual "$root/$name/bin/"
    cp -r target/package/man target/package/completions "$root/$name/share/"
    cp -r target/package/doc/. deploy/redis deploy/prometheus/alerts.yml deploy/grafana "$root/$name/share/doc/"
    cp deploy/package/punctual.yaml "$root/$name/etc/"
    cp deploy/systemd/punctual.service "$root/$name/systemd/"
    archive "$root" "$name" | gzip -9n >"$out/$name.tar.gz"
}

chart() {
    mkdir -p target/package/chart
    cp -rL deploy/helm target/package/chart/punctual
    rm target/package/chart/punctual/{check.sh,.helmignore}
    archive target/package/chart punctual | gzip -9n >"$out/punctual-chart-$version.tgz"
}

# Not a base image: the C library and the certificates of Debian, and the program. There is no shell.
image() {
    local root=target/package/root layout=target/package/oci packages=target/package/packages lists=$work/apt/$debian apt name
    # Lists of its own: those of the machine are of its architecture.
    mkdir -p "$lists"/lists/partial "$lists"/cache/archives/partial
    apt=(-qq -o "APT::Architecture=$debian" -o "APT::Architectures=$debian" -o "Dir::State::Lists=$lists/lists"
        -o "Dir::Cache=$lists/cache" -o Dir::State::status=/dev/null)
    apt-get "${apt[@]}" update
    mkdir -p "$root"/{etc/ssl/certs,etc/punctual,data,dev,proc,run,sys,tmp,usr/bin,usr/share/doc/punctual} "$packages"
    (cd "$packages" && apt-get "${apt[@]}" download libc6 ca-certificates && for package in *.deb; do dpkg-deb -x "$package" "${package%%_*}"; done)
    # x86_64 has /lib64 for the loader.
    for name in "$packages"/libc6/lib*; do cp -a "$name" "$root/"; done
    cp -a "$packages/libc6/usr/share/doc/libc6" "$packages/ca-certificates/usr/share/doc/ca-certificates" "$root/usr/share/doc/"
    find "$packages/ca-certificates/usr/share/ca-certificates" -name '*.crt' | sort | xargs cat >"$root/etc/ssl/certs/ca-certificates.crt"
    printf 'root:x:0:0::/:/sbin/nologin\npunctual:x:10001:10001::/data:/sbin/nologin\n' >"$root/etc/passwd"
    printf 'root:x:0:\npunctual:x:10001:\n' >"$root/etc/group"
    printf 'hosts: files dns\n' >"$root/etc/nsswitch.conf"
    cp target/package/punctual "$root/usr/bin/"
    cp target/package/doc/* "$root/usr/share/doc/punctual/"
    umoci init --layout "$layout"
    umoci new --image "$layout:$version"
    # Two layers: the second one alone differs between releases.
    archive "$root" $(cd "$root" && echo dev etc lib* proc run sys tmp) usr/share/doc/libc6 usr/share/doc/ca-certificates >target/package/base.tar
    archive "$root" usr/bin usr/share/doc/punctual >target/package/program.tar
    tar --append --format=gnu --mtime="@$SOURCE_DATE_EPOCH" --numeric-owner --owner=10001 --group=10001 --mode=700 \
        --file target/package/program.tar --directory "$root" data
    local layer time
    time=$(date -u -d "@$SOURCE_DATE_EPOCH" +%FT%TZ)
    for layer in base program; do
        umoci raw add-layer --image "$layout:$version" --history.created "$time" --history.author "" \
            --history.comment "" --history.created_by "$layer" "target/package/$layer.tar"
    done
    umoci config --image "$layout:$version" --no-history --created "$time" --os linux --architecture "$debian" \
        --config.user 10001:10001 --config.workingdir /data --config.volume /data --config.exposedports 8080 \
        --config.stopsignal SIGTERM --config.entrypoint /usr/bin/punctual --config.cmd serve \
        --config.env PATH=/usr/bin --config.env PUNCTUAL_DEFAULT__SERVER__LISTEN=0.0.0.0:8080 \
        --config.env PUNCTUAL_DEFAULT__REDIS__DATA_DIR=/data --config.env SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt \
        --config.label org.opencontainers.image.title=punctual --config.label "org.opencontainers.image.version=$version" \
        --config.label "org.opencontainers.image.revision=$revision" --config.label org.opencontainers.image.licenses=Apache-2.0
    umoci gc --layout "$layout"
    archive "$layout" . >"$out/punctual-$version-$arch-linux.oci.tar"
}

for arch in "${architectures[@]}"; do
    of "$arch"
    build
done
pages
for arch in "${architectures[@]}"; do
    of "$arch"
    stage
    cargo deb --no-build --no-strip --no-dbgsym --target "$target" --deb-revision= --output "$out/punctual_${version}_$debian.deb"
    cargo generate-rpm --target "$target" --auto-req disabled --source-date "$SOURCE_DATE_EPOCH" \
        --output "$out/punctual-$version-1.$arch.rpm"
    tarball
    image
done
chart
(cd "$out" && sha256sum -- * >SHA256SUMS)
cat "$out/SHA256SUMS"
