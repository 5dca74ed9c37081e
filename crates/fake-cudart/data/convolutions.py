"""Random convolutions of the kinds that networks have, each forward and both ways back: convolutions.py SECONDS SEED [benchmark]."""

import random
import sys
import time

import torch
import torch.nn.functional as F

CHANNELS = [
    3, 16, 24, 32, 40, 48, 56, 64, 72, 80, 96, 112, 120, 128, 144, 160, 176, 192, 208, 224, 240, 256, 288, 320,
    336, 384, 416, 448, 480, 512, 528, 576, 640, 672, 728, 768, 832, 896, 960, 1024, 1152, 1280, 1536, 1792, 1920,
    2048, 2560,
]
SIDES = [
    1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 13, 14, 15, 16, 17, 18, 20, 21, 24, 26, 27, 28, 30, 32, 33, 35, 36, 40, 42,
    48, 52, 56, 60, 64, 65, 71, 72, 80, 84, 96, 104, 112, 120, 128, 129, 144, 147, 150, 160, 192, 208, 224, 240,
    256, 288, 299, 320, 352, 384, 416, 448, 480, 512,
]
LENGTHS = [50, 100, 128, 256, 500, 512, 1000, 1024, 1500, 3000, 4096, 8000]
BATCHES = [
    1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 14, 16, 18, 20, 24, 28, 32, 40, 48, 50, 56, 64, 72, 80, 96, 100, 112, 128,
    160, 192, 256, 384, 512,
]
KINDS = [torch.float32] * 9 + [torch.bfloat16] * 6 + [torch.float16] * 5


def layer(rng):
    """Sizes, filter and settings of a layer; nothing if it would take too long, or too much memory."""
    n, c, k, high = rng.choice(BATCHES), rng.choice(CHANNELS), rng.choice(CHANNELS), rng.choice(SIDES)
    wide = high if rng.random() < 0.85 else rng.choice(SIDES)
    rows = columns = rng.choices([1, 3, 5, 7, 4, 2, 8, 14, 16, 11], [33, 44, 5, 6, 3, 3, 1, 1, 3, 1])[0]
    sort = rng.random()
    if sort < 0.04:
        rows, columns = rng.choice([(1, 7), (7, 1), (1, 3), (3, 1), (1, 5), (5, 1)])
    if sort > 0.95:
        high, rows, wide = 1, 1, rng.choice(LENGTHS)
    stride = rng.choices([1, 2, max(rows, columns)], [74, 20, 6])[0]
    dilation = rng.choices([1, 2, 4, 6, 12], [93, 4, 1, 1, 1])[0]
    around = (dilation * (rows - 1) // 2, dilation * (columns - 1) // 2)
    padding = around if rng.random() < 0.85 else (0, 0)
    groups, grouped = 1, rng.random()
    if grouped > 0.93:
        groups = k = c
    elif grouped > 0.87:
        groups = rng.choice([2, 4, 8, 16, 32, 64])
        if c % groups or k % groups:
            return None
    work = 2 * n * k * c * rows * columns * high * wide / groups / stride**2
    if work > 6e11 or n * c * high * wide > 3e8 or n * k * high * wide > 6e8:
        return None
    after = [
        (side + 2 * pad - dilation * (taps - 1) - 1) // stride + 1
        for side, pad, taps in zip((high, wide), padding, (rows, columns))
    ]
    if min(after) < 1:
        return None
    settings = dict(stride=stride, padding=padding, dilation=dilation, groups=groups)
    return (n, c, high, wide), (k, c, rows, columns), settings


def run(rng, image, filters, settings):
    (_, c, _, _), (k, _, rows, columns), groups = image, filters, settings["groups"]
    kind = rng.choice(KINDS)
    layout = torch.channels_last if rng.random() < 0.4 else torch.contiguous_format
    transposed = rng.random() < 0.05
    shape = (c, k // groups, rows, columns) if transposed else (k, c // groups, rows, columns)
    make = lambda shape: torch.empty(shape, device="cuda", dtype=kind).to(memory_format=layout)
    x = make(image).requires_grad_(rng.random() < 0.97)
    y = (F.conv_transpose2d if transposed else F.conv2d)(x, make(shape).requires_grad_(), None, **settings)
    y.backward(torch.empty_like(y))


def main():
    rng = random.Random(int(sys.argv[2]))
    torch.backends.cudnn.benchmark = "benchmark" in sys.argv
    end, done, failed = time.time() + float(sys.argv[1]), 0, 0
    while time.time() < end:
        drawn = layer(rng)
        if drawn is None:
            continue
        try:
            run(rng, *drawn)
            done += 1
        except RuntimeError as error:
            failed += 1
            print(error, *drawn, file=sys.stderr)
        if done % 200 == 0:
            torch.cuda.empty_cache()
    print("layers", done, "failed", failed)


main()
