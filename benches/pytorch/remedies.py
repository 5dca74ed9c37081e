"""Pairs of PyTorch programs, one with a fault and one with its remedy, measured on a GPU.

In:  a folder (and names of kinds, else all).
Out: for each kind `KIND.fault.pickle.xz`, the snapshot at the moment of the failure, and `KIND.fixed.pickle.xz`, that of the
     remedied program at its end, both run at the same limit; and `truths.json`: the limit, the failed request, the lines, and
     what both programs need where nothing limits them, from PyTorch's own counters.

    python3 benches/pytorch/remedies.py OUT [KIND ...]

The limit is found by trying: the faulty program fails at it, for want of bytes that are in use at once, so that no setting of the
allocator would have served the request; the remedied program gets through. Every run is a process of its own.
"""
import collections
import copy
import datetime
import inspect
import json
import lzma
import os
import pickle
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor, as_completed

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

MIB = 1 << 20
AT_ONCE = 16
TIMEOUT = 150
# Where limits are tried, between what the remedied program reserves (0) and what the faulty one needs (1).
SHARES = [0.9, 0.85, 0.75, 0.65, 0.5, 0.4, 0.3]
# Programs with many blocks of a few MiB fail by default for want of whole segments, which this setting would have served.
EXPANDABLE = "expandable_segments:True"
PAIRS = {}

Pair = collections.namedtuple("Pair", "program remedy change conf")


def pair(remedy, change, conf=None):
    """Registers a program that takes whether it is remedied. `remedy` names what is done, `change` says it.

    Without `conf`, default settings are tried first. In the program, `# culprit` marks the line whose memory the remedy saves, as
    far as a line of the program asks for it, and `# remedy` the line to change, if that is another. What the program returns
    lives until it is measured.
    """

    def register(program):
        PAIRS[program.__name__] = Pair(program, remedy, change, conf)
        return program

    return register


def lines_of(program, mark):
    lines, first = inspect.getsourcelines(program)
    return [first + i for i, line in enumerate(lines) if mark in line]


