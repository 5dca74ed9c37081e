"""Optimizers, clipping and the gradient scaler under PyTorch: writes optim.json beside this file.

    python optim.py

Everything is in float64 on the CPU, so that numbers agree to the last digits whatever the order of
operations. Gradients are given, not computed: only the rules are compared.
"""

import json
import os

import torch

torch.manual_seed(0)
STEPS = 5
SHAPES = [[3, 4], [5]]

CASES = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "sgd_decay": lambda p: torch.optim.SGD(p, lr=0.1, weight_decay=0.05),
    "sgd_momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, dampening=0.3, weight_decay=0.05),
    "sgd_nesterov": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "adam_decay": lambda p: torch.optim.Adam(p, lr=0.01, betas=(0.8, 0.95), weight_decay=0.1),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1),
}


def flat(tensors):
    return [tensor.detach().flatten().tolist() for tensor in tensors]


start = [torch.randn(shape, dtype=torch.float64) for shape in SHAPES]
grads = [[torch.randn(shape, dtype=torch.float64) for shape in SHAPES] for _ in range(STEPS)]
result = {
    "torch": torch.__version__,
    "shapes": SHAPES,
    "start": flat(start),
    "gradients": [flat(step) for step in grads],
    "cases": {},
}
for name, make in CASES.items():
    parameters = [tensor.clone().requires_grad_(True) for tensor in start]
    optimizer = make(parameters)
    after = []
    for step in grads:
        for parameter, gradient in zip(parameters, step):
            parameter.grad = gradient.clone()
        optimizer.step()
        after.append(flat(parameters))
    result["cases"][name] = after

parameters = [tensor.clone().requires_grad_(True) for tensor in start]
for parameter, gradient in zip(parameters, grads[0]):
    parameter.grad = gradient.clone()
norm = torch.nn.utils.clip_grad_norm_(parameters, 0.5)
result["clip"] = {
    "max": 0.5,
    "norm": norm.item(),
    "gradients": flat([parameter.grad for parameter in parameters]),
}

with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "optim.json"), "w") as file:
    json.dump(result, file, indent=1)
