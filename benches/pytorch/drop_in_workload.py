"""Training and inference with PyTorch under one allocator: ``drop_in_workload.py NAME native|expandable|pytorch|pages [STEPS] [LIMIT]``.

Out: a line of JSON: losses, median seconds of a step, peaks, driver calls; or what ended it. NAME is one of ``WORKLOADS``, or a
script: its losses are those that it goes back from, and the sums of what it takes the largest of.

Models have their published shapes and random weights: nothing is downloaded. ``drop_in_runs.py`` and ``drop_in_steps.py`` call
this in forks, where PyTorch is imported already but no GPU was used.
"""

import json
import os
import runpy
import statistics
import sys
import time

import torch

DEVICE = "cuda"


def install(allocator, limit=None):
    """Before the first use of a GPU."""
    if allocator == "expandable":
        os.environ["PYTORCH_ALLOC_CONF"] = "expandable_segments:True"
    if allocator in ("pytorch", "pages"):
        import tonnage.torch

        tonnage.torch.install(policy=allocator, limit=limit, publish=False, fallback=False)
    elif limit is not None:
        torch.cuda.set_per_process_memory_fraction(limit / torch.cuda.get_device_properties(0).total_memory)


class Inputs:
    """What steps are run on: lengths that differ from step to step, the same in every run.

    Where times are taken there are four lengths, and what is made of them stays on the GPU: to make it takes the processor longer
    than the GPU takes for the step.
    """

    def __init__(self, steps, timed):
        generator = torch.Generator().manual_seed(7)
        several = torch.randint(256, 1024, (max(steps, 1),), generator=generator).tolist()
        self.lengths = [896, 640, 1008, 768] if timed else several
        self.kept = {} if timed else None

    def length(self, number):
        return self.lengths[number % len(self.lengths)]

    def tokens(self, batch, length, kinds):
        key = batch, length, kinds
        if self.kept is not None and key in self.kept:
            return self.kept[key]
        generator = torch.Generator().manual_seed(batch * 7919 + length)
        made = torch.randint(0, kinds, (batch, length), generator=generator).to(DEVICE)
        if self.kept is not None:
            self.kept[key] = made
        return made

    def images(self, batch, side):
        return self.tokens(batch, 3 * side * side, 255).float().view(batch, 3, side, side).div(255)


# Where times are taken the GPU has to be what takes the time, as in training that is worth its GPU: steps are in 32 bits there, or of
# larger batches.


def gpt2(inputs, timed):
    from transformers import GPT2Config, GPT2LMHeadModel

    with torch.device(DEVICE):
        model = GPT2LMHeadModel(GPT2Config(resid_pdrop=0, embd_pdrop=0, attn_pdrop=0))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def step(number):
        ids = inputs.tokens(8, inputs.length(number), 50257)
        with torch.autocast(DEVICE, torch.bfloat16, enabled=not timed):
            loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss

    return step


def bert(inputs, timed):
    from transformers import BertConfig, BertForMaskedLM

    with torch.device(DEVICE):
        model = BertForMaskedLM(BertConfig(hidden_dropout_prob=0, attention_probs_dropout_prob=0))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def step(number):
        ids = inputs.tokens(16, inputs.length(number) // 2, 30522)
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss

    return step


def llama(inputs, timed):
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=1024, intermediate_size=2816, num_hidden_layers=12, num_attention_heads=16, vocab_size=32000
    )
    with torch.device(DEVICE):
        model = LlamaForCausalLM(config)
    if not timed:
        model.to(torch.bfloat16)
    model.gradient_checkpointing_enable()
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def step(number):
        for part in range(2):
            ids = inputs.tokens(2 if timed else 4, 2 * inputs.length(number) + part, 32000)
            loss = model(input_ids=ids, labels=ids, use_cache=False).loss / 2
            loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss

    return step


def resnet50(inputs, timed):
    from torchvision.models import resnet50 as make

    with torch.device(DEVICE):
        model = make().to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)

    def step(number):
        images = inputs.images(128 if timed else 32, 224)
        with torch.autocast(DEVICE, torch.bfloat16, enabled=not timed):
            loss = model(images.contiguous(memory_format=torch.channels_last)).float().square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss

    return step


