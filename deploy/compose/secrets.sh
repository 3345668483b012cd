#!/bin/sh
# Makes the secrets that are missing: random, one file each, below secrets/ beside this script.
set -eu
cd "$(dirname "$0")"
mkdir -p -m 700 secrets
for name in token metrics_token redis_password rabbitmq_password grafana_password; do
    # The containers' users read them: their directory keeps others of this machine out.
    [ -s "secrets/$name" ] || (umask 022 && od -An -tx1 -N24 /dev/urandom | tr -d ' \n' >"secrets/$name")
done
