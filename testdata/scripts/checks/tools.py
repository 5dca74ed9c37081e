"""What scripts use beside training: a history of their own, the profiler, settings made inside, workers with pinned memory, kernels of
their own."""

import os
import sys
import tempfile

import torch
import triton
import triton.language as tl

# Settings that the script makes.
torch.cuda.memory._set_allocator_settings("expandable_segments:True")

# A history of its own.
torch.cuda.memory._record_memory_history(max_entries=10)
net = torch.nn.Linear(256, 256).cuda()
with tempfile.TemporaryDirectory() as folder:
    torch.cuda.memory._dump_snapshot(os.path.join(folder, "own.pickle"))
assert torch.cuda.memory._snapshot()["device_traces"]
torch.cuda.memory._record_memory_history(enabled=None)


# Kernels of its own, of which one is chosen by times.
def kernel(source, target, count, BLOCK: tl.constexpr):
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    here = places < count
    tl.store(target + places, tl.load(source + places, mask=here) * 2, mask=here)


twice = triton.jit(kernel)
chosen = triton.autotune(configs=[triton.Config({"BLOCK": 128}), triton.Config({"BLOCK": 256})], key=["count"])(triton.jit(kernel))
source = torch.ones(1 << 20, device="cuda")
target = torch.empty_like(source)
twice[(1 << 10,)](source, target, source.numel(), BLOCK=1024)
chosen[lambda meta: (triton.cdiv(source.numel(), meta["BLOCK"]),)](source, target, source.numel())

# Workers, and memory of the host that the device reads.
if __name__ == "__main__":
    data = torch.utils.data.TensorDataset(torch.randn(64, 256))
    loader = torch.utils.data.DataLoader(data, 16, num_workers=2, pin_memory=True)
    with torch.profiler.profile(profile_memory=True) as profile:
        for (batch,) in loader:
            net(batch.cuda(non_blocking=True)).sum().backward()
    assert profile.key_averages()
    held = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    print(torch.cuda.memory_summary(), file=sys.stderr)
