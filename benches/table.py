"""table.py RAW: the results of run.sh as a table. Each figure is the median of the rounds, each ratio that of the ratios of
single rounds."""

import json
import statistics
import sys

# Row, figure, its name, decimals, who is the baseline, who is punctual.
MEASURES = [
    ("schedule", "rate", "schedule, messages/s", 0, "bare", "punctual"),
    ("schedule", "redis_us", "the same: Redis CPU, µs a message", 1, "bare", "punctual"),
    ("drain", "rate", "drain to a list, messages/s", 0, "bare", "punctual"),
    ("drain", "redis_us", "the same: Redis CPU, µs a message", 1, "bare", "punctual"),
    ("http", "rate", "drain to HTTP, messages/s", 0, "hyper", "punctual"),
    ("http", "connections", "the same: connections opened", 0, None, "received"),
    ("http", "peak_mib", "the same: peak memory, MiB", 0, None, "punctual"),
    ("http", "rate", "drain to HTTP, `max_in_flight: 100`", 0, "hyper", "punctual-100"),
    ("http", "connections", "the same: connections opened", 0, None, "received-100"),
    ("http", "peak_mib", "the same: peak memory, MiB", 0, None, "punctual-100"),
    ("kafka", "rate", "drain to Kafka, messages/s", 0, "librdkafka", "punctual"),
    ("rabbitmq", "rate", "drain to RabbitMQ, messages/s", 0, "perf_test", "punctual"),
    *((f"lateness {rate}", figure, f"{rate:,}/s steady, late by: {figure[:3]}, ms", 1, None, "punctual")
      for rate in (1000, 5000, 10000, 20000, 40000, 80000) for figure in ("p50_ms", "p99_ms")),
    *(("burst", figure, f"50,000 in a second to {sink}: {figure[:3]}, ms", 0, None, who)
      for sink, who in (("a list", "punctual"), ("HTTP", "punctual-http")) for figure in ("p50_ms", "p99_ms")),
    *((f"economy {routes}", figure, f"{text}, {name}", decimals, None, "punctual")
      for routes, text in ((1, "5,000/s, one route"), (100, "5,000/s, 100 routes"))
      for figure, name, decimals in (("scripts", "script calls a message", 3), ("redis_percent", "Redis, % of a core", 1),
                                     ("process_percent", "punctual, % of a core", 1))),
    *((f"memory {size}", "bytes", f"Redis bytes a pending message, payload of {size}", 0, None, "punctual")
      for size in (16, 100, 1000)),
    ("idle", "per_second", "commands/s when idle", 1, None, "punctual"),
    ("limits", "rate", "limits of the suite: arrays sent, messages/s", 0, None, "load"),
    ("limits", "rate", "limits of the suite: list read, messages/s", 0, None, "list"),
]
PEERS = ("bullmq", "asynq")


def read(path):
    """Figures by (row, who, figure), each as {round: value}."""
    found = {}
    with open(path) as lines:
        for line in map(json.loads, lines):
            for figure, value in line.items():
                found.setdefault((line["row"], line["who"], figure), {})[line["round"]] = value
    return found


def median(found, row, who, figure):
    values = found.get((row, who, figure))
    return statistics.median(values.values()) if values else None


def ratio(found, row, figure, baseline, who):
    below, above = (found.get((row, one, figure), {}) for one in (baseline, who))
    ratios = [above[number] / below[number] for number in above if number in below]
    return statistics.median(ratios) if ratios else None


def shown(value, decimals):
    return "" if value is None else f"{value:,.{decimals}f}"


def main():
    found = read(sys.argv[1])
    print("| measure | baseline | punctual | ratio | BullMQ | asynq |")
    print("|---|---|---|---|---|---|")
    for row, figure, name, decimals, baseline, who in MEASURES:
        if (value := median(found, row, who, figure)) is None:
            continue
        below = median(found, row, baseline, figure)
        # A peer has no list and no endpoint: it is beside the first line of its row.
        peers = [median(found, row, peer, figure) if who == "punctual" else None for peer in PEERS]
        cells = [name, shown(below, decimals), shown(value, decimals), shown(ratio(found, row, figure, baseline, who), 2)]
        print("|", " | ".join(cells + [shown(peer, decimals) for peer in peers]), "|")


if __name__ == "__main__":
    main()
