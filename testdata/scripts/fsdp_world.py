"""`fsdp_rank.py` as a job would start it: a rank of `torchrun`'s, over NCCL. Compared with what that one did."""
import os, torch, torch.nn as nn, torch.distributed as dist
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.device_mesh import init_device_mesh
torch.manual_seed(0); torch.cuda.set_device(int(os.environ["LOCAL_RANK"])); dist.init_process_group(); mesh = init_device_mesh("cuda", (dist.get_world_size(),))
net = nn.Sequential(*[nn.Sequential(nn.LayerNorm(1024), nn.Linear(1024, 4096), nn.GELU(), nn.Linear(4096, 1024)) for _ in range(6)]).cuda()
for block in net: fully_shard(block, mesh=mesh, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32))
fully_shard(net, mesh=mesh); opt = torch.optim.AdamW(net.parameters())
for _ in range(3): net(torch.randn(4096, 1024, device="cuda")).float().pow(2).mean().backward(); opt.step(); opt.zero_grad()
