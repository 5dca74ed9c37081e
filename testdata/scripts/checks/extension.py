"""A library with kernels of its own, compiled by whoever published it: an optimizer with states of 8 bits, and weights of 4 bits."""

import bitsandbytes
import torch

MIB = 1 << 20

net = torch.nn.Sequential(*(torch.nn.Linear(4096, 4096, bias=False) for _ in range(4))).cuda()
optimizer = bitsandbytes.optim.Adam8bit(net.parameters())
for _ in range(2):
    net(torch.randn(16, 4096, device="cuda")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
states = [value for state in optimizer.state.values() for value in state.values() if torch.is_tensor(value)]
assert 128 * MIB < sum(it.numel() * it.element_size() for it in states) < 140 * MIB

small = bitsandbytes.nn.Linear4bit(4096, 4096, bias=False, compute_dtype=torch.bfloat16).cuda()
assert small.weight.numel() * small.weight.element_size() == 8 * MIB
small(torch.randn(16, 4096, device="cuda", dtype=torch.bfloat16))
