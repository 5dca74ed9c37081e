"""Values that change where no operator of PyTorch's tells it, each of a type of its own; and values that nothing changed."""

import ctypes
import threading

import torch
import torch.nn as nn

GIB = 1 << 30

# Made by Python, and written by nothing: it stays known to the end.
lengths = torch.tensor([3, 5], device="cuda")


# An operator that does not say what it writes.
@torch.library.custom_op("tests::count", mutates_args=())
def count(seen: torch.Tensor) -> torch.Tensor:
    seen.add_(1)
    return seen.float()


seen = torch.zeros(1, dtype=torch.int16, device="cuda")
count(seen)
print(seen.item())

# A graph that is launched again and again.
steps = torch.zeros(1, dtype=torch.int32, device="cuda")
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    steps.add_(1)
for _ in range(5):
    graph.replay()
print(steps.item())


# The backward, which adds to gradients that are there, and to a counter.
class Counts(torch.autograd.Function):
    calls = torch.zeros(1, dtype=torch.int8, device="cuda")

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        Counts.calls.add_(1)
        return grad


large = nn.Parameter(torch.zeros(GIB // 4, device="cuda"))
small = nn.Parameter(torch.zeros(8, device="cuda"))
small.grad = torch.zeros(8, device="cuda")
optimizer = torch.optim.AdamW([large, small], foreach=False)
(Counts.apply(small).sum() * large).sum().backward()
print(Counts.calls.item())
# A step that is left out would leave out half of what is needed.
if torch.isfinite(small.grad).all() and torch.isfinite(large.grad).all():
    optimizer.step()

# A batch norm says of nothing that it is written.
norm = nn.BatchNorm2d(4, device="cuda", dtype=torch.float16)
norm(torch.ones(2, 4, 256, 256, device="cuda", dtype=torch.float16))
print(norm.running_mean.sum().item())

# Another thread.
beside = torch.zeros(1, dtype=torch.uint8, device="cuda")
thread = threading.Thread(target=lambda: beside.add_(1))
thread.start()
thread.join()
print(beside.item())
assert lengths.sum().item() == 8

# A kernel that PyTorch did not launch may have written anything that is older.
older = torch.ones(1, dtype=torch.bool, device="cuda")
ctypes.CDLL("libcuda.so.1").cuLaunchKernel(0)
newer = torch.ones(1, dtype=torch.float64, device="cuda")
print(older.item(), newer.item())

# How much there is, asked of the runtime that PyTorch passes on.
torch.cuda.cudart().cudaMemGetInfo(0)
