"""The memory of a Hugging Face model that is only a config.json: steps of training, or generation with a cache.

`tonnage predict --model config.json` runs this on a machine without a GPU; on one with a GPU it runs as well. Weights are
random and made on the device, so that nothing is downloaded and nothing lies in the host's memory.
"""

import argparse
import contextlib
import json
import os
import sys

import torch
import transformers

DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}


def main():
    options = arguments()
    config = config_of(options)
    torch.manual_seed(0)
    if world() > 1:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
        torch.distributed.init_process_group("nccl")
    model = build(config, options)
    facts = {"model": type(model).__name__, "parameters": count(model.parameters())}
    facts["trained"] = 0 if options.generate else count(it for it in model.parameters() if it.requires_grad)
    facts["weights"] = sum(local(it).nbytes for it in model.parameters())
    if options.generate:
        facts["cache"] = generate(model, config, options)
    else:
        train(model, config, options)
    # What the command shows beside the figures.
    print("tonnage-model " + json.dumps(facts))
    if world() > 1:
        torch.distributed.destroy_process_group()


def arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("config", help="config.json, or a folder with one")
    parser.add_argument("--batch", type=int, default=1, help="examples in a step")
    parser.add_argument("--seq", type=int, default=512, help="tokens in an example, or in a prompt")
    parser.add_argument("--dtype", choices=DTYPES, help="of the weights; the config's own if not given")
    parser.add_argument("--amp", choices=DTYPES, help="compute in this type by autocast")
    parser.add_argument("--optimizer", choices=["adamw", "adam", "sgd"], default="adamw")
    parser.add_argument("--lora", type=int, default=0, help="train adapters of this rank on every linear layer but the head")
    parser.add_argument("--checkpoint", action="store_true", help="recompute each layer on the way back")
    parser.add_argument("--accumulate", type=int, default=1, help="split each batch into so many parts")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--generate", type=int, default=0, help="generate so many tokens instead of training")
    parser.add_argument("--requests", type=int, default=1, help="prompts that are generated for at once")
    return parser.parse_args()


def config_of(options):
    config = transformers.AutoConfig.from_pretrained(options.config)
    if getattr(config, "auto_map", None):
        print("the code that the config names in auto_map is not run: transformers' own model is taken", file=sys.stderr)
        config.auto_map = {}
    if getattr(config, "quantization_config", None):
        sys.exit("quantized weights are not predicted without a script: take quantization_config out of the config")
    if not options.generate:
        config.use_cache = False
    return config


def class_of(config):
    """The class that the config names, or the one that predicts the next token."""
    for name in getattr(config, "architectures", None) or []:
        found = getattr(transformers, name, None)
        if found is not None and ("For" in name or name.endswith("LMHeadModel")):
            return found
    return transformers.AutoModelForCausalLM


def build(config, options):
    """The model on the device, as it trains or generates."""
    own = getattr(config, "dtype", None) or getattr(config, "torch_dtype", None) or torch.float32
    dtype = DTYPES[options.dtype] if options.dtype else getattr(torch, own) if isinstance(own, str) else own
    make = class_of(config)
    make = getattr(make, "_from_config", None) or make.from_config
    # Of a model that is sharded no rank has the whole: its weights come after it is cut.
    with torch.device("meta" if world() > 1 else "cuda"):
        try:
            model = make(config, dtype=dtype)
        except TypeError:
            model = make(config, torch_dtype=dtype)
    if options.lora:
        model = with_adapters(model, options.lora)
    if world() > 1:
        shard(model, options)
    if options.generate:
        return model.eval()
    if options.checkpoint:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return model.train()


class Adapter(torch.nn.Module):
    """A frozen linear layer, and beside it two small ones that are trained: in 32 bits, as peft has them."""

    def __init__(self, base, rank):
        super().__init__()
        like = {"device": base.weight.device, "dtype": torch.float32}
        inputs, outputs = (base.nx, base.nf) if hasattr(base, "nx") else (base.in_features, base.out_features)
        self.base = base
        self.down = torch.nn.Linear(inputs, rank, bias=False, **like)
        self.up = torch.nn.Linear(rank, outputs, bias=False, **like)
        if not self.up.weight.is_meta:
            torch.nn.init.zeros_(self.up.weight)

    def forward(self, x):
        result = self.base(x)
        return (result + self.up(self.down(x.to(self.down.weight.dtype)))).to(result.dtype)


def with_adapters(model, rank):
    """The model frozen, with adapters: those of peft where it is installed."""
    try:
        import peft
    except ImportError:
        model.requires_grad_(False)
        head = model.get_output_embeddings()
        kinds = (torch.nn.Linear, transformers.pytorch_utils.Conv1D)
        for parent in [it for it in model.modules() if not isinstance(it, kinds)]:
            for name, layer in list(parent.named_children()):
                if isinstance(layer, kinds) and layer is not head:
                    setattr(parent, name, Adapter(layer, rank))
        return model
    return peft.get_peft_model(model, peft.LoraConfig(r=rank, target_modules="all-linear"))


