#!/usr/bin/env bash
# Writes target/kafka/classes.jsa: the classes that a broker of the tests loads. With it, a start takes half of the
# processor time. The options of Java are those of tests/it/support/kafka/broker.rs.
set -euo pipefail
cd "$(dirname "$0")/../.."
home=$(mktemp -d)
broker=
stop() {
    [ -z "$broker" ] || kill "$broker" 2>/dev/null || true
    rm -rf "$home"
}
trap stop EXIT
free() {
    local port=$((20000 + RANDOM % 12000))
    while (: <"/dev/tcp/127.0.0.1/$port") 2>/dev/null; do port=$((port + 1)); done
    echo $port
}
controller=$(free)
listener=$(free)
cat >"$home/server.properties" <<END
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:$controller
listeners=PLAINTEXT://127.0.0.1:$listener,CONTROLLER://127.0.0.1:$controller
controller.listener.names=CONTROLLER
log.dirs=$home/data
offsets.topic.replication.factor=1
END
# For two minutes at most; a stop that takes five seconds ends it.
run() {
    exec timeout --kill-after=5 120 java -Xmx256m -XX:+UseSerialGC -XX:TieredStopAtLevel=1 "$1" -cp "$PWD/target/kafka/libs/*" "${@:2}" >"$home/log" 2>&1
}
(run -Xshare:auto kafka.tools.StorageTool format -t MkU3OEVBNTcwNTJENDM2Qg -c "$home/server.properties")
run -XX:ArchiveClassesAtExit="$home/classes.jsa" kafka.Kafka "$home/server.properties" &
broker=$!
until (: <"/dev/tcp/127.0.0.1/$listener") 2>/dev/null; do
    kill -0 "$broker" 2>/dev/null || { cat "$home/log" && exit 1; }
    sleep 0.2
done
kill "$broker"
wait "$broker" || [ $? -eq 143 ]
broker=
mv "$home/classes.jsa" target/kafka/
