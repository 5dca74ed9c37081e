"""A rank of 16: copies of the model that share its state (FSDP2), tensor parallel inside of each, an even model and one whose
rows do not divide. `python mesh.py [uneven]`"""

import os
import sys

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

WIDTH = 1020 if sys.argv[1:] == ["uneven"] else 1024


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x))))


torch.manual_seed(0)
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
torch.distributed.init_process_group()
mesh = init_device_mesh("cuda", (8, 2), mesh_dim_names=("dp", "tp"))
net = nn.Sequential(*[Block() for _ in range(4)]).cuda()
policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
for block in net:
    parallelize_module(block, mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
    fully_shard(block, mesh=mesh["dp"], mp_policy=policy)
fully_shard(net, mesh=mesh["dp"])
optimizer = torch.optim.AdamW(net.parameters(), fused=True)
for _ in range(3):
    net(torch.randn(4096, WIDTH, device="cuda")).float().pow(2).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
