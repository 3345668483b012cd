#!/usr/bin/env python3
"""Tests of the tests: edits of the code, all in one program, of which one acts at a time.

`tests/run.sh --mutants rust` calls it. cargo-mutants lists the edits, `tests/mutants/switch` writes them into a copy of the code,
and those that do not compile are left out. Each test tells which edits it reaches. Each edit is tried with the tests that reach it,
those first that found many in a short time: the library tests (one seed of the simulation), then tests with servers. A test with
a server that fails is run again, and then without the edit, because a busy machine can be the cause. With PUNCTUAL_TEST_KAFKA, the
host and port of a broker, tests of Kafka need not start one for each edit.

Everything is in target/mutants/rust/. A run continues where the last one ended. After another commit, the open edits are tried
again, and those of files that differ; `--new` begins anew. Edits in `equivalent_rust.txt` make no difference, for a reason that stands
there. Exit 0 if no edit is open.
"""

import argparse
import atexit
import hashlib
import json
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
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent.parent
WORK = ROOT / "target/mutants/rust"
TREE = WORK / "tree"
SWITCH = ROOT / "tests/mutants/switch"
EQUIVALENT = ROOT / "tests/mutants/equivalent_rust.txt"
# With servers, of these areas. Tests of examples, pages and clients find little, and take long.
SERVERS = ("store::", "sinks::", "sources::", "api::", "program::")
NOT_TRIED = ("own_sink", "examples", "clients", "rabbitmq_migration", "upgrade", "dev::")
# Seconds of a test alone. Longer ones are not tried.
LONGEST = {"lib": 15.0, "it": 30.0}
# Seconds of tests that run in one process, and how many at once: those with servers wait for most of their time.
TOGETHER, AT_ONCE = {"lib": 0.3, "it": 60.0}, {"lib": 1, "it": 6}
# Where an edit begins; an arm that is left out; another value of a function.
OPEN, ARM, VALUE = (re.compile(mark) for mark in (rb"/\*<(\d+)\*/", rb"/\*<(\d+)\*/(?:if )?!crate", rb"on\((\d+)\) \{ return"))


class Test(NamedTuple):
    name: str
    seconds: float
    reached: frozenset


def run(*command, **more):
    return subprocess.run(command, check=True, **more)


def cargo(*arguments):
    environment = dict(os.environ, CARGO_TARGET_DIR=str(WORK / "target"))
    quiet = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    return subprocess.run(["cargo", *arguments], cwd=TREE, env=environment, text=True, **quiet)


def copy():
    """The code as it was committed, beside the tools that tests use."""
    if TREE.exists():
        update()
        return
    run("git", "clone", "--quiet", "--shared", str(ROOT), str(TREE))
    (TREE / "target").mkdir()
    for tools in ("kafka", "clients", "console"):
        if (ROOT / "target" / tools).exists():
            (TREE / "target" / tools).symlink_to(ROOT / "target" / tools)


def update():
    """The newest commit. Edits keep their results by their names, which have line and column; open ones have none."""
    commits = [run("git", "rev-parse", "HEAD", cwd=tree, stdout=subprocess.PIPE, text=True).stdout for tree in (ROOT, TREE)]
    if commits[0] == commits[1]:
        return
    run("git", "fetch", "--quiet", "origin", "HEAD", cwd=TREE)
    run("git", "checkout", "--quiet", "--force", "FETCH_HEAD", cwd=TREE)
    for path in [WORK / "list.json", *WORK.glob("reached-*.json")]:
        path.unlink(missing_ok=True)
    for path in WORK.glob("results-*.txt"):
        lines = path.read_text().splitlines(keepends=True)
        path.write_text("".join(line for line in lines if not line.startswith("- ")))


def listed():
    path = WORK / "list.json"
    if not path.exists():
        path.write_text(run("cargo", "mutants", "--list", "--json", cwd=TREE, stdout=subprocess.PIPE, text=True).stdout)
    return json.loads(path.read_text())


def without_effect(mutants):
    """The edits in `equivalent_rust.txt`: those of a file with such a name and line of code."""
    known, found = set(), set()
    blocks = re.split(r"\n{2,}", re.sub(r"(?m)^#.*\n", "", EQUIVALENT.read_text()).strip())
    for file, *lines in (block.split("\n") for block in blocks):
        edits = [line for line in lines if re.match("(replace|delete) ", line)]
        known |= {(file, edit, lines[len(edits)]) for edit in edits}
    files, numbers = {}, set()
    for number, mutant in enumerate(mutants):
        file, line, _, edit = re.fullmatch(r"(.+?):(\d+):(\d+): (.*)", mutant["name"]).groups()
        if file not in files:
            shown = run("git", "show", f"HEAD:{file}", cwd=TREE, stdout=subprocess.PIPE, text=True)
            files[file] = shown.stdout.splitlines()
        key = (file, edit, files[file][int(line) - 1].strip())
        if key in known:
            numbers.add(number)
            found.add(key)
    for file, edit, code in sorted(known - found):
        print(f"no such edit: {file}: {edit}: {code}")
    return numbers