def shard(model, options):
    """Cuts every layer over all ranks, then what is left."""
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    amp = DTYPES[options.amp] if options.amp else None
    policy = MixedPrecisionPolicy(param_dtype=amp, reduce_dtype=torch.float32 if amp else None)
    lists = [it for it in model.modules() if isinstance(it, torch.nn.ModuleList)]
    inside = {id(inner) for outer in lists for it in outer.modules() if it is not outer for inner in [it]}
    for layers in [it for it in lists if id(it) not in inside]:
        for layer in layers:
            fully_shard(layer, mp_policy=policy)
    fully_shard(model, mp_policy=policy)
    model.to_empty(device="cuda")
    with torch.no_grad():
        for it in [*model.parameters(), *model.buffers()]:
            it.normal_(0, 0.02) if it.is_floating_point() else it.zero_()


def inputs_of(model, config, batch, seq):
    """What a step is given: random tokens or pixels, and what is to be learnt of them."""
    name, text = type(model).__name__, config.get_text_config()
    if hasattr(model, "base_model") and hasattr(model.base_model, "model"):
        name = type(getattr(model.base_model, "model", model)).__name__ if "Peft" in name else name
    labels = int(getattr(config, "num_labels", 2) or 2)
    if "ForImageClassification" in name:
        side = getattr(config, "image_size", 224)
        height, width = side if isinstance(side, (list, tuple)) else (side, side)
        pixels = torch.randn(batch, getattr(config, "num_channels", 3), height, width, device="cuda", dtype=dtype_of(model))
        return {"pixel_values": pixels, "labels": torch.randint(0, labels, (batch,), device="cuda")}
    most = getattr(text, "max_position_embeddings", None)
    if most is not None and seq > most:
        print(f"--seq {seq} is more than the {most} positions of the config", file=sys.stderr)
    tokens = torch.randint(0, text.vocab_size, (batch, seq), device="cuda")
    if "ForSequenceClassification" in name:
        # Which token is the last is looked up where there are fillers.
        config.pad_token_id = getattr(config, "pad_token_id", None) or 0
        return {"input_ids": tokens, "labels": torch.randint(0, labels, (batch,), device="cuda")}
    if "ForTokenClassification" in name:
        return {"input_ids": tokens, "labels": torch.randint(0, labels, (batch, seq), device="cuda")}
    return {"input_ids": tokens, "labels": tokens.clone()}


def train(model, config, options):
    trained = [it for it in model.parameters() if it.requires_grad]
    if options.optimizer == "sgd":
        optimizer = torch.optim.SGD(trained, lr=1e-4, momentum=0.9, fused=True)
    else:
        kind = torch.optim.AdamW if options.optimizer == "adamw" else torch.optim.Adam
        optimizer = kind(trained, lr=1e-4, fused=True)
    if options.batch % options.accumulate:
        sys.exit(f"a batch of {options.batch} cannot be split into {options.accumulate} equal parts")
    part = options.batch // options.accumulate
    for _ in range(options.steps):
        for _ in range(options.accumulate):
            with computing_in(options.amp):
                loss = model(**inputs_of(model, config, part, options.seq)).loss
            (loss / options.accumulate).backward()
        optimizer.step()
        optimizer.zero_grad()


def generate(model, config, options):
    """Generates for all prompts at once, and returns the bytes of the cache at the end."""
    tokens = torch.randint(0, config.get_text_config().vocab_size, (options.requests, options.seq), device="cuda")
    with torch.inference_mode(), computing_in(options.amp):
        made = model.generate(
            input_ids=tokens,
            attention_mask=torch.ones_like(tokens),
            max_new_tokens=options.generate,
            min_new_tokens=options.generate,
            do_sample=False,
            pad_token_id=0,
            return_dict_in_generate=True,
        )
    return bytes_of(made.past_key_values)


def bytes_of(cache):
    """Of every tensor that a cache holds, each once."""
    seen, found, left = set(), {}, [cache]
    while left:
        it = left.pop()
        if isinstance(it, torch.Tensor):
            if it.is_cuda:
                found[it.untyped_storage().data_ptr()] = it.untyped_storage().nbytes()
        elif id(it) not in seen:
            seen.add(id(it))
            if isinstance(it, dict):
                left.extend(it.values())
            elif isinstance(it, (list, tuple)):
                left.extend(it)
            elif hasattr(it, "__dict__") and type(it).__module__.startswith("transformers"):
                left.extend(vars(it).values())
    return sum(found.values())


def computing_in(amp):
    # Sharded layers are cast by their policy.
    if amp is None or world() > 1:
        return contextlib.nullcontext()
    return torch.autocast("cuda", dtype=DTYPES[amp])


def world():
    return int(os.environ.get("WORLD_SIZE", "1"))


def local(parameter):
    """What this rank has of it."""
    return parameter.to_local() if hasattr(parameter, "to_local") else parameter


def dtype_of(model):
    return next(it.dtype for it in model.parameters() if it.is_floating_point())


def count(parameters):
    return sum(it.numel() for it in parameters)


if __name__ == "__main__":
    main()
