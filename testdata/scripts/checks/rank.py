"""Rank 3 of 8, whose others are not there: what collectives and the store answer, and whose memory is whose."""

import os

import torch
import torch.distributed as dist

torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("cpu:gloo,cuda:nccl")
assert dist.get_rank() == 3 and dist.get_world_size() == 8

# Each other rank holds what this one holds.
for device in ("cpu", "cuda"):
    total = torch.tensor([7], device=device)
    dist.all_reduce(total)
    assert total.item() == 56, total
    dist.all_reduce(total, op=dist.ReduceOp.MAX)
    assert total.item() == 56, total
gathered = [torch.empty(1) for _ in range(8)]
dist.gather(torch.ones(1), gathered, dst=3)
assert torch.cat(gathered).tolist() == [1.0] * 8
part = torch.empty(1)
dist.reduce_scatter_tensor(part, torch.arange(8.0))
assert part.item() == 24.0
parts = torch.empty(8)
dist.all_to_all_single(parts, torch.arange(8.0))
assert parts.tolist() == [3.0] * 8
# Small values on the device are known too, whatever was there before: programs take sizes from them.
counts = torch.zeros(8, dtype=torch.int64, device="cuda")
dist.all_to_all_single(counts, torch.arange(8, device="cuda"))
assert counts.tolist() == [3] * 8, counts
lengths = [torch.zeros_like(counts) for _ in range(8)]
dist.all_gather(lengths, torch.arange(8, device="cuda"))
assert all(it.tolist() == list(range(8)) for it in lengths), lengths
together = torch.zeros(16, dtype=torch.int64, device="cuda")
dist.all_gather_into_tensor(together, torch.tensor([4, 5], device="cuda"))
assert together.tolist() == [4, 5] * 8, together

# What only another rank knows.
length = torch.tensor([5])
dist.broadcast(length, 0)
assert length.item() == 5
dist.broadcast(length, 3)
received = torch.ones(2)
dist.recv(received, 2)
assert received.tolist() == [0.0, 0.0]
received.fill_(1)
dist.scatter(received, None, src=0)
assert received.tolist() == [0.0, 0.0]

# The store.
store = dist.TCPStore("localhost", 29500, 8, False)
assert isinstance(store, dist.TCPStore) and isinstance(store, dist.Store)
store.set("key", "value")
assert store.get("key") == b"value"
assert store.compare_set("key", "other", "new") == b"value"
assert store.compare_set("key", "value", "new") == b"new"
assert store.compare_set("absent", "expected", "new") == b"expected"
assert store.get("absent") == bytes(128)


class Own(dist.TCPStore):
    pass


assert Own("localhost", 29500).get("key") == b"new"

# Two devices of the host, each with memory of its own: together more than one has.
mine = torch.empty(110 << 30, dtype=torch.uint8, device="cuda")
theirs = torch.empty(100 << 30, dtype=torch.uint8, device="cuda:0")
# Later releases ask an accelerator, whichever it is.
free, total = getattr(torch.accelerator, "get_memory_info", torch.cuda.mem_get_info)()
assert free < total - (110 << 30)
raise SystemExit(0)  # Groups are not destroyed.
