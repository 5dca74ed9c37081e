"""A child runs out of memory before its parent uses the device; the parent gives up because of it, unless it is told not to
look. Or the child gets over that, and fails by itself: begun by Python, or by PyTorch."""

import multiprocessing
import sys

import torch
import torch.multiprocessing


def child():
    torch.zeros(200 << 30, dtype=torch.uint8, device="cuda")


def gets_over_it(number=0):
    try:
        child()
    except torch.cuda.OutOfMemoryError:
        pass
    raise ValueError("by itself")


if __name__ == "__main__":
    if sys.argv[1:] == ["pytorchs"]:
        try:
            torch.multiprocessing.spawn(gets_over_it)
        except torch.multiprocessing.ProcessRaisedException:
            sys.exit(0)
    target = gets_over_it if sys.argv[1:] == ["got_over"] else child
    process = multiprocessing.get_context("fork").Process(target=target)
    process.start()
    process.join()
    torch.zeros(1 << 20, device="cuda")
    sys.exit(0 if sys.argv[1:] else process.exitcode)
