#!/usr/bin/env python3
"""Tests of the tests: edits the scripts of lua/ one at a time, and runs the tests of the store and the simulation on each.

`tests/run.sh --mutants` calls it. A mutant is one edit of one line: a comparison, `and` or `or`, a number, the order of two
arguments or keys, a condition that is negated, a statement that is left out. A seed chooses mutants in all scripts and
includes; the same lines give the same mutants. The tests read the scripts from a copy of lua/ (`PUNCTUAL_TEST_LUA`), so that
nothing is built again. Edits without effect are in equivalent.txt, each with the reason.

The results are kept in target/mutants/lua.txt; `--resume` continues there. Exit 0 if no mutant survived.
"""

import argparse
import hashlib
import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent.parent
LUA = ROOT / "lua"
RESULTS = ROOT / "target/mutants/lua.txt"
BEGIN, END = "-- begin include/", "\n-- end\n"

# Test binary, filters, and environment of each stage, the fastest first. A few runs of the simulation need no server.
STAGES = [
    ("lib", ["scheduler::tests::simulation"], {"PUNCTUAL_SEED": "1"}),
    ("it", ["store::property", "store::injection", "store::faults", "store::history", "store::flows", "store::groups",
            "store::stats", "store::forward", "store::schedules", "store::turns", "store::produce", "store::external"], {}),
    ("it", ["store::"], {}),
    ("lib", ["scheduler::tests::simulation"], {"PUNCTUAL_SIMULATION": "6"}),
]
TEXTUAL = ["store::header", "store::include", "its_copies_of_the_includes_are_current"]
# Seconds for a stage. A mutant that makes the tests hang is caught too. Without one a stage takes one to four minutes.
MAX_SECONDS = 600

TOKEN = re.compile(
    r"(?P<comment>--.*)|(?P<string>'(?:\\.|[^'\\])*'|\"(?:\\.|[^\"\\])*\")|(?P<number>\d+(?:\.\d+)?)|(?P<name>[A-Za-z_]\w*)"
    r"|(?P<op>\.\.\.|\.\.|<=|>=|==|~=|\S)|(?P<space>\s+)"
)
FLIPPED = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "~=", "~=": "==", "and": "or", "or": "and"}
ARITHMETIC = {"+": "-", "-": "+"}
LIMITS = {"min": "max", "max": "min"}
OPEN_ENDS = ("(", "{", ",", "=", "..", "+", "-", "*", "/", " and", " or", " not", "<", ">", "return")


class Mutant(NamedTuple):
    """An edit of one line; `place` is the index of that line."""

    file: str
    place: int
    kind: str
    old: str
    new: str

    def key(self):
        return self.file, self.old.strip(), self.new.strip()

    def __str__(self):
        return f"{self.file}:{self.place + 1} {self.kind}\n  - {self.old.strip()}\n  + {self.new.strip()}"


def tokens(line):
    return [(match.lastgroup, match.group(), match.start()) for match in TOKEN.finditer(line)]


def code_of(line):
    return "".join(text for kind, text, _ in tokens(line) if kind != "comment").rstrip()


def is_balanced(text):
    words = [word for kind, word, _ in tokens(text) if kind in ("op", "name")]
    opened = sum(words.count(word) for word in ("(", "{", "[", "function", "do", "then"))
    return opened == sum(words.count(word) for word in (")", "}", "]", "end"))


def edits_of_line(line, before, after):
    """Kind and text of each edit. `before` and `after` are the code around the line."""
    found = []
    parts = [token for token in tokens(line) if token[0] not in ("comment", "space")]

    def replace(kind, at, length, text):
        found.append((kind, line[:at] + text + line[at + length:]))

    is_text = "error_reply" in line
    for index, (kind, text, at) in enumerate(parts):
        previous = parts[index - 1] if index else (None, "", 0)
        following = parts[index + 1] if index + 1 < len(parts) else (None, "", 0)
        if text in FLIPPED and kind in ("op", "name"):
            replace("comparison" if kind == "op" else "logic", at, len(text), FLIPPED[text])
        elif is_text:
            continue
        elif text in ARITHMETIC and kind == "op" and (previous[0] in ("name", "number") or previous[1] in (")", "]")):
            if previous[1] not in ("return", "and", "or", "not"):
                replace("sign", at, len(text), ARITHMETIC[text])
        elif kind == "number" and "." not in text:
            replace("number", at, len(text), str(int(text) + 1))
        elif kind == "string" and text[1:-1].isdigit():
            replace("number", at, len(text), f"'{int(text[1:-1]) + 1}'")
        elif text in LIMITS and previous[1] == ".":
            replace("limit", at, len(text), LIMITS[text])
        elif text == "," and previous[0] == following[0] == "name" and previous[1] != following[1]:
            # Not a part of a longer expression.
            outer = parts[index - 2][1] if index > 1 else "", parts[index + 2][1] if index + 2 < len(parts) else ""
            if outer[0] in ("(", ",", "{", "local", "=") and outer[1] in (")", ",", "}", "=", "") and "for" not in line:
                start, end = previous[2], following[2] + len(following[1])
                found.append(("swap", f"{line[:start]}{following[1]}, {previous[1]}{line[end:]}"))
    code = code_of(line)
    indent = line[: len(line) - len(line.lstrip())]
    guard = re.match(r"^(\s*(?:else)?if )(.*?)( then\b.*)$", code)
    if guard:
        found.append(("guard", f"{guard[1]}not ({guard[2]}){guard[3]}"))
    statement = code.strip()
    is_whole = is_balanced(code) and not before.endswith(OPEN_ENDS) and not re.match(r"^\s*(and|or|[)}.,=])", after)
    is_effect = re.match(r"^[\w.]+(\[[^=]*\])?(, [\w.]+(\[[^=]*\])?)* = ", statement) or re.match(r"^[\w.]+\(.*\)$", statement)
    is_guarded = re.match(r"^if .* then .* end$", statement) or re.match(r"^return\b", statement)
    if is_whole and (is_effect or is_guarded) and not statement.startswith(("local ", "function")):
        found.append(("left out", indent + "do end"))
    return found


