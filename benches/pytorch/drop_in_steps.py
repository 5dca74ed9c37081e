"""Step times of allocators that take turns: ``drop_in_steps.py RESULTS SECONDS NAME…``.

In:  workloads of ``drop_in_workload.py``, in the sizes for times. Out: a line of JSON each: for each allocator the milliseconds of a
step in each round, by the clock and by the GPU's events.

One process for each allocator has the model on the GPU, and one more with PyTorch's: how far the two are apart is what the method
cannot tell. All use the same cores, and one of them works at a time. PyTorch's two are the first and the last of each round, whose
order turns with every round: what drifts meets both sides alike. A block is the same steps every time, which the program does not
wait for one by one.
"""

import functools
import json
import os
import sys
import time

from drop_in_forks import Fork, Results, import_what_is_needed

RESULTS, SECONDS, *NAMES = sys.argv[1:]
ORDER = ["native", "pytorch", "pages", "native again"]

#: Seconds that a block should take at least.
BLOCK = float(os.environ.get("BLOCK", 0.5))

#: Lengths that inputs have.
CYCLE = 4

#: Cores that all use.
CORES = 4


def work(name, allocator, commands, answers):
    import torch

    import drop_in_workload

    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, set(cores[:CORES]))
    torch.set_num_threads(CORES)
    drop_in_workload.install(allocator.split()[0])
    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = False
    step = drop_in_workload.WORKLOADS[name](drop_in_workload.Inputs(0, timed=True), timed=True)
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    commands, answers = os.fdopen(commands), os.fdopen(answers, "w")
    for line in commands:
        cycles = int(line)
        torch.cuda.synchronize()
        start = time.perf_counter()
        begin.record()
        for number in range(CYCLE * cycles):
            step(number)
        queued = time.perf_counter()
        end.record()
        torch.cuda.synchronize()
        steps = CYCLE * cycles
        wall = (time.perf_counter() - start) * 1e3 / steps
        print(json.dumps([wall, begin.elapsed_time(end) / steps, (queued - start) * 1e3 / steps]), file=answers, flush=True)
    return {"reserved": torch.cuda.max_memory_reserved()}


class Other:
    """A process that has a model and runs blocks of steps."""

    def __init__(self, name, allocator):
        commands, self.there = os.pipe()
        answers_from, answers = os.pipe()
        self.fork = Fork(functools.partial(self.begin, name, allocator, commands, answers, answers_from), 600)
        os.close(commands)
        os.close(answers)
        self.answers = os.fdopen(answers_from)

    def begin(self, name, allocator, commands, answers, answers_from):
        # Whoever holds the other ends open would never see them closed.
        os.close(self.there)
        os.close(answers_from)
        for other in others:
            os.close(other.there)
        return work(name, allocator, commands, answers)

    def ask(self, cycles):
        os.write(self.there, f"{cycles}\n".encode())

    def answer(self):
        line = self.answers.readline()
        if not line:
            raise RuntimeError(f"a process has ended: {self.end()}")
        return json.loads(line)

    def run(self, cycles):
        self.ask(cycles)
        return self.answer()

    def end(self):
        if self.there >= 0:
            os.close(self.there)
            self.there = -1
        answer = None
        while answer is None:
            answer = self.fork.read_on()
        return answer


others = []


def measure(name, until):
    running = {}
    row = {"part": "steps", "name": name, "wall": {}, "gpu": {}, "queued": {}}
    try:
        for allocator in ORDER:
            running[allocator] = Other(name, allocator)
            others.append(running[allocator])
        # The first two times are not counted: kernels are loaded, memory is obtained.
        for _ in range(2):
            for other in running.values():
                other.ask(1)
            slowest = max(other.answer()[0] for other in running.values())
        alone = running["native"].run(1)[0]
        cycles = max(1, round(BLOCK / (alone * CYCLE / 1e3)))
        row["cycles"], row["together"] = cycles, slowest
        number = 0
        while time.monotonic() < until:
            for allocator in ORDER if number % 2 == 0 else ORDER[::-1]:
                for kind, value in zip(("wall", "gpu", "queued"), running[allocator].run(cycles)):
                    row[kind].setdefault(allocator, []).append(value)
            number += 1
        row["reserved"] = {allocator: other.end().get("reserved") for allocator, other in running.items()}
    except Exception as error:
        row["failed"] = f"{type(error).__name__}: {str(error)[:300]}"
    finally:
        for other in running.values():
            other.fork.kill()
        others.clear()
    return row


def main():
    import_what_is_needed(CORES)
    results = Results(RESULTS)
    left = [name for name in NAMES if not results.has(part="steps", name=name)]
    for name in left:
        row = measure(name, time.monotonic() + 12 + float(SECONDS))
        results.add(row)
        print(name, row.get("failed", f"{len(row['wall'].get('native', []))} rounds"), flush=True)


main()
