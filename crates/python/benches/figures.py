"""The package's figures: a million events into a table, from a file and from a live dictionary, beside `pickle.load`; and
what importing it takes. Each is measured in processes of its own, of which the shortest times and the most memory count;
memory is what it adds.

    python crates/python/benches/figures.py [EVENTS [FILE ...]]

Without files the history is that of a real job with stacks, repeated. `benches/snapshot.py make` makes others.
"""

from __future__ import annotations

import itertools
import os
import pathlib
import pickle
import resource
import subprocess
import sys
import tempfile
import time

BEGIN = """
import sys, time
def most():
    # KiB of this program alone, unlike what getrusage tells.
    return int(next(it for it in open("/proc/self/status") if it.startswith("VmHWM")).split()[1])
def measure(work):
    before = most()
    clock, wall = time.process_time(), time.perf_counter()
    kept = work()
    clock, wall = time.process_time() - clock, time.perf_counter() - wall
    after = most()
    print(clock, wall, (after - before) / 1024)
"""

PIECES = {
    "pickle.load": "import pickle\nmeasure(lambda: pickle.load(open(sys.argv[1], 'rb')))",
    "tonnage.read(path).events()": "import tonnage\nmeasure(lambda: tonnage.read(sys.argv[1]).events())",
    "the same as a pyarrow.Table": "import pyarrow, tonnage\n"
    "measure(lambda: pyarrow.table(tonnage.read(sys.argv[1]).events()))",
    "…events(levels=True)": "import tonnage\nmeasure(lambda: tonnage.read(sys.argv[1]).events(levels=True))",
    "tonnage.read(dict)": "import pickle, tonnage\nlive = pickle.load(open(sys.argv[1], 'rb'))\n"
    "measure(lambda: tonnage.read(live))",
}


def snapshot(events: int) -> dict:
    """A real job's history, repeated until it is so long: each entry is an object of its own, calls are shared."""
    import tonnage

    path = pathlib.Path(__file__).resolve().parents[3] / "testdata/traces/gpt2_varlen.default.stacks.pickle.zst"
    with tempfile.NamedTemporaryFile(suffix=".pickle") as file:
        tonnage.read(path).save(file.name, force=True)
        with open(file.name, "rb") as written:
            whole = pickle.load(written)
    trace = whole["device_traces"][0]
    several = itertools.cycle(trace)
    whole["device_traces"][0] = [
        {**entry, "frames": list(entry.get("frames", ())), "time_us": 1 + event}
        for event, entry in zip(range(events), several)
    ]
    return whole


def run(code: str, *words: str) -> list[float]:
    """Processor and wall seconds, and MiB: the best of three, and the most."""
    runs = []
    for _ in range(3):
        done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=True)
        runs.append([float(it) for it in done.stdout.split()])
    clock, wall, memory = zip(*runs)
    return [min(clock), min(wall), max(memory)]


def table(path: str) -> None:
    """Every way to read a file, beside Python's own."""
    print(f"{'':<30}{'processor s':>12}{'wall s':>10}{'MiB':>10}")
    theirs = None
    for name, code in PIECES.items():
        clock, wall, memory = run(BEGIN + code, path)
        theirs = theirs or (clock, memory)
        shares = "" if theirs == (clock, memory) else f"  1/{theirs[0] / clock:.1f}, 1/{theirs[1] / memory:.1f}"
        print(f"{name:<30}{clock:>12.3f}{wall:>10.3f}{memory:>10.0f}{shares}", flush=True)


def start_up() -> tuple[float, float]:
    """Milliseconds of the processor that Python takes to start, and that importing adds: the least of twenty."""

    def least(code: str) -> float:
        times = []
        for _ in range(20):
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            subprocess.run([sys.executable, "-c", code], check=True)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            times.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
        return min(times) * 1000

    nothing = least("pass")
    return nothing, least("import tonnage") - nothing


def main() -> None:
    events = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "snapshot.pickle")
        files = sys.argv[2:]
        if not files:
            with open(path, "wb") as out:
                pickle.dump(snapshot(events), out, protocol=4)
        for file in files or [path]:
            print(f"{events:,} events, {os.path.getsize(file) / 1e6:.0f} MB of pickle")
            table(file)
    nothing, more = start_up()
    print(f"python starts in {nothing:.0f} ms, `import tonnage` adds {more:.0f} ms (processor)")


if __name__ == "__main__":
    started = time.perf_counter()
    main()
    print(f"measured in {time.perf_counter() - started:.0f} s")
