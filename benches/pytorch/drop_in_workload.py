"""One workload of PyTorch under one allocator: ``drop_in_workload.py NAME native|expandable|pytorch|pages [STEPS] [LIMIT]``.

Out: a line of JSON: losses, median seconds of a step, peaks, driver calls; or the exception that ended it. With
``DETERMINISTIC=1`` PyTorch's deterministic algorithms are used. With ``TURNS=1`` steps are run as told on the standard input, a
number of steps a line, each answered by a line of JSON with their seconds: so that several allocators take turns.

Models have their published shapes and random weights: nothing is downloaded.
"""

import json
import os
import statistics
import sys
import time

NAME, ALLOCATOR = sys.argv[1:3]
STEPS = int(sys.argv[3]) if len(sys.argv) > 3 else 12
LIMIT = int(sys.argv[4]) if len(sys.argv) > 4 else None

if ALLOCATOR == "expandable":
    os.environ["PYTORCH_ALLOC_CONF"] = "expandable_segments:True"

import torch

if ALLOCATOR in ("pytorch", "pages"):
    import tonnage.torch

    tonnage.torch.install(policy=ALLOCATOR, limit=LIMIT, publish=False)
elif LIMIT is not None:
    torch.cuda.set_per_process_memory_fraction(LIMIT / torch.cuda.get_device_properties(0).total_memory)

DEVICE = "cuda"


def lengths(most, count):
    """Lengths that differ from step to step, the same in every run."""
    generator = torch.Generator().manual_seed(7)
    return torch.randint(most // 4, most, (count,), generator=generator).tolist()


def tokens(batch, length, kinds):
    generator = torch.Generator().manual_seed(batch * 7919 + length)
    return torch.randint(0, kinds, (batch, length), generator=generator).to(DEVICE)


def gpt2():
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config(resid_pdrop=0, embd_pdrop=0, attn_pdrop=0)).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def step(number):
        ids = tokens(8, LENGTHS[number], 50257)
        with torch.autocast(DEVICE, torch.bfloat16):
            loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss

    return step


def bert():
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(hidden_dropout_prob=0, attention_probs_dropout_prob=0)
    model = BertForMaskedLM(config).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def step(number):
        ids = tokens(16, LENGTHS[number] // 2, 30522)
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss

    return step


def llama():
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=1024, intermediate_size=2816, num_hidden_layers=12, num_attention_heads=16, vocab_size=32000
    )
    model = LlamaForCausalLM(config).to(DEVICE, torch.bfloat16)
    model.gradient_checkpointing_enable()
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def step(number):
        for part in range(2):
            ids = tokens(4, 2 * LENGTHS[number] + part, 32000)
            loss = model(input_ids=ids, labels=ids, use_cache=False).loss / 2
            loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss

    return step


def resnet50():
    from torchvision.models import resnet50 as make

    model = make().to(DEVICE, memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)

    def step(number):
        images = tokens(32, 3 * 224 * 224, 255).float().view(32, 3, 224, 224).div(255)
        with torch.autocast(DEVICE, torch.bfloat16):
            loss = model(images.contiguous(memory_format=torch.channels_last)).float().square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss

    return step


def deeplab():
    from torchvision.models.segmentation import deeplabv3_resnet50 as make

    model = make(weights=None, weights_backbone=None).to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def step(number):
        side = 128 + 32 * (LENGTHS[number] % 9)
        images = tokens(8, 3 * side * side, 255).float().view(8, 3, side, side).div(255)
        loss = model(images)["out"].square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss

    return step


def generate():
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config()).to(DEVICE, torch.bfloat16).eval()

    @torch.no_grad()
    def step(number):
        ids = tokens(8, 16 + LENGTHS[number] // 8, 50257)
        out = model.generate(ids, max_new_tokens=48, do_sample=False, pad_token_id=50256)
        return out.float().mean()

    return step


def mlp():
    model = torch.nn.Sequential(*(torch.nn.Linear(4096, 4096) for _ in range(8))).to(DEVICE)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)

    def step(number):
        loss = model(tokens(2048, 4096, 255).float()).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss

    return step


LENGTHS = lengths(1024, STEPS)
WORKLOADS = {make.__name__: make for make in (gpt2, bert, llama, resnet50, deeplab, generate, mlp)}


def timed(step, number):
    torch.cuda.synchronize()
    start = time.perf_counter()
    loss = step(number)
    torch.cuda.synchronize()
    return time.perf_counter() - start, float(loss)


def take_turns():
    step, number = WORKLOADS[NAME](), 0
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        seconds = []
        for _ in range(int(line)):
            seconds.append(timed(step, number % STEPS)[0])
            number += 1
        print(json.dumps(seconds), flush=True)


def main():
    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = False
    if os.environ.get("DETERMINISTIC") == "1":
        torch.use_deterministic_algorithms(True, warn_only=True)
        torch.backends.cudnn.deterministic = True
    if os.environ.get("TURNS") == "1":
        return take_turns()
    answer = {"name": NAME, "allocator": ALLOCATOR, "losses": [], "seconds": []}
    try:
        step = WORKLOADS[NAME]()
        for number in range(STEPS):
            seconds, loss = timed(step, number)
            answer["seconds"].append(seconds)
            answer["losses"].append(loss)
    except KeyboardInterrupt:
        answer["failed"] = f"out of time after {len(answer['seconds'])} of {STEPS} steps"
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
    print(json.dumps(answer), flush=True)


main()
