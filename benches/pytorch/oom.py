"""The wheel with PyTorch on a GPU: memory that runs out, tests of memory, and what recording costs.

    python3 oom.py [WHEEL...] [ROUNDS]

The wheel is installed into a folder that is gone afterwards, with others that are named, such as pytest's; nothing is downloaded.
Without one, what this Python has is taken. Then, each in a process of its own:

- `tonnage.record()` around a training that runs out of memory, by a limit of PyTorch's and by the card's own size: the
  exception that leaves it is the one that PyTorch raised, with the same words and a note more; the snapshot lies beside
  the script, and its last entry is the failure;
- the same training under `tonnage record -- python …`: exit status and output are the program's own, with the note in
  the traceback and the report behind it;
- tests with the fixture `gpu_memory`: its peak is PyTorch's own, baselines are written and compared, and what grew is named;
- nanoseconds of a pair of an allocation and its release: without a history, with PyTorch's own, with `tonnage.record()`.

Exit status: 1 if anything is not as it should be.
"""

import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import zipfile

GIB = 1 << 30

# A model whose activations nobody frees: each step keeps its loss with its graph.
PROGRAM = '''
import sys
import torch

def train(limit):
    if limit:
        torch.cuda.set_per_process_memory_fraction(limit / torch.cuda.get_device_properties(0).total_memory)
    width = 4096
    model = torch.nn.Sequential(*[torch.nn.Linear(width, width) for _ in range(8)]).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    rows = 4096 if limit else 65536
    losses = []
    while True:
        loss = model(torch.randn(rows, width, device="cuda")).square().mean()
        losses.append(loss)  # this keeps every graph
        loss.backward(retain_graph=True)
        optimizer.step()
        optimizer.zero_grad()

if __name__ == "__main__":
    train(int(sys.argv[1]))
'''

AROUND = '''
import json, sys
import tonnage, torch
from program import train

inside = {}
try:
    with tonnage.record() as rec:
        try:
            train(int(sys.argv[1]))
        except torch.OutOfMemoryError as raised:
            inside = {"object": raised, "words": str(raised), "kind": type(raised).__name__, "arguments": raised.args}
            raise
except torch.OutOfMemoryError as raised:
    trace = raised.__traceback__
    while trace.tb_next is not None:
        trace = trace.tb_next
    print(json.dumps({
        "is_same": raised is inside["object"],
        "same_words": str(raised) == inside["words"] and raised.args == inside["arguments"],
        "kind": type(raised).__name__,
        "words": str(raised)[:300],
        "notes": getattr(raised, "__notes__", []),
        "raised_in": trace.tb_frame.f_code.co_filename,
        "path": rec.path,
        "verdict": rec.report().verdict.text,
        "report": str(rec.report()),
        "still_recording": bool(torch._C._cuda_isHistoryEnabled()),
    }))
else:
    sys.exit("memory did not run out")
# Whoever catches it goes on: PyTorch serves the next request.
torch.cuda.empty_cache()
torch.ones(1 << 20, device="cuda").sum().item()
'''

TESTS = '''
import os
import torch

def take(mib):
    return torch.empty(mib << 20, dtype=torch.uint8, device="cuda")

def test_size(gpu_memory):
    take(100)
    gpu_memory.assert_peak("100MiB", tolerance=0)
    assert gpu_memory.peak == torch.cuda.max_memory_allocated()

def test_beside_what_was_there_before(gpu_memory, kept=[]):
    kept.append(take(30))
    take(10)
    gpu_memory.assert_peak("40MiB", tolerance=0)
    assert gpu_memory.peak == torch.cuda.max_memory_allocated()

def test_after_that(gpu_memory):
    take(10)
    gpu_memory.assert_peak("40MiB", tolerance=0)
    assert gpu_memory.peak == torch.cuda.max_memory_allocated()

def test_baseline(gpu_memory):
    small = take(20)
    large = take(int(os.environ["MIB"]))
    gpu_memory.assert_peak()
'''

