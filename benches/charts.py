"""charts.py RAW DIRECTORY: lateness.svg, drain.svg and flow.svg in DIRECTORY from the results of run.sh."""

import math
import sys

from table import median, ratio, read

WIDTH, HEIGHT = 720, 360
LEFT, RIGHT, TOP, BOTTOM = 90, 30, 50, 50
INK, GRID, BASELINE, PUNCTUAL = "#333", "#ddd", "#9aa5b1", "#1f6feb"
DRAINS = [("drain", "bare", "list"), ("http", "hyper", "HTTP"), ("kafka", "librdkafka", "Kafka"),
          ("rabbitmq", "perf_test", "RabbitMQ")]
RATES = (1000, 5000, 10000, 20000, 40000, 80000)
PERCENTILES = [("p50_ms", PUNCTUAL, "p50"), ("p99_ms", "#d1495b", "p99")]


def text(x, y, words, anchor="middle", size=13):
    return f'<text x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}" font-size="{size}">{words}</text>'


def line(x1, y1, x2, y2, colour=GRID):
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}"/>'


def rectangle(x, y, width, height, colour):
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{colour}"/>'


def legend(entries):
    x = WIDTH - RIGHT - 100 * len(entries)
    for colour, name in entries:
        yield rectangle(x, TOP - 22, 12, 12, colour)
        yield text(x + 18, TOP - 11, name, "start")
        x += 100


def step(highest):
    """Between lines of the grid: 1, 2 or 5 times a power of ten, so that at most eight lines fit."""
    power = 10 ** math.floor(math.log10(highest / 8))
    return next(power * times for times in (1, 2, 5, 10) if highest / (power * times) <= 8)


def picture(title, parts):
    body = "\n".join([rectangle(0, 0, WIDTH, HEIGHT, "#fff"), text(LEFT, 22, title, "start", 16), *parts])
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
            f'font-family="sans-serif" fill="{INK}">\n{body}\n</svg>\n')


def drains(found):
    """Bars: baseline and punctual for each sink."""
    sinks = [(name, [median(found, row, who, "rate") for who in (baseline, "punctual")],
              ratio(found, row, "rate", baseline, "punctual")) for row, baseline, name in DRAINS]
    sinks = [sink for sink in sinks if None not in sink[1]]
    if not sinks:
        return None
    highest = max(max(rates) for _, rates, _ in sinks)
    parts = list(legend([(BASELINE, "baseline"), (PUNCTUAL, "punctual")]))
    x_of = lambda rate: LEFT + (WIDTH - LEFT - RIGHT - 60) * rate / highest
    mark = 0
    while mark <= highest:
        parts += [line(x_of(mark), TOP, x_of(mark), HEIGHT - BOTTOM),
                  text(x_of(mark), HEIGHT - BOTTOM + 18, f"{mark / 1000:g} k")]
        mark += step(highest)
    parts.append(text(WIDTH / 2, HEIGHT - 10, "messages per second"))
    height = (HEIGHT - TOP - BOTTOM) / len(sinks)
    for place, (name, rates, share) in enumerate(sinks):
        top = TOP + place * height
        parts.append(text(LEFT - 10, top + height / 2 + 4, name, "end"))
        for which, (rate, colour) in enumerate(zip(rates, (BASELINE, PUNCTUAL))):
            y = top + height * (0.14 + 0.38 * which)
            words = f"{rate / 1000:.0f} k" + (f" ({share:.2f})" if which else "")
            parts += [rectangle(LEFT, y, x_of(rate) - LEFT, height * 0.34, colour),
                      text(x_of(rate) + 6, y + height * 0.17 + 4, words, "start")]
    return picture("Drain rates, and the ratio to the baseline", parts)


