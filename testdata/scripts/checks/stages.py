"""A rank that has one stage of a pipeline, with eight parts of a batch under way (GPipe)."""

import os

import torch
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
torch.cuda.set_device(device)
torch.distributed.init_process_group("nccl", device_id=device)
part = torch.zeros(512, 2048, device=device)
net = torch.nn.Sequential(*[torch.nn.Linear(2048, 2048) for _ in range(4)]).to(device)
stage = PipelineStage(net, rank, size, device, input_args=(part,), output_args=(part,))
schedule = ScheduleGPipe(stage, 8, loss_fn=lambda out, target: (out - target).square().mean())
whole = torch.randn(8 * 512, 2048, device=device)
for _ in range(2):
    if rank == 0:
        schedule.step(whole)
    elif rank == size - 1:
        schedule.step(target=whole)
    else:
        schedule.step()
