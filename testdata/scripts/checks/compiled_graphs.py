"""torch.compile with CUDA graphs."""

import torch

net = torch.nn.Sequential(torch.nn.Linear(512, 2048), torch.nn.GELU(), torch.nn.Linear(2048, 512)).cuda()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
fast = torch.compile(net, mode="reduce-overhead")
for _ in range(5):
    torch.compiler.cudagraph_mark_step_begin()
    fast(torch.randn(256, 512, device="cuda")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