def lateness(found):
    """Lines: p50 and p99 against the rate, both on logarithmic scales."""
    series = [(name, colour, [(rate, median(found, f"lateness {rate}", "punctual", figure)) for rate in RATES])
              for figure, colour, name in PERCENTILES]
    series = [(name, colour, [point for point in points if point[1] is not None]) for name, colour, points in series]
    if len(series[0][2]) < 2:
        return None
    lates = [late for _, _, points in series for _, late in points]
    lowest, highest = min(lates) / 1.5, max(lates) * 1.5
    rates = [rate for rate, _ in series[0][2]]
    span = math.log(rates[-1] / rates[0])
    x_of = lambda rate: LEFT + (WIDTH - LEFT - RIGHT - 20) * math.log(rate / rates[0]) / span
    y_of = lambda late: HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * math.log(late / lowest) / math.log(highest / lowest)
    parts = list(legend([(colour, name) for _, colour, name in PERCENTILES]))
    for mark in (times * 10 ** power for power in range(-2, 6) for times in (1, 2, 5)):
        if lowest <= mark <= highest:
            parts += [line(LEFT, y_of(mark), WIDTH - RIGHT, y_of(mark)),
                      text(LEFT - 10, y_of(mark) + 4, f"{mark:g} ms", "end")]
    for rate in rates:
        parts.append(text(x_of(rate), HEIGHT - BOTTOM + 18, f"{rate / 1000:g} k"))
    parts.append(text(WIDTH / 2, HEIGHT - 10, "messages due per second"))
    for _, colour, points in series:
        path = " ".join(f"{x_of(rate):.1f},{y_of(late):.1f}" for rate, late in points)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [f'<circle cx="{x_of(rate):.1f}" cy="{y_of(late):.1f}" r="4" fill="{colour}"/>' for rate, late in points]
    return picture("Lateness of messages that are due at an even rate, into a list", parts)


def flow(found):
    """Lines by second: messages of the big tenant, and lateness of the others with and without `flow`."""
    series = [[found.get(("tenants", who, figure), {}).get(1) for figure in ("big", "late")] for who in ("0", "1")]
    if any(None in one for one in series):
        return None
    (plain, plain_late), (big, late) = series
    seconds = len(big)
    half = (HEIGHT - TOP - BOTTOM - 60) / 2
    x_of = lambda second: LEFT + (WIDTH - LEFT - RIGHT - 20) * (second + 0.5) / seconds

    def panel(top, title, unit, lines):
        values = [value for points, _ in lines for value in points if value > 0]
        lowest, highest = min(values) / 1.5, max(values) * 1.5
        y_of = lambda value: top + half - half * math.log(max(value, lowest) / lowest) / math.log(highest / lowest)
        yield text(LEFT, top - 8, title, "start")
        for mark in (10 ** power for power in range(-2, 8)):
            if lowest <= mark <= highest:
                yield line(LEFT, y_of(mark), WIDTH - RIGHT, y_of(mark))
                yield text(LEFT - 10, y_of(mark) + 4, f"{mark:,g}{unit}", "end")
        for points, colour in lines:
            path = " ".join(f"{x_of(second):.1f},{y_of(value):.1f}" for second, value in enumerate(points))
            yield f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>'

    upper, lower = TOP + 30, TOP + half + 90
    # All of them leave in the first seconds.
    while plain and not plain[-1]:
        plain = plain[:-1]
    parts = [*legend([(BASELINE, "without"), (PUNCTUAL, "with flow")]),
             *panel(upper, "the big tenant, messages per second", "", [(plain, BASELINE), (big, PUNCTUAL)]),
             *panel(lower, "the others, p99 late", " ms", [(plain_late, BASELINE), (late, PUNCTUAL)])]
    for second in range(0, seconds + 1, 10):
        parts.append(text(LEFT + (WIDTH - LEFT - RIGHT - 20) * second / seconds, HEIGHT - BOTTOM + 34, f"{second} s"))
    return picture("200,000 messages of one tenant due at once", parts)


def main():
    found = read(sys.argv[1])
    for name, drawn in (("drain", drains(found)), ("lateness", lateness(found)), ("flow", flow(found))):
        if drawn:
            with open(f"{sys.argv[2]}/{name}.svg", "w") as file:
                file.write(drawn)


if __name__ == "__main__":
    main()
