#!/usr/bin/env bash
# Tests the judge of the fault campaign: builds the program with each bug of tests/campaign/bugs/ in turn, and runs a campaign
# that must find it within ten minutes, or MINUTES. Prints one line for each. Exit 0 only if all were found.
#
# `tests/campaign/bugs.sh [NAME...]`: all bugs, or those that are named, without `.patch`. A line `# options: OPTIONS` above a patch has
# options of the campaign, for a bug that only some faults show.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

root=$PWD work=$PWD/target/campaign/bugs
export CARGO_TARGET_DIR=$work/target
mkdir -p "$work"
names=("$@")
if [ ${#names[@]} = 0 ]; then
    mapfile -t names < <(basename --suffix .patch --multiple tests/campaign/bugs/*.patch)
fi

failed=0
for name in "${names[@]}"; do
    # Only files that differ are copied, so that only they are built again.
    git ls-files -z -- ':!docs' | while IFS= read -r -d '' file; do
        [ ! -f "$file" ] || cmp --silent "$file" "$work/source/$file" || install -D "$file" "$work/source/$file"
    done
    patch --quiet --directory "$work/source" --strip 1 <"tests/campaign/bugs/$name.patch"
    (cd "$work/source" && cargo build --quiet --locked --bin punctual)
    read -ra options <<<"$(sed -n 's/^# options: //p' "tests/campaign/bugs/$name.patch")"
    log=$work/$name.log started=$SECONDS
    # Without the target directory of the bugs: the test is that of this checkout.
    if env -u CARGO_TARGET_DIR PUNCTUAL_CAMPAIGN_PROGRAM="$work/target/debug/punctual" \
        "$root/tests/campaign.sh" --minutes "${MINUTES:-10}" --seed "${SEED:-1}" "${options[@]}" >"$log" 2>&1 </dev/null; then
        echo "$name: NOT FOUND in $((SECONDS - started)) s"
        failed=1
    elif grep --quiet '^BREACH' "$log"; then
        echo "$name: found after $((SECONDS - started)) s: $(grep --max-count 1 '^BREACH' "$log" | cut -c8-)"
    else
        echo "$name: the campaign failed without a breach, see $log"
        failed=1
    fi
done
exit $failed
