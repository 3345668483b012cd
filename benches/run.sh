#!/usr/bin/env bash
# Measures punctual beside what its sinks' own clients do and beside other delay queues, on this machine.
#
#   benches/run.sh [--quick] [--out DIRECTORY] [ROW...]
#
# Rows: limits schedule drain cluster http kafka rabbitmq flow history lateness burst economy memory idle; all of them without names.
# --quick has fewer and shorter rounds: about eight minutes once all is built. Servers are private and stopped at the
# end. DIRECTORY (target/bench/results by default) gets raw.jsonl with one line for each measurement, versions.txt,
# table.md and the charts.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=examples/stage.sh
. "$here/../examples/stage.sh"
# shellcheck source=benches/servers.sh
. "$here/servers.sh"
# shellcheck source=benches/rows.sh
. "$here/rows.sh"

all=(limits schedule drain cluster http kafka rabbitmq flow history lateness burst economy memory idle)
quick='' results=$root/target/bench/results rows=()
while [ $# -gt 0 ]; do
    case $1 in
        --quick) quick=yes ;;
        --out) results=$2 && shift ;;
        *) [[ " ${all[*]} " = *" $1 "* ]] || fail "no row is called \`$1\`; there are: ${all[*]}"; rows+=("$1") ;;
    esac
    shift
done
[ ${#rows[@]} -gt 0 ] || rows=("${all[@]}")

# Of a run: rounds, and how much a round does. WHOLE and QUICK in this order.
size() { # WHOLE QUICK
    if [ -n "$quick" ]; then echo "$2"; else echo "$1"; fi
}
rounds=$(size 3 2)

# The last line that COMMAND prints, a JSON object, becomes a line of the results.
record() { # ROW WHO COMMAND...
    local row=$1 who=$2 line
    shift 2
    line=$("$@" 2>"$work/$row.log" | tail -n 1) || fail "$row, $who: $*"
    line="{\"row\":\"$row\",\"who\":\"$who\",\"round\":$round,${line#\{}"
    echo "$line" | tee -a "$results/raw.jsonl"
}

mkdir -p "$results"
results=$(cd "$results" && pwd)
build_all
rm -f "$results/raw.jsonl"
SECONDS=0
versions >"$results/versions.txt"
for row in "${rows[@]}"; do
    started=$SECONDS round=1
    "row_$row"
    stop_all
    echo "=== $row: $((SECONDS - started)) s"
done
echo "load average after: $(cut -d' ' -f1-3 /proc/loadavg)" >>"$results/versions.txt"
python3 "$here/table.py" "$results/raw.jsonl" | tee "$results/table.md"
python3 "$here/charts.py" "$results/raw.jsonl" "$results"
echo "=== $SECONDS s without the build; results are in $results"