# ---- Models -------------------------------------------------------------------------------------


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x, mask=None):
        rows, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(rows, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None)
        x = x + self.out(mixed.transpose(1, 2).reshape(rows, length, width))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Gpt(nn.Module):
    def __init__(self, width=512, layers=8, heads=8, vocab=8192, length=1024):
        super().__init__()
        self.embed, self.place = nn.Embedding(vocab, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList([Block(width, heads) for _ in range(layers)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocab, bias=False)

    def hidden(self, tokens, mask=None, through=lambda block, x, mask: block(x, mask)):
        x = self.embed(tokens) + self.place.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = through(block, x, mask)
        return self.norm(x)

    def forward(self, tokens, **options):
        return self.head(self.hidden(tokens, **options))


def random_tokens(rows, length, vocab=8192):
    return torch.randint(vocab, (rows, length), device="cuda")


def loss_of(logits, tokens):
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())


def mlp(width, layers):
    parts = [part for _ in range(layers) for part in (nn.Linear(width, width), nn.ReLU())]
    return nn.Sequential(*parts[:-1])


def vision_model(name="resnet18"):
    import torchvision

    return getattr(torchvision.models, name)(num_classes=100)


def images_of(rows, side):
    return torch.rand(rows, 3, side, side, device="cuda"), torch.randint(100, (rows,), device="cuda")


# ---- Batches and activations --------------------------------------------------------------------


@pair("accumulate", "half the batch, two passes for each step")
def first_batch_gpt(fixed):
    """The batch is too large in the very first step."""
    model = Gpt().cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    for _ in range(2):
        tokens = random_tokens(16, 512)
        for part in tokens.chunk(2 if fixed else 1):
            loss = loss_of(model(part), part)  # culprit
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()


@pair("accumulate", "half the batch, two passes for each step", EXPANDABLE)
def first_batch_cnn(fixed):
    """The batch is too large in the very first step, of a convolutional network."""
    model = vision_model().cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
    images, labels = images_of(128, 160)
    for _ in range(2):
        parts = 2 if fixed else 1
        for x, y in zip(images.chunk(parts), labels.chunk(parts)):
            loss = F.cross_entropy(model(x), y)  # culprit
            loss.backward()
            del loss
        optimizer.step()
        optimizer.zero_grad()


@pair("checkpoint", "checkpoint every block", EXPANDABLE)
def deep_activations(fixed):
    """A deep network keeps all activations for the way back."""
    model = Gpt(layers=16).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    again = lambda block, x, mask: checkpoint(block, x, mask, use_reentrant=False)
    options = {"through": again} if fixed else {}
    for _ in range(2):
        tokens = random_tokens(8, 512)
        loss = loss_of(model(tokens, **options), tokens)  # culprit
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


@pair("backward_each", "go back after each part, not once after all", EXPANDABLE)
def backward_once(fixed):
    """The losses of all parts of a batch are added up and go back together."""
    model = Gpt().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    for _ in range(2):
        total = 0.0
        for _ in range(6):
            tokens = random_tokens(4, 512)
            loss = loss_of(model(tokens), tokens) / 6  # culprit
            if fixed:
                loss.backward()
                total += loss.item()
            else:
                total = total + loss  # remedy
        if not fixed:
            total.backward()
        optimizer.step()
        optimizer.zero_grad()
        del loss, total


@pair("bound_length", "cut inputs at a length")
def outlier_length(fixed):
    """One batch is much longer than the others."""
    model = Gpt(length=2048).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    for length in [256, 240, 256, 200, 2048, 256]:
        tokens = random_tokens(8, length)
        if fixed:
            tokens = tokens[:, :512]
        loss = loss_of(model(tokens), tokens)  # culprit
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


@pair("no_retain_graph", "backward() without retain_graph=True", EXPANDABLE)
def retain_graph(fixed):
    """The graph of a step lives until the next step has built its own."""
    model = Gpt().cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    for _ in range(3):
        tokens = random_tokens(8, 512)
        loss = loss_of(model(tokens), tokens)  # culprit
        loss.backward(retain_graph=not fixed)  # remedy
        optimizer.step()
        optimizer.zero_grad()


@pair("no_create_graph", "autograd.grad() without create_graph=True", EXPANDABLE)
def create_graph(fixed):
    """Gradients are computed so that they could be differentiated again, and never are."""
    model = nn.Sequential(*[part for _ in range(8) for part in (nn.Linear(1024, 1024), nn.Tanh())]).cuda()
    parameters = list(model.parameters())
    for _ in range(2):
        points = torch.randn(8192, 1024, device="cuda")
        loss = (model(points) - points).square().mean()
        grads = torch.autograd.grad(loss, parameters, create_graph=not fixed)  # culprit
        norm = torch.stack([grad.norm() for grad in grads]).norm().item()
        with torch.no_grad():
            for parameter, grad in zip(parameters, grads):
                parameter.sub_(grad, alpha=1e-2 / max(norm, 1.0))
        del loss, grads, grad


@pair("numbers_not_tensors", "let the hook keep a number, not the tensor", EXPANDABLE)
def hook_keeps_activations(fixed):
    """A hook for a plot keeps what every block returns, of every step."""
    model, seen = Gpt().cuda(), []
    keep = lambda module, inputs, output: seen.append(output.norm().item() if fixed else output.detach())  # remedy
    for block in model.blocks:
        block.register_forward_hook(keep)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    for _ in range(6):
        tokens = random_tokens(8, 512)
        loss = loss_of(model(tokens), tokens)  # culprit
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


@pair("sdpa", "scaled_dot_product_attention instead of scores in memory", EXPANDABLE)
def attention_scores(fixed):
    """Attention writes its scores, length by length, into memory."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(vocab_size=4096, n_positions=1024, n_embd=512, n_layer=4, n_head=8)
    config._attn_implementation = "sdpa" if fixed else "eager"
    model = GPT2LMHeadModel(config).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    for _ in range(2):
        tokens = random_tokens(4, 1024, 4096)
        loss = model(input_ids=tokens, labels=tokens).loss  # culprit
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


@pair("expand", "expand() the mask instead of repeat()", EXPANDABLE)
def mask_repeated(fixed):
    """The mask is the same for every row and head, and is written for each."""
    rows, heads, length = 8, 16, 1024
    model = Gpt(width=256, layers=4, heads=heads, vocab=1024, length=length).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    for _ in range(2):
        tokens = random_tokens(rows, length, 1024)
        mask = torch.full((length, length), float("-inf"), device="cuda").triu(1)
        mask = mask.expand(rows, heads, -1, -1) if fixed else mask.repeat(rows, heads, 1, 1)  # culprit
        loss = loss_of(model(tokens, mask=mask), tokens)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


# ---- Losses -------------------------------------------------------------------------------------


@pair("chunked_loss", "compute logits and loss in chunks, each of which goes back at once")
def vocabulary_logits(fixed):
    """The logits of a large vocabulary outweigh the model."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(vocab_size=128_256, hidden_size=512, intermediate_size=1408, num_hidden_layers=4,
                         num_attention_heads=8, num_key_value_heads=4)
    model = LlamaForCausalLM(config).to(torch.bfloat16).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    for _ in range(2):
        tokens = random_tokens(2, 1024, config.vocab_size)
        if fixed:
            hidden = model.model(input_ids=tokens).last_hidden_state[:, :-1].flatten(0, 1)
            leaf, labels = hidden.detach().requires_grad_(), tokens[:, 1:].flatten()
            for part, wanted in zip(leaf.chunk(8), labels.chunk(8)):
                loss = F.cross_entropy(model.lm_head(part).float(), wanted, reduction="sum") / len(labels)
                loss.backward()
            hidden.backward(leaf.grad)
        else:
            loss = model(input_ids=tokens, labels=tokens).loss  # culprit
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()


@pair("no_upcast", "give the loss its logits as they are, without float()")
def logits_upcast(fixed):
    """Logits are copied to float32 for the loss, which computes in it anyway."""
    model = Gpt(vocab=50_304).to(torch.bfloat16).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    for _ in range(2):
        tokens = random_tokens(8, 512, 50_304)
        logits = model(tokens)
        loss = loss_of(logits if fixed else logits.float(), tokens)  # culprit
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        del logits, loss


