"""What a request costs from Python, under one allocator: ``drop_in_costs.py native|pytorch|pages``. Out: a line of JSON, in ns."""

import json
import statistics
import sys
import time

import torch

ALLOCATOR = sys.argv[1]
if ALLOCATOR != "native":
    import tonnage.torch

    tonnage.torch.install(policy=ALLOCATOR, publish=False)


def pair(size, rounds=20000):
    """Nanoseconds of an allocation and its free, past PyTorch's own tensor: the allocator is called as extensions call it."""
    allocate, free = torch._C._cuda_cudaCachingAllocator_raw_alloc, torch._C._cuda_cudaCachingAllocator_raw_delete
    times = []
    for _ in range(9):
        start = time.perf_counter_ns()
        for _ in range(rounds):
            free(allocate(size, 0))
        times.append((time.perf_counter_ns() - start) / rounds)
    return statistics.median(times)


def tensor(size, rounds=20000):
    """Nanoseconds of a tensor that is made and dropped."""
    times = []
    for _ in range(9):
        start = time.perf_counter_ns()
        for _ in range(rounds):
            torch.empty(size, dtype=torch.uint8, device="cuda")
        times.append((time.perf_counter_ns() - start) / rounds)
    return statistics.median(times)


torch.cuda.init()
# Others are live, as in a program.
kept = [torch.empty(1 + (number * 7919) % (4 << 20), dtype=torch.uint8, device="cuda") for number in range(2000)]
del kept[::3]
answer = {"allocator": ALLOCATOR}
for size in (1000, 3 << 20, 64 << 20):
    answer[f"pair {size}"] = pair(size)
    answer[f"tensor {size}"] = tensor(size)
for stacks in ("python", "all"):
    torch.cuda.memory._record_memory_history(max_entries=100_000, stacks=stacks)
    answer[f"history {stacks}"] = tensor(3 << 20, 2000)
    torch.cuda.memory._record_memory_history(enabled=None)
print(json.dumps(answer), flush=True)
