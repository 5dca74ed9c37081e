"""What one release of PyTorch writes: every kind of entry that a CPU can bring about, pinned memory, a pool, an
annotation and metadata where the release knows them. Run over a CUDA runtime that computes nothing.

    python3 shapes.py OUT
"""

import pickle
import sys

import torch

memory = torch.cuda.memory
try:
    memory._record_memory_history(record_pinned_host_memory=True, stacks="python")
except TypeError:
    memory._record_memory_history(stacks="python")

small = torch.empty(1000, device="cuda")
staging = torch.empty(3_000_000, dtype=torch.uint8, pin_memory=True)
kept = torch.empty(100, pin_memory=True)
large = torch.empty(5 << 20, dtype=torch.uint8, device="cuda")
pool = torch.cuda.MemPool()
with torch.cuda.use_mem_pool(pool):
    pooled = torch.empty(3 << 20, dtype=torch.uint8, device="cuda")
if hasattr(memory, "_annotate_tensor"):
    memory._annotate_tensor(small, "weights")
if hasattr(memory, "_set_memory_metadata"):
    memory._set_memory_metadata("step 1")
more = torch.empty(2000, device="cuda")
del staging, large
torch.cuda.empty_cache()
with open(sys.argv[1], "wb") as file:
    pickle.dump(memory._snapshot(), file)