@pair("class_indices", "cross_entropy of class indices instead of one-hot targets", EXPANDABLE)
def one_hot_targets(fixed):
    """Targets are written as rows of zeros with a one."""
    model = Gpt(layers=2, vocab=16_384).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    for _ in range(2):
        tokens = random_tokens(8, 512, 16_384)
        logits = model(tokens)
        if fixed:
            loss = F.cross_entropy(logits.flatten(0, 1), tokens.flatten())
        else:
            targets = F.one_hot(tokens, 16_384).float()  # culprit
            loss = -(targets * logits.log_softmax(-1)).sum(-1).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        targets = None
        del logits, loss


@pair("last_logits", "compute the logits of the last position only")
def prefill_logits(fixed):
    """A prompt's logits are computed at every position, and one is used."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(vocab_size=64_000, hidden_size=512, intermediate_size=1408, num_hidden_layers=4,
                         num_attention_heads=8, num_key_value_heads=4)
    model = LlamaForCausalLM(config).to(torch.bfloat16).cuda().eval()
    with torch.inference_mode():
        for _ in range(3):
            prompts = random_tokens(8, 768, config.vocab_size)
            logits = model(input_ids=prompts, logits_to_keep=1 if fixed else 0).logits  # culprit
            chosen = logits[:, -1].argmax(-1).tolist()
            del logits
    assert len(chosen) == 8


# ---- What is kept without need ------------------------------------------------------------------


@pair("no_grad", "evaluate under torch.no_grad()")
def evaluation_with_graph(fixed):
    """Evaluation keeps activations for a way back that never comes."""
    model = Gpt().cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
    tokens = random_tokens(2, 512)
    loss_of(model(tokens), tokens).backward()
    optimizer.step()
    optimizer.zero_grad()
    model.eval()
    right = 0
    with torch.set_grad_enabled(not fixed):  # remedy
        for _ in range(3):
            tokens = random_tokens(16, 512)
            scores = model(tokens)  # culprit
            right += (scores[:, :-1].argmax(-1) == tokens[:, 1:]).sum().item()


@pair("inference_mode", "eval() and torch.inference_mode()", EXPANDABLE)
def inference_as_in_training(fixed):
    """A language model computes features as if it were trained: dropout and graph are on."""
    from transformers import BertConfig, BertModel

    config = BertConfig(hidden_size=512, num_hidden_layers=6, num_attention_heads=8, intermediate_size=2048)
    model = BertModel(config, add_pooling_layer=False).cuda()
    model.train(not fixed)
    features = []
    with torch.inference_mode(fixed):  # remedy
        for _ in range(3):
            tokens = random_tokens(16, 256, 30_000)
            hidden = model(input_ids=tokens).last_hidden_state  # culprit
            features.append(hidden.mean(1).detach().cpu())
            del hidden


@pair("no_grad", "run the teacher under torch.no_grad()")
def teacher_with_graph(fixed):
    """The teacher is not trained, and its activations are kept."""
    teacher, student = Gpt(width=768, heads=12).cuda(), Gpt(width=256, layers=4).cuda()
    optimizer = torch.optim.AdamW(student.parameters(), lr=1e-4, fused=True)
    for _ in range(2):
        tokens = random_tokens(4, 512)
        with torch.set_grad_enabled(not fixed):  # remedy
            wanted = teacher(tokens).softmax(-1)  # culprit
        loss = F.kl_div(student(tokens).log_softmax(-1), wanted.detach(), reduction="batchmean")
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        del wanted, loss


@pair("numbers_not_tensors", "add loss.item()")
def summed_losses(fixed):
    """The sum of validation losses keeps the graph of every batch."""
    model, total = Gpt().cuda(), 0.0
    for _ in range(10):
        tokens = random_tokens(4, 256)
        loss = loss_of(model(tokens), tokens)  # culprit
        total = total + (loss.item() if fixed else loss)  # remedy
        del loss


@pair("outputs_to_host", "keep outputs in host memory", EXPANDABLE)
def outputs_in_list(fixed):
    """Predictions of all batches are kept on the GPU."""
    model, outputs = Gpt(layers=4).cuda().eval(), []
    with torch.no_grad():
        for _ in range(16):
            tokens = random_tokens(4, 512)
            logits = model(tokens)  # culprit
            outputs.append(logits.cpu() if fixed else logits)  # remedy
            del logits


@pair("set_to_none", "zero_grad(set_to_none=True)", EXPANDABLE)
def gradients_kept(fixed):
    """Gradients are set to zero and stay through the next forward."""
    model = Gpt(width=768, heads=12).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    for _ in range(2):
        tokens = random_tokens(4, 256)
        loss = loss_of(model(tokens), tokens)
        loss.backward()  # culprit
        optimizer.step()
        optimizer.zero_grad(set_to_none=fixed)  # remedy


@pair("freeze", "requires_grad_(False) on what is not trained", EXPANDABLE)
def backbone_not_frozen(fixed):
    """Only the head is to be trained; gradients and states are made for all."""
    from transformers import GPT2Config, GPT2Model

    model = GPT2Model(GPT2Config(vocab_size=8192, n_embd=768, n_layer=6, n_head=12)).cuda()
    head = nn.Linear(768, 2).cuda()
    if fixed:
        model.requires_grad_(False)
    trained = [p for p in [*model.parameters(), *head.parameters()] if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-4, fused=True)
    for _ in range(2):
        tokens, labels = random_tokens(4, 256), torch.randint(2, (4,), device="cuda")
        hidden = model(input_ids=tokens, use_cache=False).last_hidden_state  # culprit
        loss = F.cross_entropy(head(hidden[:, -1]), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


# ---- Inputs -------------------------------------------------------------------------------------


@pair("shorter_queue", "two batches ahead instead of 64", EXPANDABLE)
def prefetch_queue(fixed):
    """Batches are copied to the GPU far ahead of their use."""
    model = vision_model().cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
    host, labels = torch.rand(64, 3, 112, 112).pin_memory(), torch.randint(100, (64,), device="cuda")
    ahead = collections.deque()
    for _ in range(2):
        while len(ahead) < (2 if fixed else 64):
            ahead.append(host.to("cuda", non_blocking=True))  # culprit
        loss = F.cross_entropy(model(ahead.popleft()), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


@pair("uint8_images", "keep images as uint8 and convert each batch")
def float_images(fixed):
    """The images lie on the GPU as float32, four times their size."""
    raw = torch.randint(256, (16_000, 3, 64, 64), dtype=torch.uint8)
    images = raw.cuda() if fixed else (raw.float() / 255).cuda()  # culprit
    labels = torch.randint(100, (64,), device="cuda")
    model = vision_model().cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
    for step in range(2):
        batch = images[64 * step : 64 * step + 64]
        loss = F.cross_entropy(model(batch.float() / 255 if fixed else batch), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


# ---- Optimizers, gradients, weights -------------------------------------------------------------


@pair("fused_step", "fused=True")
def adamw_foreach(fixed):
    """The optimizer steps over all parameters at once, with a copy of their size."""
    model = mlp(2048, 16).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True if fixed else None)  # remedy
    for _ in range(2):
        loss = model(torch.randn(64, 2048, device="cuda")).square().mean()
        loss.backward()
        optimizer.step()  # culprit
        optimizer.zero_grad()


@pair("foreach_off", "foreach=False")
def rmsprop_foreach(fixed):
    """The same with an optimizer that has no fused form."""
    model = mlp(2048, 16).cuda()
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-4, foreach=False if fixed else None)  # remedy
    for _ in range(2):
        loss = model(torch.randn(64, 2048, device="cuda")).square().mean()
        loss.backward()
        optimizer.step()  # culprit
        optimizer.zero_grad()


@pair("smaller_states", "an optimizer with factored states")
def adam_states(fixed):
    """Adam's states are twice the parameters."""
    model = mlp(2048, 16).cuda()
    make = torch.optim.Adafactor if fixed else lambda parameters, lr: torch.optim.Adam(parameters, lr=lr, fused=True)
    optimizer = make(model.parameters(), lr=1e-4)  # remedy
    for _ in range(2):
        loss = model(torch.randn(64, 2048, device="cuda")).square().mean()
        loss.backward()
        optimizer.step()  # culprit
        optimizer.zero_grad()


