"""A script that ends as its argument says, while a child that uses the device may still run."""

import os
import signal
import sys

import torch

held = torch.zeros(1 << 30, dtype=torch.uint8, device="cuda")
how = sys.argv[1]
if how == "crash":
    os.kill(os.getpid(), signal.SIGSEGV)
elif how == "abort":
    os.abort()
elif how == "leave":
    os._exit(0)
elif how == "status":
    sys.exit(3)
elif how == "loop":
    while True:
        torch.zeros(1 << 20, device="cuda")
