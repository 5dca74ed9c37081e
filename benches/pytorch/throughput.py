"""Training steps of PyTorch and of Tonnage in turns, on one GPU: same weights, inputs and precision.

    python throughput.py PROGRAM [CASE...]

PROGRAM is the example `throughput` of tonnage-tensor. Prints a table: for each case the time of a step (the best of the rounds of
each side), peaks, and the losses of both; writes all of it to throughput.json in $OUT or here. Fails if bytes are not as predicted
without a GPU, or if losses differ after 20 steps: in the third digit, or by a hundredth after convolutions of 16 bits or TF32, whose
engines round in other orders. PyTorch is as it comes: convolutions of f32 by TF32 (so are Tonnage's here), by engines that need not give
the same bits twice; Tonnage's are asked for the same bits every time.
"""
import json, os, subprocess, sys, tempfile, time
import torch, torch.nn as nn, torch.nn.functional as F
from torch.utils.checkpoint import checkpoint
from safetensors.torch import save_file

FIRST, MEASURED, ROUNDS = 5, 20, 2
DEVICE = "cuda"


class Block(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.ln_1, self.qkv, self.o = nn.LayerNorm(d), nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.ln_2, self.fc, self.proj, self.h = nn.LayerNorm(d), nn.Linear(d, 4 * d), nn.Linear(4 * d, d), h

    def forward(self, x):
        B, T, D = x.shape
        q, k, v = self.qkv(self.ln_1(x)).view(B, T, 3, self.h, D // self.h).permute(2, 0, 3, 1, 4)
        x = x + self.o(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(B, T, D))
        return x + self.proj(F.gelu(self.fc(self.ln_2(x)), approximate="tanh"))


class GPT(nn.Module):
    def __init__(self, V=50304, d=768, L=12, h=12, T=1024, recompute=False):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(V, d), nn.Embedding(T, d)
        self.h, self.ln_f = nn.ModuleList([Block(d, h) for _ in range(L)]), nn.LayerNorm(d)
        self.recompute = recompute
        for name, it in self.named_parameters():
            if it.dim() == 2:
                nn.init.normal_(it, 0.0, 0.02)

    def loss(self, x, y):
        h = self.wte(x) + self.wpe(torch.arange(x.shape[1], device=x.device))
        for b in self.h:
            h = checkpoint(b, h, use_reentrant=False) if self.recompute else b(h)
        return F.cross_entropy(F.linear(self.ln_f(h), self.wte.weight).view(-1, self.wte.num_embeddings), y.view(-1))


NAMES = {"qkv": "attn.c_attn", "o": "attn.c_proj", "fc": "mlp.c_fc", "proj": "mlp.c_proj"}


def as_tonnage(name):
    parts = name.split(".")
    return ".".join(NAMES.get(it, it) if parts[0] == "h" else it for it in parts)


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.b = nn.ModuleList([nn.Sequential(nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, 4096), nn.ReLU()) for _ in range(20)])

    def forward(self, x):
        for b in self.b:
            x = b(x) + x
        return x


def case(name):
    """The model, its optimizer, its loss, the inputs, and the names of the weights as the other side has them."""
    torch.manual_seed(0)
    kind, *rest = name.split()
    same = lambda it: it
    if kind.startswith("gpt2"):
        batch = int(rest[0])
        model = GPT(recompute=kind == "gpt2-checkpoint").to(DEVICE)
        run = torch.compile(model.loss) if "compiled" in rest else model.loss
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
        inputs = {"x": torch.randint(0, 50257, (batch, 1024), device=DEVICE)}

        def loss():
            with torch.autocast("cuda", dtype=torch.bfloat16):
                return run(inputs["x"], inputs["x"])
        return model, optimizer, loss, inputs, as_tonnage, batch * 1024
    if kind.startswith("resnet50"):
        import torchvision
        model = torchvision.models.resnet50().to(DEVICE)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9)  # small, so that losses can be compared
        inputs = {"x": torch.randn(32, 3, 224, 224, device=DEVICE), "y": torch.randint(0, 1000, (32,), device=DEVICE)}

        def loss():
            with torch.autocast("cuda", dtype=torch.bfloat16, enabled=kind.endswith("bf16")):
                return F.cross_entropy(model(inputs["x"]), inputs["y"])
        return model, optimizer, loss, inputs, same, 32
    model = Residual().to(DEVICE)
    optimizer = torch.optim.Adam(model.parameters(), fused=True)
    inputs = {"x": torch.randn(8192, 4096, device=DEVICE)}
    return model, optimizer, lambda: model(inputs["x"]).square().mean(), inputs, lambda it: it[2:], 8192