def write(left_out):
    """Writes all edits but those in `left_out` into the copy. Returns those that have no place there."""
    run("git", "checkout", "--quiet", "--", "src", cwd=TREE)
    path, switch, mutants = WORK / "left-out.txt", WORK / "switch", listed()
    path.write_text("".join(f"{number}\n" for number in sorted(left_out)))
    (WORK / "not-compiled.txt").write_text("".join(f"{mutants[number]['name']}\n" for number in sorted(left_out)))
    run("cargo", "build", "--quiet", "--locked", "--release", "--target-dir", str(switch), cwd=SWITCH)
    command = (str(switch / "release/punctual-mutants"), str(TREE), str(WORK / "list.json"), str(path))
    return {int(number) for number in run(*command, stdout=subprocess.PIPE, text=True).stdout.split()}


def causes(error):
    """The edits that an error of the compiler is about."""
    further = [span for child in error["children"] for span in child["spans"]] + error["spans"]
    for spans in ([span for span in error["spans"] if span["is_primary"]], further):
        found = set()
        # A span may be in the standard library.
        for span in (span for span in spans if span["file_name"].startswith("src/")):
            text, first, last = (TREE / span["file_name"]).read_bytes(), span["byte_start"], span["byte_end"]
            best = None
            for mark in OPEN.finditer(text):
                if mark.start() > last:
                    break
                close = text.index(b"/*%s>*/" % mark[1], mark.end())
                contains = mark.start() <= first and close >= last
                # The innermost edit around the error, or the smallest within it.
                fit = (not contains, close - mark.start(), int(mark[1]))
                if contains or (first <= mark.start() and close <= last):
                    best = min(best or fit, fit)
            if best:
                found.add(best[2])
        if found:
            return found
    span = next(span for span in error["spans"] if span["is_primary"])
    text = (TREE / span["file_name"]).read_bytes()
    if "non-exhaustive" in error["message"]:
        # An arm of this `match` cannot be left out.
        return {int(mark[1]) for mark in list(ARM.finditer(text, span["byte_end"]))[:1]}
    # Another type than that of the value before, as with `impl Iterator`.
    return {int(mark[1]) for mark in list(VALUE.finditer(text, 0, span["byte_start"]))[-1:]}


def build(left_out, servers):
    """Leaves out what does not compile. Returns the test binaries."""
    kinds = [("check", "--lib"), ("test", "--no-run", "--lib")]
    if servers:
        kinds.append(("test", "--no-run", "--test", "it"))
    binaries = {}
    while kinds:
        built = cargo(*kinds[0], "--locked", "--message-format=json")
        messages = [json.loads(line) for line in built.stdout.splitlines()]
        if built.returncode == 0:
            for message in messages:
                if message.get("executable") and message["profile"]["test"]:
                    binaries["it" if message["target"]["name"] == "it" else "lib"] = message["executable"]
            kinds.pop(0)
            continue
        errors = [m["message"] for m in messages if m["reason"] == "compiler-message" and m["message"]["level"] == "error"]
        wrong = set().union(*(causes(error) for error in errors if error["spans"]))
        print(f"{len(wrong)} edits do not compile", flush=True)
        if not wrong - left_out:
            sys.exit("the rest does not compile either: " + json.dumps(errors)[:2000])
        left_out |= wrong
        write(left_out)
    return binaries


# Tests that run, with their directories.
RUNNING = {}
# Directories of nodes of RabbitMQ, and those that no test uses now. The first test in a directory starts the node.
NODES, IDLE = [], queue.Queue()
# No test starts any more.
STOPPED = threading.Event()


def stop(number, _):
    """A test with an endless loop would outlive this process, and a test that starts now would start its node again."""
    STOPPED.set()
    for process, directory in list(RUNNING.items()):
        end(process, directory)
    stop_nodes()
    os._exit(128 + number)


def start_nodes(count, binary, tests):
    """A test with an edit finds its node running."""
    atexit.register(stop_nodes)
    NODES.extend(tempfile.mkdtemp(prefix="rabbitmq-") for _ in range(count))
    for directory in NODES:
        IDLE.put(directory)
    first = [name for name in tests if name.startswith("sinks::rabbitmq::delivery::")][:1]
    with ThreadPoolExecutor(count) as pool:
        list(pool.map(lambda _: execute(binary, first, {}, 300), NODES))


