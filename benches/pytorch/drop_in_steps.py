"""Step times of allocators that take turns: ``drop_in_steps.py NAME [ROUNDS] [ALLOCATOR…]``.

In:  a workload of ``drop_in_workload.py``. Out: a line of JSON: for each allocator the median seconds of a step in each round.

One process for each allocator has the model on the GPU; they run the same steps one after the other, so that whatever else the
machine does meets all of them.
"""

import json
import os
import statistics
import subprocess
import sys

NAME = sys.argv[1]
ROUNDS = int(sys.argv[2]) if len(sys.argv) > 2 else 8
ALLOCATORS = sys.argv[3:] or ["native", "pytorch", "pages"]
STEPS = 8

HERE = os.path.dirname(os.path.abspath(__file__))


def begin(allocator):
    command = [sys.executable, os.path.join(HERE, "drop_in_workload.py"), NAME, allocator, str(STEPS)]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env={**os.environ, "TURNS": "1"})


def run(process, steps):
    process.stdin.write(f"{steps}\n")
    process.stdin.flush()
    return json.loads(process.stdout.readline())


def main():
    running = {allocator: begin(allocator) for allocator in ALLOCATORS}
    for process in running.values():
        assert json.loads(process.stdout.readline()) == "ready"
    # Every length twice, so that nothing is new.
    for process in running.values():
        run(process, 2 * STEPS)
    rounds = {allocator: [] for allocator in ALLOCATORS}
    for number in range(ROUNDS):
        order = ALLOCATORS if number % 2 == 0 else ALLOCATORS[::-1]
        for allocator in order:
            rounds[allocator].append(statistics.median(run(running[allocator], STEPS)))
    for process in running.values():
        process.stdin.close()
        process.wait(60)
    print(json.dumps({"name": NAME, "rounds": rounds}), flush=True)


main()
