"""What a request costs from Python: ``drop_in_costs.py RESULTS [ROUNDS]``. Out: lines of JSON, in ns, by allocators that take turns."""

import functools
import statistics
import sys
import time

from drop_in_forks import Results, import_what_is_needed, one


def pair(size, rounds=20000):
    """Nanoseconds of an allocation and its free, past PyTorch's own tensor: the allocator is called as extensions call it."""
    import torch

    allocate, free = torch._C._cuda_cudaCachingAllocator_raw_alloc, torch._C._cuda_cudaCachingAllocator_raw_delete
    return median_of(lambda: free(allocate(size, 0)), rounds)


def tensor(size, rounds=20000):
    """Nanoseconds of a tensor that is made and dropped."""
    import torch

    return median_of(lambda: torch.empty(size, dtype=torch.uint8, device="cuda"), rounds)


def median_of(work, rounds):
    """The median of nine."""
    times = []
    for _ in range(9):
        start = time.perf_counter_ns()
        for _ in range(rounds):
            work()
        times.append((time.perf_counter_ns() - start) / rounds)
    return statistics.median(times)


def measure(allocator):
    import torch

    import drop_in_workload

    drop_in_workload.install(allocator)
    torch.cuda.init()
    # Others are live, as in a program.
    kept = [torch.empty(1 + (number * 7919) % (4 << 20), dtype=torch.uint8, device="cuda") for number in range(2000)]
    del kept[::3]
    answer = {}
    for size in (1000, 3 << 20, 64 << 20):
        answer[f"pair {size}"] = pair(size)
        answer[f"tensor {size}"] = tensor(size)
    for stacks in ("python", "all"):
        torch.cuda.memory._record_memory_history(max_entries=100_000, stacks=stacks)
        answer[f"history {stacks}"] = tensor(3 << 20, 2000)
        torch.cuda.memory._record_memory_history(enabled=None)
    return answer


def main(path, rounds=3):
    import_what_is_needed(4)
    results = Results(path)
    for turn in range(int(rounds)):
        for allocator in ("native", "pytorch", "pages"):
            if not results.has(part="costs", allocator=allocator, turn=turn):
                answer = one(functools.partial(measure, allocator), 60)
                row = {"part": "costs", "allocator": allocator, "turn": turn}
                results.add({**row, **({"failed": answer["failed"]} if "failed" in answer else {"ns": answer})})


main(*sys.argv[1:])