def mutants_of(file, text):
    """All edits of a file. In produce.lua, the copies of includes belong to the includes."""
    lines = text.split("\n")
    start = text[: text.rfind(END) + len(END)].count("\n") if BEGIN in text else 0
    codes = [code_of(line) for line in lines]
    found = []
    for place in range(start, len(lines)):
        if codes[place].strip() == "":
            continue
        before = next((code for code in reversed(codes[:place]) if code.strip()), "")
        after = next((code for code in codes[place + 1:] if code.strip()), "")
        # The last statement of a block can be a `return`, in front of which nothing can be left out but itself.
        for kind, new in edits_of_line(lines[place], before, after):
            found.append(Mutant(file, place, kind, lines[place], new))
    return found


def files():
    return sorted(str(path.relative_to(LUA)) for path in LUA.rglob("*.lua") if "development" not in path.parts)


def chosen(seed, count):
    """About `count` mutants of all files, by size, of all kinds in turn."""
    everything = {file: mutants_of(file, (LUA / file).read_text()) for file in files()}
    total = sum(len(found) for found in everything.values())
    picked = []
    for found in everything.values():
        def rank(mutant):
            return hashlib.sha256(f"{seed} {mutant.key()}".encode()).digest()

        kinds = {}
        for mutant in sorted(found, key=rank):
            kinds.setdefault(mutant.kind, []).append(mutant)
        turns = sorted(kinds.values(), key=lambda of_kind: rank(of_kind[0]))
        quota = min(len(found), max(1, round(count * len(found) / total)))
        of_file = [of_kind[turn] for turn in range(len(found)) for of_kind in turns if turn < len(of_kind)]
        picked.extend(of_file[:quota])
    return picked, total


def write_copy(directory, mutant=None):
    """Copies lua/ with the edit, also into the copies of an include in produce.lua."""
    shutil.copytree(LUA, directory, dirs_exist_ok=True)
    if mutant:
        path = directory / mutant.file
        former = path.read_text()
        lines = former.split("\n")
        lines[mutant.place] = mutant.new
        text = "\n".join(lines)
        path.write_text(text)
        produce = directory / "produce.lua"
        if mutant.file.startswith("include/"):
            whole = produce.read_text()
            copy = f"{BEGIN}{mutant.file.removeprefix('include/')}\n"
            produce.write_text(whole.replace(copy + former, copy + text))


def run_stage(command, environment, log):
    """Runs tests until the first one fails. Returns its name, or None if all passed."""
    with open(log, "w") as output:
        process = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=output,
            text=True, errors="replace", start_new_session=True, cwd=ROOT,
        )
    # The servers of the tests are in the session of the test binary.
    stop = lambda: os.killpg(process.pid, signal.SIGKILL)
    is_late = threading.Event()
    timer = threading.Timer(MAX_SECONDS, lambda: (is_late.set(), stop()))
    timer.start()
    failed = None
    try:
        for line in process.stdout:
            match = re.match(r"^test (\S+) .*FAILED|^test (\S+) \.\.\. .*FAILED", line)
            if match or line.startswith("FAILED"):
                failed = match[1] if match else "a test"
                break
        else:
            if process.wait() != 0:
                failed = "no end" if is_late.is_set() else f"exit {process.returncode}"
            if process.returncode == -signal.SIGKILL and not is_late.is_set():
                raise RuntimeError("the tests were killed from outside")
    finally:
        timer.cancel()
        try:
            stop()
        except ProcessLookupError:
            pass
        process.wait()
    return failed


