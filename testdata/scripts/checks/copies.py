"""A rank with a copy of the model (DistributedDataParallel): gradients lie in buckets that ranks add up."""

import os

import torch
from torch.nn.parallel import DistributedDataParallel

torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
torch.distributed.init_process_group("nccl")
net = torch.nn.Sequential(*[torch.nn.Linear(4096, 4096, bias=False) for _ in range(4)]).cuda()
copy = DistributedDataParallel(net, device_ids=[torch.cuda.current_device()], gradient_as_bucket_view=False)
for _ in range(3):
    copy(torch.randn(64, 4096, device="cuda")).square().mean().backward()
    net.zero_grad(set_to_none=False)
torch.distributed.destroy_process_group()
