"""sizing.py RAW: the results of sizing.sh as tables of docs/sizing.md. What is said of 100 million messages is ten times that
of 10 million, whatever their partitions: the larger one."""

import json
import sys

MIB = 1 << 20
CASES = ["1 1", "1 6", "10 1", "10 6"]
HEADS = ["1 million, 1 partition", "1 million, 6", "10 million, 1 partition", "10 million, 6", "100 million, extrapolated"]


def shown(value, decimals=0):
    return f"{value:,.{decimals}f}"


# Name, the figure of a case, decimals, and whether it grows with the messages: `True`, or `None` for no extrapolation.
MEASURES = [
    ("memory (`used_memory`), MiB", lambda of: of["used"] / MIB, 0, True),
    ("the same, bytes a message", lambda of: of["used"] / of["messages"], 0, False),
    ("resident memory, MiB", lambda of: of["resident"] / MIB, 0, True),
    ("schedule the last million, messages/s", lambda of: of["schedule.rate"], 0, None),
    ("the same: Redis CPU, µs a message", lambda of: of["schedule.redis_us"], 1, None),
    ("drain a million to a list, messages/s", lambda of: of["drain.rate"], 0, None),
    ("the same: Redis CPU, µs a message", lambda of: of["drain.redis_us"], 1, None),
    ("append-only file: bytes to schedule, to drain a message",
     lambda of: (of["written"] / of["messages"], of["drain.written"]), 0, False),
    ("append-only file as written, MiB", lambda of: of["written"] / MIB, 0, True),
    ("start of Redis with it, s", lambda of: of["load_written_ms"] / 1000, 1, True),
    ("append-only file after `BGREWRITEAOF`, MiB", lambda of: of["rewritten"] / MIB, 0, True),
    ("start of Redis with it, s", lambda of: of["load_rewritten_ms"] / 1000, 1, True),
    ("start of punctual, s", lambda of: of["punctual_ms"] / 1000, 2, None),
    ("`BGSAVE`: fork, ms", lambda of: of["idle.fork_us"] / 1000, 1, True),
    ("`BGSAVE`: whole time, s", lambda of: of["idle.snapshot_ms"] / 1000, 1, True),
    ("`BGSAVE`: file, MiB", lambda of: of["snapshot"] / MIB, 0, True),
    ("`BGSAVE`: further memory, MiB", lambda of: of["idle.copied"] / MIB, 0, None),
    ("the same with up to 5,000 schedules/s", lambda of: of["busy.copied"] / MIB, 0, None),
    ("the same: whole time, s", lambda of: of["busy.snapshot_ms"] / 1000, 1, None),
]


def cell(value, decimals):
    values = value if isinstance(value, tuple) else (value,)
    return ", ".join(shown(one, decimals) for one in values)


def extrapolated(figure, cases, grows):
    if grows is None:
        return None
    values = [figure(cases[case]) for case in CASES[2:]]
    if grows:
        return max(values) * 10
    return tuple(map(max, zip(*values))) if isinstance(values[0], tuple) else max(values)


def row(cells):
    return f"| {' | '.join(cells)} |"


def main():
    cases = {}
    with open(sys.argv[1], encoding="utf-8") as raw:
        for line in map(json.loads, raw):
            cases.setdefault(line["case"], {})[line["name"]] = line["value"]
    print(row(["measure", *HEADS]))
    print(row(["---"] * (len(HEADS) + 1)).replace(" ", ""))
    for name, figure, decimals, grows in MEASURES:
        further = extrapolated(figure, cases, grows)
        last = "" if further is None else cell(further, decimals if not grows else 0)
        print(row([name, *(cell(figure(cases[case]), decimals) for case in CASES), last]))
    of = cases["connection"]
    print()
    print(row(["connection", "cost to Redis"]))
    print("|---|---|")
    print(row(["to open it", f"{shown(of['open_us'])} µs"]))
    print(row(["while it is idle", f"{shown(of['bytes'])} bytes, {shown(of['idle_us'], 1)} µs a second"]))
    for partitions in (1, 6):
        of = cases[f"instance {partitions}"]
        name = f"an idle instance, one route with {partitions} partition{'s' if partitions > 1 else ''}"
        print(row([name, f"{of['connections']} connections, {shown(of['idle_us'])} µs a second"]))


if __name__ == "__main__":
    main()