def ours(name):
    """One case in a process of its own, so that nothing stays: prints JSON. With a folder, saves what it began with."""
    model, optimizer, loss, inputs, names, units = case(name)
    if len(sys.argv) > 3:
        weights = {names(key): it.detach().cpu().contiguous().clone() for key, it in model.state_dict().items()}
        save_file(weights, os.path.join(sys.argv[3], "weights"))
        save_file({key: it.cpu() for key, it in inputs.items()}, os.path.join(sys.argv[3], "inputs"))
    losses = []

    def step():
        it = loss()
        it.backward()
        losses.append(it.detach())
        optimizer.step()
        optimizer.zero_grad()
    for _ in range(FIRST):
        step()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    start = time.time()
    for _ in range(MEASURED):
        step()
    torch.cuda.synchronize()
    ms = (time.time() - start) * 1e3 / MEASURED
    print(json.dumps({"ms": ms, "allocated": torch.cuda.max_memory_allocated(), "reserved": torch.cuda.max_memory_reserved(),
                      "parameters": sum(it.numel() for it in model.parameters()),
                      "losses": [float(it) for it in losses], "units": units}))


CASES = ["gpt2 8", "gpt2 8 graph", "gpt2 32", "gpt2-checkpoint 32", "resnet50", "resnet50-bf16", "residual"]


def both(program, names):
    """The results of every case, and what is wrong with them."""
    results, wrong = {}, []
    for name in names:
        rounds = {"pytorch": [], "tonnage": []}
        with tempfile.TemporaryDirectory() as folder:
            for turn in range(ROUNDS):
                eager = name.removesuffix(" graph")
                rounds["pytorch"].append(run([sys.executable, __file__, "--one", eager] + ([folder] if turn == 0 else [])))
                if "compiled" not in name:
                    files = [os.path.join(folder, it) for it in ("weights", "inputs")]
                    rounds["tonnage"].append(run([program, name.split()[0], *files, *(["--graph"] if name != eager else [])]))
        results[name] = rounds
        best = {}
        for side, tried in rounds.items():
            wrong += [f"{name}, {side}: {it['error']}" for it in tried if "error" in it]
            good = [it for it in tried if "ms" in it]
            if not good:
                continue
            best[side] = it = min(good, key=lambda it: it["ms"])
            rate = next((it["units"] for it in rounds["pytorch"] if "units" in it), 0) / it["ms"] * 1e3
            print(f"{name:20} {side:8} {it['ms']:8.2f} ms {rate:9.0f}/s {it['allocated'] / 2**30:6.2f} GiB allocated {it['reserved'] / 2**30:6.2f} reserved"
                  f" {it['parameters']:12,} parameters, loss {it['losses'][0]:.4f} at first, {it['losses'][19]:.4f} after 20", flush=True)
        ours, theirs = best.get("tonnage"), best.get("pytorch")
        if ours and (ours["allocated"], ours["reserved"]) != (ours["predicted_allocated"], ours["predicted_reserved"]):
            wrong.append(f"{name}: {ours['predicted_allocated']} and {ours['predicted_reserved']} were predicted")
        if ours and theirs and ours["parameters"] != theirs["parameters"]:
            wrong.append(f"{name}: the models differ")
        # PyTorch itself gives 6.771 to 6.782 in the third case.
        allowed = 1e-2 if name.startswith("resnet") else 2e-3
        if ours and theirs and abs(ours["losses"][19] - theirs["losses"][19]) > allowed * theirs["losses"][19]:
            wrong.append(f"{name}: the losses differ")
    return results, wrong


def run(command):
    done = subprocess.run(command, capture_output=True, text=True)
    try:
        return json.loads(done.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        return {"error": (done.stderr or done.stdout)[-2000:]}


if __name__ == "__main__":
    if sys.argv[1] == "--one":
        ours(sys.argv[2])
    else:
        results, wrong = both(sys.argv[1], sys.argv[2:] or CASES)
        with open(os.path.join(os.environ.get("OUT", "."), "throughput.json"), "w") as file:
            json.dump(results, file, indent=1)
        print(*wrong or ["bytes as predicted, losses alike"], sep="\n")
        sys.exit(len(wrong) > 0)
