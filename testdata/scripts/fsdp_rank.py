"""FSDP2, rank 0 of 8 over the fake process group: blocks sharded one by one, mixed precision."""
import torch, torch.nn as nn, torch.distributed as dist
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.device_mesh import init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore
torch.manual_seed(0); torch.cuda.set_device(0); dist.init_process_group("fake", rank=0, world_size=8, store=FakeStore()); mesh = init_device_mesh("cuda", (8,))
net = nn.Sequential(*[nn.Sequential(nn.LayerNorm(1024), nn.Linear(1024, 4096), nn.GELU(), nn.Linear(4096, 1024)) for _ in range(6)]).cuda()
for block in net: fully_shard(block, mesh=mesh, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32))
fully_shard(net, mesh=mesh); opt = torch.optim.AdamW(net.parameters())
for _ in range(3): net(torch.randn(4096, 1024, device="cuda")).float().pow(2).mean().backward(); opt.step(); opt.zero_grad()
