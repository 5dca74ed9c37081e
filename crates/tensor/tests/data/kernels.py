"""Values and gradients of convolutions, pools, norms, reductions and elementwise functions, by PyTorch.

Run it where PyTorch is, on the CPU:  python kernels.py  writes kernels.json beside itself, which
tests/suite/kernels.rs compares. Everything is float64 from fixed seeds; a case is a name that the test knows,
inputs, the gradient to begin with, results, and the gradients of the inputs.
"""

import json
import pathlib

import torch
import torch.nn.functional as F


def norm_in_training(x, weight, bias):
    mean, var = torch.full((2,), 0.5).double(), torch.full((2,), 2.0).double()
    y = F.batch_norm(x, mean, var, weight, bias, training=True, momentum=0.2, eps=1e-3)
    return y, mean, var


def norm_in_use(x, weight, bias):
    mean, var = torch.full((2,), 0.5).double(), torch.full((2,), 2.0).double()
    return F.batch_norm(x, mean, var, weight, bias, training=False, eps=1e-3)


def changed_through_views(x, other):
    # exp_ comes last: its gradient needs its result, which no later change of y may touch.
    y = x * 2
    y[1].mul_(other)
    y.t()[1].copy_(other[:3])
    y[:, ::2].exp_()
    return y


# name: shapes of the inputs, function
CASES = {
    "conv plain": ([(2, 3, 5, 6), (4, 3, 3, 2), (4,)], lambda x, w, b: F.conv2d(x, w, b)),
    "conv stride padding": ([(2, 2, 7, 6), (3, 2, 3, 3), (3,)],
                            lambda x, w, b: F.conv2d(x, w, b, stride=2, padding=(1, 2))),
    "conv dilation": ([(1, 2, 7, 7), (2, 2, 3, 3)], lambda x, w: F.conv2d(x, w, dilation=2, padding=2)),
    "conv groups": ([(2, 4, 4, 5), (6, 2, 2, 2), (6,)], lambda x, w, b: F.conv2d(x, w, b, groups=2)),
    "conv depthwise": ([(1, 4, 5, 5), (4, 1, 3, 3)], lambda x, w: F.conv2d(x, w, groups=4, padding=1)),
    "conv 1x1": ([(2, 3, 4, 4), (5, 3, 1, 1)], lambda x, w: F.conv2d(x, w)),
    "max pool": ([(2, 2, 7, 6)], lambda x: F.max_pool2d(x, 3, 2, 1)),
    "max pool dilation ceil": ([(1, 2, 8, 7)], lambda x: F.max_pool2d(x, 2, 3, 1, dilation=2, ceil_mode=True)),
    "avg pool": ([(2, 2, 7, 6)], lambda x: F.avg_pool2d(x, 3, 2, 1)),
    "avg pool ceil": ([(1, 2, 8, 7)], lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True)),
    "avg pool without padding": ([(1, 2, 8, 7)],
                                 lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True, count_include_pad=False)),
    "adaptive pool": ([(1, 2, 7, 5)], lambda x: F.adaptive_avg_pool2d(x, (3, 4))),
    "adaptive pool to one": ([(2, 3, 4, 5)], lambda x: F.adaptive_avg_pool2d(x, 1)),
    "batch norm training": ([(4, 2, 3, 3), (2,), (2,)], norm_in_training),
    "batch norm in use": ([(4, 2, 3, 3), (2,), (2,)], norm_in_use),
    "layer norm": ([(3, 4, 5), (4, 5), (4, 5)], lambda x, w, b: F.layer_norm(x, (4, 5), w, b)),
    "rms norm": ([(3, 4, 5), (5,)], lambda x, w: F.rms_norm(x, (5,), w, 1e-5)),
    "group norm": ([(2, 6, 3, 2), (6,), (6,)], lambda x, w, b: F.group_norm(x, 3, w, b)),
    "max": ([(3, 4)], lambda x: x.max()),
    "max of an axis": ([(3, 4, 2)], lambda x: x.max(1)),
    "min of an axis": ([(3, 4, 2)], lambda x: x.min(0, keepdim=True)),
    "argmax": ([(3, 4)], lambda x: (x.sum(), x.argmax(), x.argmax(1), x.argmin(0))),
    "var": ([(3, 4, 2)], lambda x: x.var((0, 2))),
    "std": ([(3, 4)], lambda x: x.std(1, correction=0, keepdim=True)),
    "where": ([(3, 4), (4,)], lambda x, y: torch.where(x > 0.1, x, y)),
    "masked fill": ([(3, 4)], lambda x: x.masked_fill(x > 0.3, -2.5)),
    "clamp": ([(5, 4)], lambda x: x.clamp(-0.5, 0.75)),
    "pow": ([(5,)], lambda x: x.abs().pow(1.7) + x.pow(3)),
    "gelu": ([(9,)], F.gelu),
    "gelu tanh": ([(9,)], lambda x: F.gelu(x, approximate="tanh")),
    "silu": ([(9,)], F.silu),
    "tanh": ([(9,)], torch.tanh),
    "sigmoid": ([(9,)], torch.sigmoid),
    "rsqrt": ([(9,)], lambda x: (x.square() + 0.5).rsqrt()),
    "changed through views": ([(3, 4), (4,)], changed_through_views),
}


def numbers(tensor):
    tensor = tensor.detach()
    return {"shape": list(tensor.shape), "data": tensor.double().flatten().tolist()}


def case(seed, name):
    shapes, function = CASES[name]
    generator = torch.Generator().manual_seed(seed)
    random = lambda shape: torch.randn(shape, generator=generator, dtype=torch.float64)
    inputs = [random(shape).requires_grad_() for shape in shapes]
    results = function(*inputs)
    results = list(results) if isinstance(results, tuple) else [results]
    begin = random(results[0].shape)
    results[0].backward(begin)
    return {
        "name": name,
        "inputs": [numbers(x) for x in inputs],
        "begin": numbers(begin),
        "results": [numbers(x) for x in results],
        "gradients": [numbers(x.grad) for x in inputs],
    }


if __name__ == "__main__":
    cases = [case(seed, name) for seed, name in enumerate(CASES)]
    path = pathlib.Path(__file__).with_suffix(".json")
    path.write_text(json.dumps({"torch": torch.__version__, "cases": cases}) + "\n")
