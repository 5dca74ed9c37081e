"""Two devices in one process: tensors, copies, a model in two halves, DataParallel."""

import torch
import torch.nn as nn

assert torch.cuda.device_count() == 2 and torch.cuda.can_device_access_peer(0, 1)
one = torch.arange(4, device="cuda:0")
other = one.to("cuda:1")
assert other.device.index == 1 and other.tolist() == [0, 1, 2, 3]

# A model whose halves lie on two devices.
first, second = nn.Linear(1024, 1024).to("cuda:0"), nn.Linear(1024, 1024).to("cuda:1")
optimizer = torch.optim.AdamW([*first.parameters(), *second.parameters()])
for _ in range(2):
    second(first(torch.randn(64, 1024, device="cuda:0")).relu().to("cuda:1")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()

# One on each, with the batch in two halves.
model = nn.DataParallel(nn.Linear(1024, 1024).to("cuda:0"))
model(torch.randn(64, 1024, device="cuda:0")).sum().backward()

# Each device has memory of its own: together more than one has.
held = torch.empty(90 << 30, dtype=torch.uint8, device="cuda:0")
more = torch.empty(100 << 30, dtype=torch.uint8, device="cuda:1")
try:
    torch.empty(90 << 30, dtype=torch.uint8, device="cuda:0")
except torch.OutOfMemoryError as error:
    assert "GPU 0" in str(error), error
else:
    raise AssertionError("a device has more than it has")