@pair("clip_by_tensor", "clip_grad_norm_(), which takes the norm tensor by tensor")
def clip_flat_copy(fixed):
    """The norm of the gradients is that of a flat copy of all."""
    model = mlp(2048, 16).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    for _ in range(2):
        loss = model(torch.randn(64, 2048, device="cuda")).square().mean()
        loss.backward()
        if fixed:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        else:
            flat = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])  # culprit
            scale = (1.0 / flat.norm()).clamp(max=1.0)
            for parameter in model.parameters():
                parameter.grad.mul_(scale)
            del flat
        optimizer.step()
        optimizer.zero_grad()


@pair("sparse_gradients", "Embedding(sparse=True)")
def dense_embedding(fixed):
    """A step that uses a few rows of a table makes a gradient for all."""
    users = nn.Embedding(2_000_000, 64, sparse=fixed).cuda()  # remedy
    items = nn.Embedding(500_000, 64, sparse=fixed).cuda()
    optimizer = torch.optim.SGD([*users.parameters(), *items.parameters()], lr=1e-2)
    for _ in range(3):
        who = torch.randint(2_000_000, (8192,), device="cuda")
        what = torch.randint(500_000, (8192,), device="cuda")
        loss = -F.logsigmoid((users(who) * items(what)).sum(-1)).mean()
        loss.backward()  # culprit
        optimizer.step()
        optimizer.zero_grad()


@pair("gradient_as_bucket_view", "DistributedDataParallel(gradient_as_bucket_view=True)")
def gradient_buckets(fixed):
    """Gradients are kept twice: as they are, and in the buckets that are reduced."""
    import torch.distributed as dist

    os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")
    dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1)
    model = nn.parallel.DistributedDataParallel(mlp(2048, 16).cuda(), gradient_as_bucket_view=fixed)  # culprit
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    for _ in range(3):
        loss = model(torch.randn(64, 2048, device="cuda")).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    torch.cuda.synchronize()
    dist.destroy_process_group()


