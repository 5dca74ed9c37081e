"""Tonnage's hot path beside PyTorch's on one GPU: the same sizes, mixes and threads, in turns.

    python3 beside.py ./tonnage [ROUNDS]

The clock of a machine changes from one second to the next. So both sides run in turns, in short rounds,
and each case is the median of its rounds' ratios. A case in which the two did not serve equally many
allocations, or in which Tonnage needs more than a third of PyTorch's time, fails the run.
"""

import json
import statistics
import subprocess
import sys

import torch

# Importing it measures PyTorch and the driver once, by themselves.
from micro import m as pytorch

PAIRS = 50_000
AT_MOST = 1 / 3


def served():
    return torch.cuda.memory_stats()["allocation.all.allocated"]


def ours(program):
    command = [program, "bench", "--device", "cuda:0", "--pairs", str(PAIRS), "--json"]
    measured = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    cases = json.loads(measured)["cases"]
    return {
        (case["case"], case["bytes"], case["threads"]): (case["ns"], case["allocations"])
        for case in cases
        if case["case"] in ("pair", "mix512", "threads")
    }


def theirs(case, size, threads):
    before = served()
    if case == "pair":
        ns, warm = pytorch.pt_pair(size, PAIRS), 1
    elif case == "threads":
        ns, warm = pytorch.pt_threads(size, PAIRS, threads), threads
    else:
        # Two passes, the second counts; which of its calls allocate is up to its random numbers.
        return pytorch.pt_mix(PAIRS), (served() - before) / 2
    return ns, served() - before - warm


def main():
    program, rounds = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 9
    found = {}
    for _ in range(rounds):
        for case, (ns, count) in ours(program).items():
            found.setdefault(case, []).append((ns, count, *theirs(*case)))
    failed = False
    print(f"{'case':<8} {'bytes':>11} threads {'ours':>8} {'PyTorch':>8}  ratio (least to most)   allocations")
    for (case, size, threads), rows in found.items():
        ratios = sorted(a / b for a, _, b, _ in rows)
        ratio = statistics.median(ratios)
        counts = [statistics.median(row[i] for row in rows) for i in (1, 3)]
        # The mix frees and allocates by chance: half of the calls each, a little more or less.
        same = abs(counts[0] - counts[1]) <= (0.02 * PAIRS if case == "mix512" else 0)
        failed |= not same or ratio > AT_MOST
        a, b = (statistics.median(row[i] for row in rows) for i in (0, 2))
        print(
            f"{case:<8} {size:>11} {threads:>7} {a:>8.1f} {b:>8.1f}  {ratio:.3f} ({ratios[0]:.3f} to {ratios[-1]:.3f})"
            f"   {counts[0]:.0f} {counts[1]:.0f}{'' if same else ' DIFFERENT WORK'}{' TOO SLOW' if ratio > AT_MOST else ''}"
        )
    print(f"{rounds} rounds; history off, statistics on")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
