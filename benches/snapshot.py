"""How fast, and in how much memory, a snapshot of a million events is read: by Python's
`pickle.load` and by the reader in `crates/snapshot`, on the same machine, in the same run.

    python3 benches/snapshot.py                      makes the files, builds the reader, runs both
    python3 benches/snapshot.py make FILE [EVENTS [stacks|pools]]
                                                     makes one file

The files are what `torch.cuda.memory._dump_snapshot` writes (PyTorch 2.11, protocol 4; `pools`: with the pools that
2.12 and later write, every tenth of them private): the same keys in the same order, texts shared and spelled out again where PyTorch's are. Each side runs in a
process of its own, `RUNS` times; the shortest time and the highest peak count. "ms" is the reading
alone, "CPU ms" the processor time of the whole process. Needs nothing but
Python's standard library and cargo.
"""

import json
import os
import pickle
import platform
import random
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
EVENTS = 1_000_000
RUNS = 5
# Mostly small tensors and some activations, as in training.
SIZES = [512, 2048, 3000, 4096, 65536, 131072, 589824, 2359296, 9437184, 38535168, 154140672]


def fresh(text):
    """An equal text that is an object of its own, as one that C++ made."""
    return text.encode().decode()


def stacks(rng, distinct=2000):
    """Lists of frames, as deep as those of a training script. Frames are shared, as PyTorch shares
    them within one snapshot."""
    frames = [
        {"name": f"function_{n}", "filename": f"/opt/train/package_{n % 40}/module_{n % 300}.py", "line": n % 900 + 1}
        for n in range(3000)
    ]
    return [rng.sample(frames, rng.randint(12, 28)) for _ in range(distinct)]


def trace(events, kind):
    """Entries that a program could have caused: what is freed was allocated."""
    rng = random.Random(7)
    known = stacks(rng) if kind == "stacks" else []
    actions = {name: name for name in ["alloc", "free_requested", "free_completed"]}
    empty = ""
    live, entries, next_address, now = [], [], 0x7F4A00000000, 1_794_704_035_349_067
    pending = None
    while len(entries) < events:
        if pending is not None:
            action, (address, size) = "free_completed", pending
            pending = None
        elif live and (len(live) > 2000 or rng.random() < 0.48):
            action, (address, size) = "free_requested", live.pop(rng.randrange(len(live)))
            pending = (address, size)
        else:
            size = rng.choice(SIZES)
            action, address = "alloc", next_address
            next_address = 0x7F4A00000000 + (next_address + size + 511 - 0x7F4A00000000) // 512 * 512 % (1 << 37)
            live.append((address, size))
        now += rng.randint(1, 40)
        entry = {
            "action": actions[action],
            "addr": address,
            "size": size,
            "stream": 0,
            "time_us": now,
            "compile_context": fresh("N/A"),
            "user_metadata": empty,
        }
        if kind == "pools":
            entry["pool_id"] = (0, 3 if address // 512 % 10 == 0 else 0)
        if kind == "stacks":
            # PyTorch makes a new list for every entry, of frames that it shares.
            entry["frames"] = list(rng.choice(known))
        entries.append(entry)
    return entries


def make(path, events=EVENTS, kind=""):
    snapshot = {
        "segments": [],
        "device_traces": [trace(events, kind)],
        "allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": "", "max_split_size": -1, "expandable_segments": False},
        "external_annotations": [],
    }
    with open(path, "wb") as file:
        pickle.dump(snapshot, file, protocol=4)


def peak():
    """The most memory this process ever had, in KiB."""
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))


def load(path):
    """Python's side, in a process of its own."""
    with open(path, "rb") as file:
        before = time.perf_counter()
        snapshot = pickle.load(file)
        seconds = time.perf_counter() - before
    entries = sum(len(trace) for trace in snapshot["device_traces"])
    print(json.dumps({"entries": entries, "seconds": seconds, "peak_kib": peak()}))


def run(command):
    """What a command says, and the processor time that it took from start to end: unlike the time on
    the wall, it hardly depends on what else the machine does."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    said = json.load(process.stdout)
    _, status, usage = os.wait4(process.pid, 0)
    assert status == 0, command
    return {**said, "cpu": usage.ru_utime + usage.ru_stime}


def best(command):
    """Events, the shortest times and the highest peak of several runs, which must agree on the events."""
    runs = [run(command) for _ in range(RUNS)]
    entries = {run["entries"] for run in runs}
    assert len(entries) == 1, runs
    seconds, cpu = (min(run[key] for run in runs) for key in ("seconds", "cpu"))
    return entries.pop(), seconds, cpu, max(run["peak_kib"] for run in runs)


def cpu():
    with open("/proc/cpuinfo") as info:
        return next((line.split(":")[1].strip() for line in info if line.startswith("model name")), "unknown")


def compare():
    build = "cargo build --release --locked --package tonnage-snapshot --example read_snapshot"
    subprocess.run(build.split(), check=True, cwd=ROOT)
    ours = os.path.join(os.environ.get("CARGO_TARGET_DIR", os.path.join(ROOT, "target")), "release/examples/read_snapshot")
    rust = subprocess.run(["rustc", "--version"], check=True, capture_output=True, text=True).stdout.split()[1]
    print(f"# {time.strftime('%Y-%m-%d')}, python3 benches/snapshot.py, Python {platform.python_version()}, Rust {rust}")
    print(f"# {cpu()}, {os.cpu_count()} CPUs; shortest time and highest peak of {RUNS} runs")
    print(f"{'file':<16} {'MiB':>6} {'side':<12} {'events':>8} {'ms':>8} {'CPU ms':>8} {'peak MiB':>9}")
    missed = False
    with tempfile.TemporaryDirectory() as folder:
        for name, kind in [("without stacks", []), ("with stacks", ["stacks"]), ("with pools", ["pools"])]:
            path = os.path.join(folder, name.replace(" ", "-") + ".pickle")
            # In a process of its own, so that nothing of it is left in this one.
            subprocess.run([sys.executable, __file__, "make", path, str(EVENTS)] + kind, check=True)
            sides = {
                "pickle.load": best([sys.executable, __file__, "load", path]),
                "tonnage": best([ours, "--json", path]),
            }
            (theirs_entries, _, theirs, theirs_peak), (entries, _, ours_took, ours_peak) = sides.values()
            assert entries == theirs_entries, sides
            mib = os.path.getsize(path) >> 20
            for side, (count, wall, cpu_time, most) in sides.items():
                times = f"{wall * 1e3:>8.1f} {cpu_time * 1e3:>8.1f}"
                print(f"{name:<16} {mib:>6} {side:<12} {count:>8} {times} {most / 1024:>9.1f}")
            times = f"{theirs / ours_took:.1f} times as fast by processor time"
            print(f"{'':<24}{times}, in 1/{theirs_peak / ours_peak:.1f} of the memory", flush=True)
            missed |= theirs < 5 * ours_took or theirs_peak < 10 * ours_peak
    if missed:
        sys.exit("missed: at most a fifth of the time and a tenth of the memory")


if __name__ == "__main__":
    match sys.argv[1:]:
        case []:
            compare()
        case ["make", path]:
            make(path)
        case ["make", path, events]:
            make(path, int(events))
        case ["make", path, events, ("stacks" | "pools") as kind]:
            make(path, int(events), kind)
        case ["load", path]:
            load(path)
        case _:
            sys.exit(__doc__)
