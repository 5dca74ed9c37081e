"""Processes: two use the device, of which one is ended before it can tell; this one never does."""

import multiprocessing
import sys

import torch


def hold(ready, wait):
    held = torch.zeros(1 << 30, dtype=torch.uint8, device="cuda")
    ready.set()
    wait.wait()
    del held


if __name__ == "__main__":
    fork = multiprocessing.get_context("fork")
    ready, wait = fork.Event(), fork.Event()
    first = fork.Process(target=hold, args=(ready, wait))
    first.start()
    ready.wait()
    wait.set()
    first.join()
    assert first.exitcode == 0
    ready, never = fork.Event(), fork.Event()
    second = fork.Process(target=hold, args=(ready, never))
    second.start()
    ready.wait()
    second.terminate()
    second.join()
    assert not torch.cuda.is_initialized()
    sys.exit(0)