def deeplab(inputs, timed):
    from torchvision.models.segmentation import deeplabv3_resnet50 as make

    with torch.device(DEVICE):
        model = make(weights=None, weights_backbone=None)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def step(number):
        images = inputs.images(16 if timed else 8, 128 + 32 * (inputs.length(number) % 9))
        loss = model(images)["out"].square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss

    return step


def generate(inputs, timed):
    from transformers import GPT2Config, GPT2LMHeadModel

    with torch.device(DEVICE):
        model = GPT2LMHeadModel(GPT2Config()).to(torch.bfloat16).eval()
    batch, new = (384, 12) if timed else (8, 48)

    @torch.no_grad()
    def step(number):
        ids = inputs.tokens(batch, inputs.length(number) * 3 // 4 if timed else 16 + inputs.length(number) // 8, 50257)
        mask = torch.ones_like(ids)
        out = model.generate(ids, attention_mask=mask, max_new_tokens=new, do_sample=False, eos_token_id=None, pad_token_id=50256)
        return out.float().mean()

    return step


def mlp(inputs, timed):
    with torch.device(DEVICE):
        model = torch.nn.Sequential(*(torch.nn.Linear(4096, 4096) for _ in range(8)))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)

    def step(number):
        loss = model(inputs.tokens(2048, 4096, 255).float()).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss

    return step


WORKLOADS = {make.__name__: make for make in (gpt2, bert, llama, resnet50, deeplab, generate, mlp)}


def be_deterministic(strict):
    """What PyTorch cannot do deterministically raises, or with ``strict`` off is told as a warning."""
    torch.use_deterministic_algorithms(True, warn_only=not strict)
    torch.backends.cudnn.deterministic = True


def one_by_one(name, steps, answer):
    step = WORKLOADS[name](Inputs(steps, timed=False), timed=False)
    for number in range(steps):
        torch.cuda.synchronize()
        start = time.perf_counter()
        loss = step(number)
        torch.cuda.synchronize()
        answer["seconds"].append(time.perf_counter() - start)
        answer["losses"].append(float(loss.detach()))


def as_script(path, answer):
    """A script as it is, with what it computes noted on the way."""
    backward, argmax = torch.Tensor.backward, torch.Tensor.argmax

    def noting_backward(loss, *words, **options):
        answer["losses"].append(float(loss.detach().double().sum()))
        return backward(loss, *words, **options)

    def noting_argmax(tensor, *words, **options):
        largest = argmax(tensor, *words, **options)
        answer["losses"].append(float(largest.double().sum()))
        return largest

    torch.Tensor.backward, torch.Tensor.argmax = noting_backward, noting_argmax
    sys.argv = [path]
    said, sys.stdout = sys.stdout, sys.stderr
    start = time.perf_counter()
    try:
        runpy.run_path(path, run_name="__main__")
        torch.cuda.synchronize()
    finally:
        sys.stdout = said
        torch.Tensor.backward, torch.Tensor.argmax = backward, argmax
    answer["seconds"].append(time.perf_counter() - start)


def run(name, allocator, steps, limit=None, deterministic=None):
    """A workload or a script; ``deterministic`` is ``strict`` or ``warned``."""
    install(allocator, limit)
    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = False
    if deterministic:
        be_deterministic(deterministic == "strict")
    answer = {"name": os.path.basename(name), "allocator": allocator, "losses": [], "seconds": []}
    try:
        if name.endswith(".py"):
            as_script(name, answer)
        else:
            one_by_one(name, steps, answer)
    except Exception as error:
        answer["failed"] = f"{type(error).__name__}: {str(error)[:400]}"
    stats = torch.cuda.memory_stats()
    answer["allocated"] = stats["allocated_bytes.all.peak"]
    answer["reserved"] = stats["reserved_bytes.all.peak"]
    answer["requested"] = stats["requested_bytes.all.peak"]
    answer["retries"] = stats["num_alloc_retries"]
    answer["driver_calls"] = stats["num_device_alloc"] + stats["num_device_free"]
    # The second half is past the first meeting with most lengths.
    if len(answer["seconds"]) > 3:
        answer["step"] = statistics.median(answer["seconds"][len(answer["seconds"]) // 2 :])
    return answer


if __name__ == "__main__":
    words = sys.argv[1:]
    print(json.dumps(run(words[0], words[1], *map(int, words[2:4]) if len(words) > 2 else (12,))), flush=True)
