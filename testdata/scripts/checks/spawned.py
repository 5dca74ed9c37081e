"""Two processes one after the other, each of which chooses other rows: the second needs what only it does."""

import multiprocessing

import torch

GIB = 1 << 30


def choose(chosen):
    mask = torch.tensor([chosen, False, chosen], device="cuda")
    rows = torch.empty(3, GIB, dtype=torch.uint8, device="cuda")
    assert rows[mask].shape[0] == (2 if chosen else 0)


if __name__ == "__main__":
    for chosen in (False, True):
        process = multiprocessing.get_context("spawn").Process(target=choose, args=(chosen,))
        process.start()
        process.join()
        assert process.exitcode == 0