@pair("weights_to_host", "keep the average in host memory")
def average_on_gpu(fixed):
    """A moving average of the weights is a second model."""
    model = mlp(2048, 16).cuda()
    if fixed:
        average = [parameter.detach().cpu() for parameter in model.parameters()]
    else:
        average = list(copy.deepcopy(model).requires_grad_(False).parameters())  # culprit
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    for _ in range(2):
        x = torch.randn(64, 2048, device="cuda")
        loss = (model(x) - x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        for mean, parameter in zip(average, model.parameters()):
            mean.lerp_(parameter.detach().to(mean.device), 0.01)


@pair("weights_to_host", "keep earlier weights in host memory", EXPANDABLE)
def earlier_weights(fixed):
    """The weights of every evaluation are kept, to go back to the best."""
    model, earlier = Gpt(layers=6).cuda(), []
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    for _ in range(6):
        tokens = random_tokens(2, 256)
        loss = loss_of(model(tokens), tokens)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if fixed:
            earlier.append({name: value.cpu() for name, value in model.state_dict().items()})
        else:
            earlier.append(copy.deepcopy(model.state_dict()))  # culprit


@pair("load_to_host", "torch.load(map_location=\"cpu\")")
def checkpoint_on_gpu(fixed):
    """A checkpoint is loaded onto the GPU beside the model that it fills."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "weights.pt")
        torch.save({"model": mlp(2048, 16).state_dict(), "epoch": 3}, path)
        model = mlp(2048, 16).cuda()
        saved = torch.load(path, map_location="cpu" if fixed else "cuda")  # culprit
    model.load_state_dict(saved["model"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    for _ in range(saved["epoch"], saved["epoch"] + 2):
        x = torch.randn(64, 2048, device="cuda")
        loss = (model(x) - x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


@pair("autocast_cache_off", "autocast(cache_enabled=False)")
def autocast_weights(fixed):
    """Autocast keeps every weight in bfloat16 too until its region ends."""
    model = mlp(4096, 8).cuda()
    with torch.no_grad(), torch.autocast("cuda", torch.bfloat16, cache_enabled=not fixed):  # remedy
        for _ in range(3):
            scores = model(torch.randn(256, 4096, device="cuda"))  # culprit
            best = scores.argmax(-1).cpu()
    assert len(best) == 256


@pair("bf16_weights", "load the model in bfloat16", EXPANDABLE)
def float32_inference(fixed):
    """A model that would do in bfloat16 serves in float32."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(vocab_size=16_000, hidden_size=1024, intermediate_size=2816, num_hidden_layers=8,
                         num_attention_heads=16, num_key_value_heads=4)
    model = LlamaForCausalLM(config).to(torch.bfloat16 if fixed else torch.float32).eval()
    model.cuda()  # culprit
    with torch.inference_mode():
        for _ in range(2):
            prompts = random_tokens(4, 256, config.vocab_size)
            chosen = model(input_ids=prompts, logits_to_keep=1).logits[:, -1].argmax(-1).tolist()
    assert len(chosen) == 4


@pair("one_model_at_a_time", "move each model to the GPU for its turn", EXPANDABLE)
def models_resident(fixed):
    """The models of a pipeline all lie on the GPU, and work one after the other."""
    models = [Gpt(width=768, layers=layers, heads=12).eval() for layers in (6, 8, 6)]
    if not fixed:
        models = [model.cuda() for model in models]  # culprit
    tokens = random_tokens(4, 256)
    with torch.inference_mode():
        for model in models:
            tokens = model.cuda()(tokens).argmax(-1)
            if fixed:
                model.cpu()


# ---- Inference: caches, graphs, streams ---------------------------------------------------------