COST = '''
import json, sys, time
import tonnage, torch

COUNT = 20_000
def pairs():
    at = time.perf_counter_ns
    begin = at()
    for _ in range(COUNT):
        torch.empty(65536, dtype=torch.uint8, device="cuda")
    return (at() - begin) / COUNT

def off():
    torch.cuda.memory._record_memory_history(enabled=None)

def without():
    return pairs()

def python_stacks():
    torch.cuda.memory._record_memory_history(max_entries=1_000_000, stacks="python")
    try:
        return pairs()
    finally:
        off()

def all_stacks():
    torch.cuda.memory._record_memory_history(max_entries=1_000_000)
    try:
        return pairs()
    finally:
        off()

def ours():
    # Without what is done once at the end: that is no cost of an allocation.
    recording = tonnage.Recording(1_000_000, None, False)
    recording.start()
    try:
        return pairs()
    finally:
        off()

torch.empty(1, device="cuda")
pairs()
found = {kind.__name__: [] for kind in (without, python_stacks, all_stacks, ours)}
for _ in range(int(sys.argv[1])):
    for kind in (without, python_stacks, all_stacks, ours):
        found[kind.__name__].append(kind())
print(json.dumps(found))
'''

failed = False


def check(what, holds, seen=""):
    global failed
    failed |= not holds
    print(f"{'ok    ' if holds else 'FAILED'} {what}" + (f": {seen}" if seen and not holds else ""), flush=True)


