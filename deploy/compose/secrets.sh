#!/bin/sh
# Creates missing secrets: random values, one file each, in secrets/ beside this script.
set -eu
cd "$(dirname "$0")"
mkdir -p -m 700 secrets
for name in token metrics_token redis_password rabbitmq_password grafana_password; do
    # The users of the containers read the files. The mode of the directory keeps out other users of this machine.
    [ -s "secrets/$name" ] || (umask 022 && od -An -tx1 -N24 /dev/urandom | tr -d ' \n' >"secrets/$name")
done
