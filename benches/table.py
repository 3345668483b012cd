"""table.py RAW: the results of run.sh as a table. Each figure is the median of the rounds, each ratio that of the ratios of
single rounds."""

import json
import statistics
import sys



def row_of_economy(routes, text):
    yield f"economy {routes}", "scripts", f"{text}: script calls a message", 3, None, "punctual"
    yield f"economy {routes}", ("redis_percent", "process_percent"), "the same: Redis / punctual, % of a core", 0, None, "punctual"


# Row, figure or figures, their name, decimals, who is the baseline, who is punctual.
LATE = ("p50_ms", "p99_ms")
TENANTS = (
    (LATE, "100 tenants beside 200,000 messages of one, instances: {}, late: p50 / p99, ms", 1, "0"),
    (("rate_min", "rate_max"), "the same: messages/s of the one, least and most in 10 s", 1, None),
    ("over", "the same: messages above burst + rate x time, at most", 1, None),
    ("redis_percent", "the same: Redis, % of a core", 0, None),
    ("redis_median", "the same: in the median second, % of a core", 0, None),
)
MEASURES = [
    ("schedule", "rate", "schedule, messages/s", 0, "bare", "punctual"),
    ("schedule", "redis_us", "the same: Redis CPU, µs a message", 1, "bare", "punctual"),
    ("drain", "rate", "drain to a list, messages/s", 0, "bare", "punctual"),
    ("drain", "redis_us", "the same: Redis CPU, µs a message", 1, "bare", "punctual"),
    ("cluster", "rate", "6 partitions to HTTP, 3 primaries against one server, messages/s", 0, "1", "3"),
    ("cluster", "redis_us", "the same: Redis CPU, µs a message", 1, "1", "3"),
    ("cluster", "rate", "6 partitions to HTTP, 6 primaries against one server, messages/s", 0, "1", "6"),
    ("cluster", "redis_us", "the same: Redis CPU, µs a message", 1, "1", "6"),
    ("http", "rate", "drain to HTTP, messages/s", 0, "hyper", "punctual"),
    ("http", "connections", "the same: connections opened", 0, None, "received"),
    ("http", "peak_mib", "the same: peak memory, MiB", 0, None, "punctual"),
    ("http", "rate", "drain to HTTP, `max_in_flight: 100`", 0, "hyper", "punctual-100"),
    ("http", "connections", "the same: connections opened", 0, None, "received-100"),
    ("http", "peak_mib", "the same: peak memory, MiB", 0, None, "punctual-100"),
    ("kafka", "rate", "drain to Kafka, messages/s", 0, "librdkafka", "punctual"),
    ("rabbitmq", "rate", "drain to RabbitMQ, messages/s", 0, "perf_test", "punctual"),
    *((f"flow {sink}", figure, text.format(flows), decimals, "0", flows)
      for sink, name in (("list", "a list"), ("http", "HTTP"))
      for flows in ("1", "1000")
      for figure, text, decimals in (("rate", f"drain to {name} without and with `flow`, flows: {{}}, messages/s", 0),
                                     ("redis_us", "the same: Redis CPU, µs a message", 1))),
    *((f"history {sink}", figure, text.format(name), decimals, "off", "on")
      for sink, name in (("list", "a list"), ("http", "HTTP"))
      for figure, text, decimals in (("rate", "drain to {} without and with `history`, messages/s", 0),
                                     ("redis_us", "the same: Redis CPU, µs a message", 1))),
    *(("tenants", figures, text.format(instances), decimals, baseline, instances)
      for instances in ("1", "4")
      for figures, text, decimals, baseline in TENANTS),
    *((f"lateness {rate}", LATE, f"{rate:,}/s steady, late: p50 / p99, ms", 1, None, "punctual")
      for rate in (1000, 5000, 10000, 20000, 40000, 80000)),
    ("burst", LATE, "50,000 in a second to a list, late: p50 / p99, ms", 0, None, "punctual"),
    ("burst", LATE, "50,000 in a second to HTTP, late: p50 / p99, ms", 0, None, "punctual-http"),
    *row_of_economy(1, "5,000/s on one route"),
    *row_of_economy(100, "50/s on each of 100 routes"),
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


def shown(found, row, who, figures, decimals):
    """One or several figures; empty when they were not measured."""
    values = [median(found, row, who, figure) for figure in figures]
    return "" if None in values else " / ".join(f"{value:,.{decimals}f}" for value in values)


def main():
    found = read(sys.argv[1])
    print("| measure | baseline | punctual | ratio | BullMQ | asynq |")
    print("|---|---|---|---|---|---|")
    for row, figures, name, decimals, baseline, who in MEASURES:
        figures = (figures,) if isinstance(figures, str) else figures
        below, measured = (shown(found, row, one, figures, decimals) for one in (baseline, who))
        if not measured:
            continue
        share = ratio(found, row, figures[0], baseline, who)
        # Peers have an empty handler, no sink: they are beside the list.
        peers = [shown(found, row, peer, figures, decimals) if who == "punctual" else "" for peer in PEERS]
        print("|", " | ".join([name, below, measured, "" if share is None else f"{share:.2f}", *peers]), "|")


if __name__ == "__main__":
    main()