def stop_nodes():
    for directory in NODES:
        for file in Path(directory).glob("*.pid"):
            try:
                os.kill(int(file.read_text()), signal.SIGKILL)
            except ProcessLookupError:
                continue
        shutil.rmtree(directory, ignore_errors=True)


def end(process, directory):
    """Kills a test, and what it left behind: an embedded Redis outlives a killed parent."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if Path(os.readlink(entry / "cwd")).is_relative_to(directory):
                os.kill(int(entry.name), signal.SIGKILL)
        except OSError:
            # It has ended, or belongs to another user.
            continue


def execute(binary, names, environment, limit, at_once=1):
    """The first test that fails or does not end in time, or nothing, and the seconds."""
    began, failed, passed, late = time.time(), None, set(), threading.Event()
    node = IDLE.get() if NODES else ""
    if STOPPED.is_set():
        threading.Event().wait()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory:
        environment = dict(os.environ, RUST_BACKTRACE="0", PUNCTUAL_SEED="1", TMPDIR=directory, **environment)
        if node:
            environment["PUNCTUAL_TEST_RABBITMQ_NODE"] = node
        process = subprocess.Popen(
            [binary, "--exact", f"--test-threads={at_once}", *names], cwd=TREE, env=environment, start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )
        RUNNING[process] = directory
        timer = threading.Timer(limit, lambda: (late.set(), end(process, directory)))
        timer.start()
        with process.stdout:
            for line in process.stdout:
                if line.startswith(b"test ") and b"... FAILED" in line:
                    failed = line.split()[1].decode()
                    break
                if line.startswith(b"test ") and b"... ok" in line:
                    passed.add(line.split()[1].decode())
        timer.cancel()
        # Its result is known when all tests have passed or one has failed.
        code = None if failed else process.wait()
        end(process, directory)
        process.wait()
        RUNNING.pop(process)
    if node:
        IDLE.put(node)
    if failed is None and (code != 0 or late.is_set()):
        # Tests begin in the order of their names.
        failed = min(set(names) - passed, default=names[0])
    return failed, time.time() - began


def names(binary, *options):
    command = (binary, "--list", "--format=terse", *options)
    lines = run(*command, cwd=TREE, stdout=subprocess.PIPE, text=True).stdout.splitlines()
    return [line.removesuffix(": test") for line in lines if line.endswith(": test")]


def chosen(kind, servers):
    """In the names of files, if only some of the tests with servers run."""
    return "-" + "-".join(servers).replace(":", "") if kind == "it" and servers != SERVERS else ""


def tried(tests, servers):
    return [name for name in tests if name.startswith(servers) and not any(part in name for part in NOT_TRIED)]


def reached(kind, binary, jobs, servers):
    """What each test reaches."""
    path = WORK / f"reached-{kind}{chosen(kind, servers)}.json"
    if not path.exists():
        ignored = set(names(binary, "--ignored"))
        tests = [name for name in names(binary) if name not in ignored]
        if kind == "it":
            tests = tried(tests, servers)
        (WORK / "reports").mkdir(exist_ok=True)

        def one(name):
            report = WORK / "reports" / hashlib.sha1(name.encode()).hexdigest()
            report.unlink(missing_ok=True)
            failed, seconds = execute(binary, [name], {"PUNCTUAL_MUTANTS_REACHED": str(report)}, 300)
            numbers = report.read_text().split() if report.exists() and not failed else []
            return {"name": name, "seconds": seconds, "reached": sorted({int(number) for number in numbers})}

        with ThreadPoolExecutor(jobs) as pool:
            path.write_text(json.dumps(list(pool.map(one, tests))))
    tests = [Test(row["name"], row["seconds"], frozenset(row["reached"])) for row in json.loads(path.read_text())]
    return [test for test in tests if test.reached and test.seconds <= LONGEST[kind]]


class Trial:
    """The tests of one kind, on one edit after the other."""

    def __init__(self, kind, binary, tests, seconds):
        self.kind, self.binary, self.tests = kind, binary, tests
        self.seconds = seconds
        self.catches, self.lock = {}, threading.Lock()

    def catch(self, number, file):
        """The test that fails with this edit of `file`."""
        began = time.time()
        merit = lambda test: (self.catches.get(test.name, 0) + 0.05) / (test.seconds + 0.05)
        # A broker takes seconds to start.
        brokers = ("kafka", "rabbitmq") if self.kind == "it" else ()
        others = [name for name in brokers if f"/{name}/" not in file]
        tests = [test for test in self.tests if number in test.reached and not any(name in test.name for name in others)]
        tests.sort(key=merit, reverse=True)
        environment = {"PUNCTUAL_MUTANT": str(number)}
        while tests and (self.kind == "lib" or time.time() - began < self.seconds):
            count, seconds = 1, tests[0].seconds
            while count < len(tests) and seconds + tests[count].seconds <= TOGETHER[self.kind]:
                seconds += tests[count].seconds
                count += 1
            together, tests = tests[:count], tests[count:]
            limit = 15 + 5 * seconds / AT_ONCE[self.kind]
            failed, _ = execute(self.binary, [test.name for test in together], environment, limit, AT_ONCE[self.kind])
            if failed and self.kind == "it":
                again = execute(self.binary, [failed], environment, limit)[0]
                if not again or execute(self.binary, [failed], {}, limit)[0]:
                    # The others, without the one that fails on this machine.
                    tests, failed = [test for test in together if test.name != failed] + tests, None
            if failed:
                with self.lock:
                    self.catches[failed] = self.catches.get(failed, 0) + 1
                return failed
        return None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sample", type=int, default=0, metavar="N", help="only N edits, in the order of a hash of their names")
    parser.add_argument("--seed", type=int, default=1, help="another order (default 1)")
    parser.add_argument("--only", default="", metavar="REGEX", help="only edits with such a name in cargo mutants --list")
    parser.add_argument("--servers", nargs="*", default=SERVERS, metavar="PREFIX", help="only these tests with servers, or none")
    parser.add_argument("--seconds", type=int, default=45, help="for the tests with servers of one edit (default 45)")
    parser.add_argument("--new", action="store_true", help="forget what was tried before")
    options = parser.parse_args()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    if options.new:
        shutil.rmtree(WORK, ignore_errors=True)
    WORK.mkdir(parents=True, exist_ok=True)
    copy()
    mutants = listed()
    by_name = {mutant["name"]: number for number, mutant in enumerate(mutants)}
    stored = WORK / "not-compiled.txt"
    not_compiled = stored.read_text().splitlines() if stored.exists() else []
    left_out = {by_name[name] for name in not_compiled if name in by_name}
    without_place = write(left_out)
    servers = tuple(options.servers)
    binaries = build(left_out, servers)
    equivalent = without_effect(mutants) - left_out - without_place
    numbers = [number for number in range(len(mutants)) if number not in left_out | without_place | equivalent]
    numbers = [number for number in numbers if re.search(options.only, mutants[number]["name"])]
    numbers.sort(key=lambda number: hashlib.sha256(f"{options.seed} {mutants[number]['name']}".encode()).hexdigest())
    if options.sample:
        numbers = numbers[: options.sample]
    caught, lock = {number: {} for number in numbers}, threading.Lock()
    jobs = os.cpu_count() or 2
    for kind in binaries:
        at_once = jobs if kind == "lib" else 2 * jobs
        if kind == "it" and any("rabbitmq" in name for name in tried(names(binaries[kind]), servers)):
            start_nodes(at_once, binaries[kind], names(binaries[kind]))
        results = WORK / f"results-{kind}{chosen(kind, servers)}.txt"
        for line in results.read_text().splitlines() if results.exists() else []:
            test, name = line.split(" ", 1)
            if by_name.get(name) in caught:
                caught[by_name[name]][kind] = test
        trial = Trial(kind, binaries[kind], reached(kind, binaries[kind], at_once, servers), options.seconds)

        def one(number):
            test = trial.catch(number, mutants[number]["file"]) or "-"
            with lock, results.open("a") as file:
                caught[number][kind] = test
                file.write(f"{test} {mutants[number]['name']}\n")

        left = [number for number in numbers if kind not in caught[number] and set(caught[number].values()) <= {"-"}]
        with ThreadPoolExecutor(jobs) as pool:
            list(pool.map(one, left))
    by_kind = {kind: sum(caught[n].get(kind, "-") != "-" for n in numbers) for kind in ("lib", "it")}
    still_open = [number for number in numbers if set(caught[number].values()) <= {"-"}]
    print(f"{len(mutants)} edits: {len(left_out)} do not compile, {len(without_place)} have no place for a switch")
    print(f"{len(equivalent)} without effect")
    print(f"{len(numbers)} tried: {by_kind['lib']} caught by library tests, {by_kind['it']} by tests with servers")
    for number in still_open:
        print(f"open: {mutants[number]['name']}")
    sys.exit(1 if still_open else 0)


if __name__ == "__main__":
    main()