def judge(mutant, binaries, work, jobs):
    """The first test that fails on a mutant, None if there is none."""
    directory = work / "lua"
    shutil.rmtree(directory, ignore_errors=True)
    write_copy(directory, mutant)
    # A seed for the random operations. A sequence that failed need not be made shorter.
    environment = os.environ | {
        "PUNCTUAL_TEST_LUA": str(directory), "PROPTEST_CASES": "100", "PROPTEST_MAX_SHRINK_ITERS": "0",
        "PROPTEST_RNG_SEED": "1", "RUST_BACKTRACE": "0", "RUST_TEST_THREADS": str(max(2, 3 * os.cpu_count() // jobs)),
        "TMPDIR": str(work),
    }
    passed = []
    for binary, filters, of_stage in STAGES:
        skipped = [word for name in TEXTUAL + (passed if binary == "it" else []) for word in ("--skip", name)]
        while failed := run_stage([binaries[binary], *filters, *skipped], environment | of_stage, work / "stderr"):
            # On a busy machine a test that measures can fail. It must fail alone, too. The random operations measure nothing.
            if not failed.startswith("store::") or "property" in failed or run_stage(
                [binaries[binary], "--exact", failed], environment | of_stage, work / "stderr"
            ):
                return failed
            skipped += ["--skip", failed]
        passed += filters
    return None


def build():
    """The test binaries."""
    found = {}
    for name, arguments in [("lib", ["--lib", "--package", "punctual"]), ("it", ["--test", "it"])]:
        built = subprocess.run(
            ["cargo", "test", "--locked", "--no-run", "--color", "never", *arguments], cwd=ROOT, check=True, stderr=subprocess.PIPE, text=True,
        )
        found[name] = str(ROOT / re.search(r"Executable .*\((.*)\)", built.stderr)[1])
    return found


def equivalents():
    """Edits without effect, with the reason: see equivalent.txt."""
    found = {}
    text = (Path(__file__).parent / "equivalent.txt").read_text()
    for block in re.split(r"\n\s*\n", text):
        match = re.match(r"(?:#.*\n)*(\S+\.lua)\n- (.*)\n\+ (.*)\n(.+)", block.strip())
        if match:
            found[match[1], match[2].strip(), match[3].strip()] = match[4]
    return found


def main():
    options = argparse.ArgumentParser(description="Edits the scripts of lua/ one at a time and runs their tests.")
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--count", type=int, default=200, help="mutants in all, at least one of each file")
    options.add_argument("--part", default="1/1", help="k/n: each n-th mutant")
    options.add_argument("--only", default="", help="a part of the file name")
    options.add_argument("--jobs", type=int, default=os.cpu_count(), help="mutants that are tested at once")
    options.add_argument("--list", action="store_true", help="only show the mutants")
    options.add_argument("--resume", action="store_true", help="leave out mutants that were caught before")
    asked = options.parse_args()

    mutants, total = chosen(asked.seed, asked.count)
    part, parts = map(int, asked.part.split("/"))
    mutants = [mutant for n, mutant in enumerate(mutants) if n % parts == part - 1 and asked.only in mutant.file]
    if asked.list:
        for mutant in mutants:
            print(mutant)
        print(f"{len(mutants)} of {total} possible edits")
        return 0

    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    caught_before = set()
    if asked.resume and RESULTS.exists():
        caught_before = {block.split("\n", 1)[1] for block in RESULTS.read_text().split("\n\n") if block.startswith("caught")}
    known = equivalents()
    binaries = build()
    counts = {"caught": 0, "equivalent": 0, "SURVIVED": 0}
    with tempfile.TemporaryDirectory(prefix="mutants-") as name, open(RESULTS, "a" if asked.resume else "w") as results:
        places = queue.Queue()
        for job in range(asked.jobs):
            places.put(Path(name) / str(job))
            (Path(name) / str(job)).mkdir()
        work = places.queue[0]
        if not caught_before and (failed := judge(None, binaries, work, 1)):
            print(f"without a mutant, {failed} fails:", (work / "stderr").read_text()[-3000:], file=sys.stderr)
            return 2

        def verdict_of(mutant):
            started = time.monotonic()
            if mutant.key() in known:
                return "equivalent", known[mutant.key()]
            work = places.get()
            failed = judge(mutant, binaries, work, asked.jobs)
            places.put(work)
            seconds = f"{time.monotonic() - started:.0f} s"
            return ("caught", f"by {failed} in {seconds}") if failed else ("SURVIVED", f"in {seconds}")

        left = [mutant for mutant in mutants if str(mutant) not in caught_before]
        counts["caught"] = len(mutants) - len(left)
        with ThreadPoolExecutor(asked.jobs) as jobs:
            verdicts = {jobs.submit(verdict_of, mutant): mutant for mutant in left}
            for done in as_completed(verdicts):
                verdict, why = done.result()
                counts[verdict] += 1
                print(text := f"{verdict} {why}\n{verdicts[done]}\n", flush=True)
                print(text, file=results, flush=True)
    print(f"{len(mutants)} mutants: " + ", ".join(f"{number} {verdict}" for verdict, number in counts.items()))
    return 1 if counts["SURVIVED"] else 0


if __name__ == "__main__":
    sys.exit(main())
