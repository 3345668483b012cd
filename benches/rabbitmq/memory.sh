#!/bin/sh
# memory.sh NAME=PID...
#
# Every two seconds, as long as the first process lives: seconds since the start, then the resident memory of each in MB.
set -eu
first=${1#*=} start=$(date +%s)
printf 's'
for pair in "$@"; do printf '\t%s' "${pair%%=*}"; done
echo
while kill -0 "$first" 2>/dev/null; do
    printf '%s' "$(($(date +%s) - start))"
    for pair in "$@"; do
        printf '\t%s' "$(awk '/^VmRSS/ {print int($2 / 1024)}' "/proc/${pair#*=}/status")"
    done
    echo
    sleep 2
done
