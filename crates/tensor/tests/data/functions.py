"""Reference values of tests/pytorch_values.rs: inputs, results and gradients by PyTorch on a CPU.

Writes functions.json beside this file, or where the first argument says. The gradient is that of the sum
of the results, each weighted with the cosine of its index.
"""
import json, pathlib, sys
import torch
import torch.nn.functional as F

torch.manual_seed(0)
cases = []
def dump(t):
    data = torch.view_as_real(t.resolve_conj()) if t.is_complex() else t
    return {"dtype": str(t.dtype)[6:], "shape": list(t.shape), "data": data.detach().flatten().tolist()}
def case(name, f, *inputs):
    inputs = [t.requires_grad_() if t.dtype != torch.int64 else t for t in inputs]
    y = f(*inputs)
    if y.requires_grad:
        (y * torch.arange(y.numel(), dtype=torch.float64).cos().to(y.dtype).view(y.shape)).sum().backward()
    grads = [dump(t.grad) if t.grad is not None else None for t in inputs]
    cases.append({"name": name, "inputs": [dump(t) for t in inputs], "output": dump(y), "grads": grads})
def R(*s, dtype=torch.float64): return torch.randn(*s, dtype=dtype)
def I(high, *s): return torch.randint(0, high, s)
C = torch.complex64
case("softmax", lambda x: x.softmax(1), R(2, 3, 4))
case("log_softmax", lambda x: x.log_softmax(-1), R(2, 3, 4))
case("gelu", F.gelu, R(20) * 3)
case("gelu_tanh", lambda x: F.gelu(x, approximate="tanh"), R(20) * 3)
case("cross_entropy", F.cross_entropy, R(6, 5), I(5, 6))
case("cross_entropy_space", F.cross_entropy, R(2, 5, 3), I(5, 2, 3))
case("cross_entropy_weight", lambda x, t, w: F.cross_entropy(x, t, w.detach(), ignore_index=2), R(6, 5), I(5, 6), R(5).exp())
case("nll_loss", lambda x, t: F.nll_loss(x, t, reduction="none"), R(6, 5), I(5, 6))
case("mse_loss", F.mse_loss, R(3, 4), R(3, 4))
case("embedding", lambda t, w: F.embedding(t, w, padding_idx=1), I(6, 3, 4), R(6, 2))
case("cat", lambda a, b: torch.cat([a, b], 1), R(2, 3), R(2, 4))
case("stack", lambda a, b: torch.stack([a, b], 1), R(2, 3), R(2, 3))
case("split", lambda x: x.split(2, 1)[1] * x.split(2, 1)[0], R(3, 5))
case("gather", lambda x, i: x.gather(1, i), R(3, 5), I(5, 2, 7))
case("index_select", lambda x, i: x.index_select(1, i), R(3, 5), I(5, 7))
case("index_add", lambda x, i, s: x.index_add(1, i, s, alpha=0.5), R(3, 5), I(5, 7), R(3, 7))
case("scatter_add", lambda x, i, s: x.scatter_add(0, i, s), R(3, 5), I(3, 4, 2), R(4, 2))
case("one_hot", lambda t: F.one_hot(t, 5), I(5, 2, 3))
case("tril", lambda x: x.tril(-1), R(2, 4, 3))
case("triu", lambda x: x.triu(1), R(2, 4, 3))
sdpa = F.scaled_dot_product_attention
case("attention", sdpa, R(2, 2, 5, 4), R(2, 2, 7, 4), R(2, 2, 7, 3))
case("attention_causal", lambda q, k, v: sdpa(q, k, v, is_causal=True), R(1, 2, 6, 4), R(1, 2, 6, 4), R(1, 2, 6, 4))
case("gram", lambda z: (z.mH @ z).abs(), R(2, 5, 3, dtype=C))
def solve(z, b): return torch.cholesky_solve(b, torch.linalg.cholesky(z.mH @ z + torch.eye(z.shape[-1])))
case("solve", solve, R(2, 5, 3), R(2, 3, 2))
case("solve_complex", lambda z, b: solve(z, b).abs(), R(2, 5, 3, dtype=C), R(2, 3, 2, dtype=C))
file = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).with_name("functions.json"))
file.write_text("[\n" + ",\n".join(json.dumps(case) for case in cases) + "\n]\n")
