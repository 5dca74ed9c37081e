"""An allocator in the place of PyTorch's: two functions of a library, here of C's own."""

import torch

own = torch.cuda.memory.CUDAPluggableAllocator("libc.so.6", "malloc", "free")
torch.cuda.memory.change_current_allocator(own)
held = torch.empty(1 << 20, dtype=torch.uint8, device="cuda")
