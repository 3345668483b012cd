#!/usr/bin/env bash
# Sends five messages with x-delay from a Python producer through punctual to a Python consumer of the same RabbitMQ.
#
#   examples/from_rabbitmq/run.sh [URL]
#
# Without a URL such as amqp://localhost:5672/%2f, a broker is started, and stopped at the end. Declares exchanges and
# queues named punctual-example.*. Exit 0 if all messages arrived, otherwise 1.
. "$(dirname "${BASH_SOURCE[0]}")/../stage.sh"

here=$root/examples/from_rabbitmq
build_with_rabbitmq "${1:-}" python3=python3
python3 -c 'import ensurepip' 2>/dev/null || "$root/.ci/need" /usr/share/python-wheels=python3-venv
python3 -m venv "$work/python"
"$work/python/bin/pip" install --quiet --disable-pip-version-check -r "$root/tests/clients/amqp/requirements.txt"
client() { "$work/python/bin/python" "$here/client.py" "$amqp" "$@"; }

client declare || fail "$amqp cannot be used"
export AMQP=$amqp
start_punctual "$here/pipeline.yaml"
client run 5 || fail "a message did not arrive"
