"""Every recipe, alone and with techniques, on a GPU and as predicted without one: are the bytes the same, and the losses?

    python recipes.py TONNAGE

Prints one line for each case and fails if bytes differ, if a second run gives other losses, if a graph gives others than its steps
one by one, or if the first loss is not the host's (for recipes small enough to run there).
"""
import itertools, json, subprocess, sys

SMALL = {"gpt2-tiny": [], "mlp": ["mlp"], "deepnet": ["deepnet"]}
TECHNIQUES = {
    "": [],
    "bf16": ["--amp", "bf16"],
    "f16": ["--amp", "f16"],
    "checkpoint": ["--checkpoint", "sqrt"],
    "offload": ["--offload"],
    "accumulate": ["--accumulate", "2"],
    "bf16 + checkpoint": ["--amp", "bf16", "--checkpoint", "every:1"],
    "bf16 + offload": ["--amp", "bf16", "--offload"],
    "f16 + checkpoint + accumulate": ["--amp", "f16", "--checkpoint", "sqrt", "--accumulate", "2"],
    "bf16 + checkpoint + offload + accumulate": ["--amp", "bf16", "--checkpoint", "every:1", "--offload", "--accumulate", "4"],
    "sgd": ["--optimizer", "sgd"],
    "expandable segments": ["--conf", "expandable_segments:True"],
    "graph": ["--graph"],
    "sgd + graph": ["--optimizer", "sgd", "--graph"],
    "bf16 + checkpoint + accumulate + graph": ["--amp", "bf16", "--checkpoint", "every:1", "--accumulate", "4", "--graph"],
}
LARGE = {
    "gpt2 8 × 1024 bf16": ["gpt2", "--batch", "8", "--seq", "1024", "--amp", "bf16"],
    "gpt2 32 × 1024 bf16 checkpoint": ["gpt2", "--batch", "32", "--seq", "1024", "--amp", "bf16", "--checkpoint", "every:1"],
    "resnet50 32 × 224": ["resnet50", "--batch", "32", "--image", "224"],
    "resnet50 32 × 224 bf16": ["resnet50", "--batch", "32", "--image", "224", "--amp", "bf16"],
    "resnet50 32 × 224 f16 checkpoint offload": ["resnet50", "--batch", "32", "--image", "224", "--amp", "f16", "--checkpoint", "sqrt", "--offload"],
    "gpt2 8 × 1024 bf16 graph": ["gpt2", "--batch", "8", "--seq", "1024", "--amp", "bf16", "--graph"],
    "resnet50 32 × 224 bf16 graph": ["resnet50", "--batch", "32", "--image", "224", "--amp", "bf16", "--graph"],
    "mimo": ["mimo"],
}


def tonnage(*arguments):
    done = subprocess.run([sys.argv[1], *arguments, "--json"], capture_output=True, text=True)
    try:
        it = json.loads(done.stdout)
    except ValueError:
        it = {"error": "no JSON"}
    return {"error": done.stderr.strip()[-300:]} if "error" in it else it


def peaks(it):
    return it["allocated_peak"], it["reserved_peak"]


def trouble(flags, on_host):
    """The peaks, and what is not as it should be."""
    steps = ["--steps", "4"]
    runs = [tonnage("run", *flags, *steps, "--device", "cuda:0") for _ in range(2)]
    predicted = tonnage("predict", *flags, *steps, "--memory-profile", "tonnage")
    failed = [it["error"] for it in [*runs, predicted] if "error" in it]
    if failed:
        return (0, 0), f"failed: {failed[0]}"
    first, second = runs
    if peaks(first) != peaks(predicted):
        return peaks(first), f"predicted {peaks(predicted)}"
    if not (first["losses"] or first["symbols"]) or (first["losses"], first["symbols"]) != (second["losses"], second["symbols"]):
        return peaks(first), "a second run gave other results"
    if "--graph" in flags:
        without = tonnage("run", *(it for it in flags if it != "--graph"), *steps, "--device", "cuda:0")
        if without.get("losses") != first["losses"]:
            return peaks(first), f"without a graph: {without.get('error', without.get('losses'))}"
    if on_host:
        host = tonnage("run", *flags, *steps)
        if "error" in host:
            return peaks(first), f"on the host: {host['error']}"
        if abs(host["losses"][0] - first["losses"][0]) > 1e-2 * abs(host["losses"][0]):
            return peaks(first), f"the host's first loss is {host['losses'][0]}, here {first['losses'][0]}"
    return peaks(first), None


def main():
    cases = [(f"{recipe} {name}".strip(), flags + more, recipe == "gpt2-tiny" or name == "")
             for (recipe, flags), (name, more) in itertools.product(SMALL.items(), TECHNIQUES.items())]
    cases += [(name, flags, False) for name, flags in LARGE.items()]
    wrong = 0
    for name, flags, on_host in cases:
        (allocated, reserved), said = trouble(flags, on_host)
        wrong += said is not None
        print(f"{name:56} {allocated:>14,} {reserved:>14,} {said or 'as predicted'}", flush=True)
    print(f"{len(cases)} cases, {wrong} wrong")
    sys.exit(wrong > 0)


main()