class CachedBlock(nn.Module):
    """A decoder's layer that keeps keys and values in a cache."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x, cache):
        rows, length, width = x.shape
        q, k, v = self.qkv(self.norm(x)).view(rows, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, *cache.extend(k, v))
        return x + self.out(mixed.transpose(1, 2).reshape(rows, length, width))


class GrowingCache:
    """Keys and values in pages of 512 tokens, all or the last ones, put side by side in a room that layers share."""

    def __init__(self, room, pages=None):
        self.room, self.pages, self.length = room, collections.deque(maxlen=pages), 0

    def extend(self, k, v):
        start, self.length = self.length % 512, self.length + k.shape[2]
        if start == 0:
            self.pages.append(torch.zeros(2, *k.shape[:2], 512, k.shape[3], dtype=k.dtype, device="cuda"))
        self.pages[-1][..., start : start + k.shape[2], :] = torch.stack([k, v])
        both = torch.cat(list(self.pages), dim=3, out=self.room[..., : 512 * len(self.pages), :])
        return both[..., : 512 * (len(self.pages) - 1) + start + k.shape[2], :]


class WholeCache:
    """A cache that has room for its longest sequence from the start."""

    def __init__(self, rows, heads, longest, width, dtype=torch.bfloat16):
        self.held, self.length = torch.zeros(2, rows, heads, longest, width // heads, dtype=dtype, device="cuda"), 0
        self.scales = torch.ones(2, rows, heads, longest, 1, dtype=torch.bfloat16, device="cuda")

    def extend(self, k, v):
        new, end = torch.stack([k, v]), self.length + k.shape[2]
        if self.held.dtype == torch.int8:
            scale = new.abs().amax(-1, keepdim=True).clamp(min=1e-4) / 127
            self.scales[..., self.length : end, :] = scale
            new = (new / scale).round()
        self.held[..., self.length : end, :] = new
        self.length = end
        held = self.held[..., :end, :]
        return held if held.dtype == torch.bfloat16 else held * self.scales[..., :end, :]


def decoder(width=1024, layers=6, heads=16):
    return nn.ModuleList([CachedBlock(width, heads) for _ in range(layers)]).to(torch.bfloat16).cuda().eval()


def decode(blocks, caches, rows, length, steps, width=1024):
    with torch.inference_mode():
        for _ in range(steps):
            x = torch.randn(rows, length, width, dtype=torch.bfloat16, device="cuda")
            for block, cache in zip(blocks, caches):
                x = block(x, cache)


@pair("bounded_cache", "keep a window of the last tokens")
def cache_grows(fixed):
    """A cache of keys and values grows with every token."""
    blocks, room = decoder(), torch.empty(2, 32, 16, 2048, 64, dtype=torch.bfloat16, device="cuda")
    caches = [GrowingCache(room, pages=2 if fixed else None) for _ in blocks]
    decode(blocks, caches, 32, 128, 16)  # culprit


@pair("smaller_batch", "an eighth of the requests at a time")
def inference_batch(fixed):
    """More requests are served at once than fit."""
    model, requests = Gpt().cuda().eval(), random_tokens(64, 512)
    with torch.inference_mode():
        for part in requests.chunk(8 if fixed else 1):  # remedy
            features = model.hidden(part)  # culprit
            scores = features.mean(1).cpu()
            del features
    assert scores.shape[1] == 512


@pair("cache_of_needed_length", "make the cache as long as the longest request")
def cache_preallocated(fixed):
    """Every request gets a cache for the longest sequence that the model can serve."""
    blocks, longest_request = decoder(), 1024
    longest = longest_request if fixed else 8192
    caches = [WholeCache(8, 16, longest, 1024) for _ in blocks]  # culprit
    decode(blocks, caches, 8, 256, 4)


@pair("quantised_cache", "keep keys and values as int8")
def cache_unquantised(fixed):
    """The cache outweighs the model."""
    blocks = decoder()
    dtype = torch.int8 if fixed else torch.bfloat16
    caches = [WholeCache(16, 16, 2048, 1024, dtype) for _ in blocks]  # culprit
    decode(blocks, caches, 16, 256, 4)


@pair("shared_graph_pool", "capture all graphs into one pool")
def graph_pools(fixed):
    """A CUDA graph is captured for each batch size, with a pool of its own."""
    model = nn.Sequential(nn.Linear(2048, 8192), nn.GELU(), nn.Linear(8192, 2048)).cuda().eval()
    pool = torch.cuda.graph_pool_handle() if fixed else None
    graphs = {}
    with torch.inference_mode():
        static = torch.zeros(4096, 2048, device="cuda")
        model(static)
        for rows in range(4096, 0, -512):
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=pool):  # remedy
                out = model(static[:rows])  # culprit
            graphs[rows] = graph, out
    for graph, _ in graphs.values():
        graph.replay()
    torch.cuda.synchronize()
    return graphs


@pair("fewer_streams", "two streams instead of one for each expert")
def stream_workspaces(fixed):
    """Every stream that multiplies matrices gets a workspace."""
    experts = nn.ModuleList([nn.Linear(1024, 1024, bias=False) for _ in range(24)]).cuda()
    streams = [torch.cuda.Stream() for _ in range(2 if fixed else len(experts))]  # remedy
    x = torch.randn(2048, 1024, device="cuda")
    torch.cuda.synchronize()
    outs = []
    with torch.inference_mode():
        for i, expert in enumerate(experts):
            with torch.cuda.stream(streams[i % len(streams)]):
                outs.append(expert(x))  # culprit
        torch.cuda.synchronize()
        torch.stack(outs).mean(0)


@pair("fewer_copies_in_flight", "wait for older copies before the next")
def copies_in_flight(fixed):
    """Results are copied to the host on a side stream, and held until all copies are done."""
    side, model = torch.cuda.Stream(), Gpt(layers=2).cuda().eval()
    flying, arrived = collections.deque(), []

    def land(most):
        while len(flying) > most:
            done, _, on_host = flying.popleft()
            done.synchronize()
            arrived.append(on_host.float().mean())

    with torch.inference_mode():
        for _ in range(16):
            logits = model(random_tokens(4, 512))  # culprit
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                on_host = torch.empty(logits.shape, pin_memory=True).copy_(logits, non_blocking=True)
                logits.record_stream(side)
                flying.append((side.record_event(), logits, on_host))
            del logits
            land(2 if fixed else 16)  # remedy
        land(0)


# ---- Operations ---------------------------------------------------------------------------------


@pair("preallocate", "write into a tensor that has its size from the start")
def cat_in_loop(fixed):
    """Features are gathered by concatenation: old and new exist at once."""
    model, rows = mlp(2048, 3).cuda().eval(), 8192
    features = torch.empty(12 * rows if fixed else 0, 2048, device="cuda")
    with torch.inference_mode():
        for step in range(12):
            new = model(torch.randn(rows, 2048, device="cuda"))
            if fixed:
                features[step * rows : (step + 1) * rows] = new
            else:
                features = torch.cat([features, new])  # culprit


@pair("topk", "topk() instead of a full sort")
def sort_for_the_best(fixed):
    """All scores are sorted for the best few."""
    users, items = torch.randn(2048, 64, device="cuda"), torch.randn(200_000, 64, device="cuda")
    best = []
    for part in users.chunk(4):
        scores = part @ items.T
        found = scores.topk(50, dim=1) if fixed else scores.sort(dim=1, descending=True)  # culprit
        best.append(found.indices[:, :50].cpu())
        del scores, found


@pair("cdist", "cdist() instead of all differences")
def pairwise_differences(fixed):
    """Distances are computed by way of all differences."""
    model = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 32)).cuda()
    with torch.inference_mode():
        a, b = (model(torch.randn(3072, 256, device="cuda")) for _ in range(2))
        if fixed:
            distances = torch.cdist(a, b)
        else:
            distances = (a[:, None] - b[None]).square().sum(-1).sqrt()  # culprit
        nearest = distances.argmin(1).cpu()
    assert len(nearest) == 3072


@pair("smaller_batch", "rays in chunks")
def all_rays_at_once(fixed):
    """An image is rendered with all its rays at once."""
    layers = [nn.Linear(63, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 4)]
    field, points = nn.Sequential(*layers).cuda().eval(), torch.rand(1 << 19, 3, device="cuda")

    def colours(points):
        waves = [wave(points * 2**i) for i in range(10) for wave in (torch.sin, torch.cos)]
        return field(torch.cat([points, *waves], dim=-1))  # culprit

    with torch.inference_mode():
        image = torch.cat([colours(part) for part in points.chunk(8 if fixed else 1)])  # remedy
    assert image.shape == (1 << 19, 4)


# ---- One run ------------------------------------------------------------------------------------


def without_places(snapshot):
    """Cuts the names of files to what means the same on every machine."""
    entries = [entry for trace in snapshot["device_traces"] for entry in trace]
    blocks = [block for segment in snapshot["segments"] for block in [segment, *segment["blocks"]]]
    for frame in (frame for held in entries + blocks for frame in held.get("frames", [])):
        name = frame["filename"]
        frame["filename"] = name[name.index("lib/python") :] if "lib/python" in name else os.path.basename(name)
    return snapshot


def held_at_once(snapshot):
    """Bytes that no setting gives to another request: what is asked for, what waits for a stream, and private pools."""
    held = 0
    for segment in snapshot["segments"]:
        if tuple(segment.get("segment_pool_id", (0, 0))) != (0, 0):
            held += segment["total_size"]
            continue
        for block in segment["blocks"]:
            if block["state"] == "active_allocated":
                held += block["requested_size"]
            elif block["state"] != "inactive":
                held += block["size"]
    return held


def is_out_of_memory(error):
    while error is not None and not isinstance(error, torch.OutOfMemoryError):
        error = error.__context__
    return error is not None


def run_one(kind, which, limit, path):
    """Runs a program and prints its figures. With a limit it is recorded, into `path`."""
    torch.cuda.init()
    torch.manual_seed(0)
    at_failure = {}
    if limit:
        total = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction((limit + 0.5) / total)
        torch.cuda.memory._record_memory_history(max_entries=200_000, stacks="python")

        def failed(device, size, allowed, free):
            at_failure.update(snapshot=torch.cuda.memory._snapshot(), stats=torch.cuda.memory_stats())

        torch._C._cuda_attach_out_of_memory_observer(failed)
    oom = False
    try:
        kept = PAIRS[kind].program(which == "fixed")
        torch.cuda.synchronize()
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        oom = True
    stats = at_failure["stats"] if oom else torch.cuda.memory_stats()
    snapshot = at_failure["snapshot"] if oom else torch.cuda.memory._snapshot()
    kept = None
    figures = {"failed": oom, "held": held_at_once(snapshot)}
    for name in ("allocated", "reserved", "requested"):
        figures[f"peak_{name}"] = stats[f"{name}_bytes.all.peak"]
    if limit:
        entries = [entry for trace in snapshot["device_traces"] for entry in trace]
        figures["entries"] = len(entries)
        if oom:
            figures["failed_request"] = entries[-1]["size"] if entries[-1]["action"] == "oom" else None
            figures["ooms"] = sum(entry["action"] == "oom" for entry in entries)
            figures["allocated"] = stats["allocated_bytes.all.current"]
            figures["reserved"] = stats["reserved_bytes.all.current"]
        with lzma.open(path, "wb", preset=6 | lzma.PRESET_EXTREME) as file:
            pickle.dump(without_places(snapshot), file)
    print(json.dumps(figures), flush=True)
    # Communicators and captures that a failure has left open may hang when they are torn down.
    os._exit(0)


# ---- Pairs --------------------------------------------------------------------------------------


def start(kind, which, conf, limit=0, path=""):
    environment = os.environ | {"PYTORCH_CUDA_ALLOC_CONF": conf, "TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "4"}
    command = [sys.executable, os.path.abspath(__file__), "--one", kind, which, str(limit), path]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=TIMEOUT)
    if done.returncode != 0:
        raise RuntimeError(f"{kind} ({which}, limit {limit}): {done.stderr[-1500:]}")
    return json.loads(done.stdout.splitlines()[-1])


def is_short(fault, limit):
    """Whether the request failed for want of bytes that are in use, by a margin that no setting makes up for."""
    if not fault["failed"] or not fault["failed_request"]:
        return False
    # Of several failures all but the last were caught, by a library that then did with less.
    return fault["ooms"] == 1 and fault["held"] + fault["failed_request"] >= limit + MIB


def measure(kind, out):
    """The truth of a kind, or why there is none."""
    paths = {which: os.path.join(out, f"{kind}.{which}.pickle.xz") for which in ("fault", "fixed")}
    tried = []
    for conf in ("", EXPANDABLE) if PAIRS[kind].conf is None else (PAIRS[kind].conf,):
        free = {which: start(kind, which, conf) for which in ("fault", "fixed")}
        # Private pools, which hold more than is asked for, are there until the end.
        low, high = free["fixed"]["peak_reserved"], max(free["fault"]["peak_requested"], free["fault"]["held"])
        for share in SHARES:
            limit = int(low + share * (high - low)) // MIB * MIB
            if not low <= limit <= 0.98 * high:
                continue
            fault = start(kind, "fault", conf, limit, paths["fault"])
            short = is_short(fault, limit)
            fixed = start(kind, "fixed", conf, limit, paths["fixed"]) if short else None
            tried.append((conf, limit, fault.get("held"), fault.get("failed_request"), fault.get("ooms"), fixed))
            if short and not fixed["failed"]:
                return truth(kind, conf, limit, free, fault, fixed)
    raise RuntimeError(f"{kind}: no limit serves. Unlimited: {free}; tried: {tried}")


def truth(kind, conf, limit, free, fault, fixed):
    program, remedy, change, _ = PAIRS[kind]
    at = lines_of(program, "# culprit")[0]
    peaks = lambda figures: {name: figures[f"peak_{name}"] for name in ("allocated", "reserved", "requested")}
    return {
        "kind": kind,
        "fault": program.__doc__,
        "remedy": remedy,
        "change": change,
        "file": os.path.basename(__file__),
        "line": at,
        "remedy_line": (lines_of(program, "# remedy") or [at])[0],
        "conf": conf,
        "limit": limit,
        "failed_request": fault["failed_request"],
        "failures": fault["ooms"],
        "at_failure": {name: fault[name] for name in ("allocated", "reserved", "held")},
        "peak_of_fault": peaks(free["fault"]),
        "peak_of_fixed": peaks(free["fixed"]),
        "saving": {name: free["fault"][f"peak_{name}"] - free["fixed"][f"peak_{name}"] for name in ("allocated", "reserved")},
        # What it would have had to save for the failed request: the rest of the program, which may need more, is not recorded.
        "saving_so_far": fault["held"] + fault["failed_request"] - max(fixed["peak_requested"], fixed["held"]),
        "fixed_gets_through": not fixed["failed"],
        "fixed_at_limit": peaks(fixed),
        "entries": {"fault": fault["entries"], "fixed": fixed["entries"]},
    }


def attempt(kind, out):
    try:
        result = measure(kind, out)
    except (RuntimeError, subprocess.TimeoutExpired) as error:
        print(f"{kind} FAILED: {error}", flush=True)
        return None
    packed = sum(os.path.getsize(os.path.join(out, f"{kind}.{which}.pickle.xz")) for which in ("fault", "fixed"))
    gib = lambda figure: f"{figure / (1 << 30):.3f}"
    print(f"{kind}: limit {gib(result['limit'])} GiB, saves {gib(result['saving']['allocated'])} of "
          f"{gib(result['peak_of_fault']['allocated'])} GiB, {packed} bytes packed {result['conf']}", flush=True)
    return result


def main():
    if sys.argv[1] == "--one":
        kind, which, limit, path = sys.argv[2:]
        return run_one(kind, which, int(limit), path)
    out, kinds = sys.argv[1], sys.argv[2:] or list(PAIRS)
    os.makedirs(out, exist_ok=True)
    path, truths = os.path.join(out, "truths.json"), {}
    before = json.load(open(path))["pairs"] if os.path.exists(path) else []
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for done in as_completed([pool.submit(attempt, kind, out) for kind in kinds]):
            truths |= {it["kind"]: it for it in [done.result()] if it}
            # Kinds that were not measured now keep what is known; written after each, should the rest be cut short.
            pairs = {it["kind"]: it for it in before} | truths
            with open(path, "w") as file:
                json.dump({"measured": versions(), "pairs": [pairs[kind] for kind in sorted(pairs)]}, file, indent=1)
                file.write("\n")
    print(f"{len(truths)} of {len(kinds)} pairs measured")
    return 0 if len(truths) == len(kinds) else 1


def versions():
    import torchvision
    import transformers
    return {
        "date": datetime.date.today().isoformat(),
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "torchvision": torchvision.__version__,
        "transformers": transformers.__version__,
        "python": sys.version.split()[0],
    }


if __name__ == "__main__":
    sys.exit(main())