def install(wheels, folder):
    """Installs them without a network, by pip or, where there is none, as the archives that they are."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--target", folder, *wheels]
    if subprocess.run(command, capture_output=True).returncode != 0:
        for wheel in wheels:
            zipfile.ZipFile(wheel).extractall(folder)


class Machine:
    """Runs programs with the wheel on their path."""

    def __init__(self, folder, site):
        self.folder = folder
        paths = [site, *filter(None, [os.environ.get("PYTHONPATH")])]
        self.environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}

    def run(self, *words, **environment):
        words = [sys.executable, *map(str, words)]
        environment = {**self.environment, **environment}
        return subprocess.run(words, capture_output=True, text=True, cwd=self.folder, env=environment)


def around(machine, name, limit):
    print(f"## tonnage.record(), memory runs out by {name}")
    done = machine.run("around.py", limit)
    check("the program goes on afterwards", done.returncode == 0, done.stderr[-2000:])
    if done.returncode != 0:
        return
    said = json.loads(done.stdout.splitlines()[-1])
    print(said["words"])
    print(*said["notes"], sep="\n")
    print(said["report"])
    check("the exception is the object that PyTorch raised", said["is_same"])
    check("its words and arguments are unchanged", said["same_words"], said["words"])
    check("it is a torch.OutOfMemoryError", said["kind"] == "OutOfMemoryError", said["kind"])
    check("its traceback ends where memory ran out", "torch" in said["raised_in"] or "program" in said["raised_in"], said["raised_in"])
    check("one note is attached", len(said["notes"]) == 1 or sys.version_info < (3, 11), said["notes"])
    note = "\n".join(said["notes"]) or done.stderr
    check("the note has the verdict", said["verdict"] in note, note)
    check("the note names a line of the program", "program.py:" in note, note)
    check("the note says what to change", "What to change" in note, note)
    check("the recording has ended", not said["still_recording"])
    path = said["path"] and pathlib.Path(said["path"])
    check("the snapshot lies beside the script", path and path.parent == machine.folder and path.exists(), said["path"])
    if path and path.exists():
        code = (
            "import json, sys, tonnage\n"
            "it = tonnage.read(sys.argv[1])\n"
            "report = it.report()\n"
            "print(json.dumps([len(it.events()), report.failed_requests, str(it.peak)]))"
        )
        read = machine.run("-c", code, path)
        check("the snapshot is read", read.returncode == 0, read.stderr)
        if read.returncode == 0:
            events, failures, peak = json.loads(read.stdout)
            check("it has the request that failed", failures >= 1, failures)
            print(f"{events} entries, {path.stat().st_size:,} bytes, {peak}")
        import pickle

        with open(path, "rb") as file:
            whole = pickle.load(file)
        # What the exception let go of on its way comes after it.
        actions = {entry["action"] for trace in whole["device_traces"] for entry in trace}
        check("PyTorch's tools read it too, and its history has the failure", "oom" in actions, actions)
        path.unlink()


def under(machine, limit):
    print("## tonnage record -- python program.py")
    plain = machine.run("program.py", limit)
    saved = machine.folder / "saved"
    recorded = machine.run("-m", "tonnage", "record", "--output", saved, "--", sys.executable, "program.py", limit)
    print(recorded.stderr)
    check("the exit status is the program's", recorded.returncode == plain.returncode == 1, recorded.returncode)
    check("standard output is the program's", recorded.stdout == plain.stdout, recorded.stdout)
    line = "OutOfMemoryError: CUDA out of memory."
    check("the program's own exception is shown", line in plain.stderr and line in recorded.stderr)
    # Before Python 3.11 exceptions have no notes: a warning says the same.
    check("with the note", "tonnage: What to change" in recorded.stderr)
    # As wide as the terminal: lines break anywhere.
    behind = " ".join(recorded.stderr.partition(line)[2].partition("Look at it: tonnage view")[2].split())
    check("and the report behind it", "Reserved memory peaked at" in behind, behind[-500:])
    files = sorted(it.name for it in saved.glob("*.pickle")) if saved.exists() else []
    check("one snapshot is saved", len(files) == 1, files)
    fine = machine.run("-m", "tonnage", "record", "--output", saved, "--", sys.executable, "fine.py")
    print(fine.stderr)
    check("a program that has enough memory ends as it would", fine.returncode == 0 and fine.stdout == "3\n", fine.stdout)


def fixture(machine):
    print("## gpu_memory, in pytest")

    def run(*words, mib):
        words = ["-m", "pytest", "-q", "-p", "no:cacheprovider", *words, "test_memory.py"]
        return machine.run(*words, MIB=str(mib), PYTEST_ADDOPTS="")

    new = run(mib=64)
    check("sizes are asserted, and are PyTorch's own", "3 passed" in new.stdout, new.stdout + new.stderr)
    check("a test without a baseline says so", "has no baseline yet" in new.stdout, new.stdout)
    written = run("--tonnage-update", mib=64)
    check("a baseline is written", written.returncode == 0 and "4 passed" in written.stdout, written.stdout)
    same = run(mib=64)
    check("the same again passes", same.returncode == 0 and "4 passed" in same.stdout, same.stdout)
    grown = run(mib=96)
    print(grown.stdout)
    check("more does not", grown.returncode == 1 and "1 failed, 3 passed" in grown.stdout, grown.stdout)
    check("by how much is said", "32.00 MiB more than the baseline" in grown.stdout, grown.stdout)
    check("and where", "test_memory.py:" in grown.stdout.partition("more than the baseline")[2], grown.stdout)


def cost(machine, rounds):
    print("## nanoseconds of `torch.empty(65536, dtype=torch.uint8, device=\"cuda\")` and its release; medians of rounds in turns")
    done = machine.run("cost.py", rounds)
    check("measured", done.returncode == 0, done.stderr)
    if done.returncode != 0:
        return
    names = {
        "without": "no history",
        "python_stacks": "PyTorch's history, Python's stacks",
        "all_stacks": "PyTorch's history as it is by default",
        "ours": "tonnage.record()",
    }
    for key, times in json.loads(done.stdout).items():
        print(f"{names[key]:<40}{statistics.median(times):>8.0f}  ({min(times):.0f} to {max(times):.0f})")


def main():
    wheels = [os.path.abspath(word) for word in sys.argv[1:] if word.endswith(".whl")]
    rounds = next((int(word) for word in sys.argv[1:] if word.isdigit()), 9)
    import torch

    print(f"PyTorch {torch.__version__}, Python {sys.version.split()[0]}, {torch.cuda.get_device_name(0)}")
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name).resolve()
        site = str(folder / "site")
        if wheels:
            install(wheels, site)
        work = folder / "work"
        work.mkdir()
        fine = "import torch\nprint(torch.ones(3, device='cuda').numel())\n"
        files = {"program.py": PROGRAM, "around.py": AROUND, "cost.py": COST, "fine.py": fine, "test_memory.py": TESTS}
        for file, text in files.items():
            (work / file).write_text(text)
        machine = Machine(work, site)
        version = machine.run("-m", "tonnage", "--version")
        check("the wheel is installed", version.returncode == 0, version.stderr)
        print(version.stdout.strip())
        around(machine, "a limit of 8 GiB", 8 * GIB)
        around(machine, "the size of the card", 0)
        under(machine, 8 * GIB)
        fixture(machine)
        cost(machine, rounds)
    print("something is not as it should be" if failed else "all is as it should be")
    sys.exit(failed)


if __name__ == "__main__":
    main()
