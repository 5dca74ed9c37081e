"""Workloads and scripts under each allocator, several at a time: ``drop_in_runs.py smoke|losses|scripts|peaks|limit RESULTS SECONDS [NAME…]``.

Out: lines of JSON in RESULTS. What is there already is not run again, so that a second call goes on.

smoke    one workload, to see that it works
losses   with deterministic algorithms: PyTorch's allocator twice, then the others. What PyTorch cannot do deterministically is run
         with a warning instead, and says so.
scripts  the same of the scripts that are named
peaks    peaks of memory
limit    1.05 of what was live at most under PyTorch's allocator, as ``peaks`` found it
"""

import functools
import os
import sys
import time

from drop_in_forks import Results, all_of, import_what_is_needed

PART, RESULTS, SECONDS, *NAMES = sys.argv[1:]
TWICE = [("native", 0), ("native", 1), ("pytorch", 0), ("pages", 0), ("expandable", 0)]
STEPS = int(os.environ.get("STEPS", {"losses": 8}.get(PART, 14)))

#: How many run at once: they share the GPU, and the processor.
AT_ONCE = int(os.environ.get("AT_ONCE", 4))

#: Seconds of one run.
MOST = int(os.environ.get("MOST", 100))


def runs(results):
    """What is to be run: key of the row, and the limit."""
    for name in NAMES:
        short = os.path.basename(name)
        if PART in ("losses", "scripts"):
            for allocator, turn in TWICE[: 5 if PART == "losses" else 4]:
                yield (short, allocator, turn), name, None
        elif PART in ("peaks", "smoke"):
            for allocator in ("native", "expandable", "pytorch", "pages"):
                yield (short, allocator, 0), name, None
        else:
            for row in results.of("peaks"):
                if row["name"] == short and row["allocator"] == "native" and "failed" not in row:
                    for allocator in ("native", "expandable", "pages"):
                        yield (short, allocator, 0), name, int(row["allocated"] * 1.05)


def work(name, allocator, limit, deterministic):
    import drop_in_workload

    return drop_in_workload.run(name, allocator, STEPS, limit, deterministic)


def main():
    import_what_is_needed(max(1, (os.cpu_count() or 4) // AT_ONCE))
    results = Results(RESULTS)
    limits = {}
    works = []
    first = "strict" if PART in ("losses", "scripts") else None
    for key, name, limit in runs(results):
        short, allocator, turn = key
        limits[key] = name, limit
        if not results.has(part=PART, name=short, allocator=allocator, turn=turn):
            works.append((key, functools.partial(work, name, allocator, limit, first), MOST))
    again = []

    def tell(key, answer, how=first):
        short, allocator, turn = key
        if how == "strict" and "deterministic" in answer.get("failed", "") and "RuntimeError" in answer["failed"]:
            name, limit = limits[key]
            again.append((key, functools.partial(work, name, allocator, limit, "warned"), MOST))
            return
        row = {**answer, "part": PART, "name": short, "allocator": allocator, "turn": turn, "limit": limits[key][1], "how": how}
        results.add(row)
        words = answer.get("failed", f"{len(answer.get('seconds', []))} steps")
        print(f"{PART} {short} {allocator} {turn}: {words[:150]}", flush=True)

    until = time.monotonic() + float(SECONDS)
    all_of(works, AT_ONCE, tell, until)
    all_of(again, AT_ONCE, lambda key, answer: tell(key, answer, "warned"), until)


main()
