"""With PyTorch itself and what trains with it, on a GPU: a real one where there is one, else the fake CUDA libraries, on which its own
allocator runs and runs out of memory. Run by `cargo xtask python-full`."""

from __future__ import annotations

import json
import os
import pathlib
import pickle
import subprocess
import sys
import time

import pytest

import tonnage
from conftest import ROOT

pytestmark = pytest.mark.full

#: What runs where the fake libraries are: it tells its environment, and stays until it is told to go.
HOLD = """
import json, os, pathlib, sys, time
told, go, parent = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), os.getppid()
unfinished = told.with_suffix(".unfinished")
unfinished.write_text(json.dumps(dict(os.environ)))
unfinished.rename(told)
while not go.exists() and os.getppid() == parent:
    time.sleep(0.05)
"""

#: Who reads these writes down what a script does, for a prediction.
FOR_PREDICTIONS = ("TONNAGE_OUT", "TONNAGE_FAKE_READS_OUT", "TONNAGE_FAKE_READS_IN")


@pytest.fixture(scope="session")
def gpu(tmp_path_factory: pytest.TempPathFactory):
    """The environment in which PyTorch has a GPU."""
    import torch

    if torch.cuda.is_available():
        yield dict(os.environ)
        return
    folder = tmp_path_factory.mktemp("fake-gpu")
    told, go, script = folder / "environment.json", folder / "go", folder / "hold.py"
    script.write_text(HOLD)
    command = [sys.executable, "-m", "tonnage", "predict", "--time", "7200", "--", sys.executable, script, told, go]
    with (folder / "said").open("w") as said:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=said, stderr=said)
        try:
            while not told.exists():
                assert process.poll() is None, (folder / "said").read_text()
                time.sleep(0.05)
            environment = json.loads(told.read_text())
            yield {name: value for name, value in environment.items() if name not in FOR_PREDICTIONS}
        finally:
            go.touch()
            process.wait(timeout=600)


@pytest.fixture
def run(gpu, tmp_path):
    """Runs a program as a file, in a folder of its own, where there is a GPU."""

    def run(text: str, *before: str, **environment: str) -> subprocess.CompletedProcess[str]:
        script = tmp_path / "train.py"
        script.write_text(text)
        return subprocess.run(
            [*(before or (sys.executable,)), str(script)], cwd=tmp_path, env={**gpu, **environment}, capture_output=True, text=True,
            timeout=600,
        )

    return run


RECORD = (sys.executable, "-m", "tonnage", "record")


def names(folder: pathlib.Path) -> list[str]:
    return sorted(it.name for it in folder.glob("*.pickle"))


def test_memory_that_runs_out_tests_of_memory_and_what_recording_costs(gpu):
    """The script that is run on real GPUs too."""
    # The wheel is installed already: none is named.
    done = subprocess.run(
        [sys.executable, ROOT / "benches/pytorch/oom.py", "1"], env=gpu, capture_output=True, text=True, timeout=1800
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("\nok ") > 40, done.stdout


STEPS = """
import torch
model = torch.nn.Sequential(*[torch.nn.Linear(512, 512) for _ in range(4)]).cuda()
optimizer = torch.optim.Adam(model.parameters())
def train(steps):
    for _ in range(steps):
        model(torch.randn(256, 512, device="cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
"""


def test_iterations_are_found_by_the_steps_of_optimizers(run, tmp_path):
    done = run(
        STEPS
        + "import tonnage\n"
        "with tonnage.record(path='job.pickle') as rec:\n"
        "    train(6)\n"
        "assert rec.snapshot.peak.allocated == torch.cuda.max_memory_allocated(), rec.snapshot.peak\n"
        "assert rec.snapshot.peak.reserved == torch.cuda.max_memory_reserved(), rec.snapshot.peak\n"
        "print(len(rec.snapshot.plot().iterations), rec.report())\n"
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("6 ") and "train.py:" in done.stdout, done.stdout
    assert names(tmp_path) == ["job.pickle"]


def test_the_command_records_each_rank_of_torchrun(run, tmp_path):
    command = [*RECORD, "--no-report", "--output", "out", "--", sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    done = run("import torch\ntorch.empty(1 << 20, device='cuda')\n", *command)
    assert done.returncode == 0, done.stderr
    assert names(tmp_path / "out") == ["train.memory.rank0.pickle", "train.memory.rank1.pickle"]
    for path in (tmp_path / "out").iterdir():
        assert tonnage.read(path).peak.allocated == 4 << 20


SPAWN = """
import torch
import torch.multiprocessing
def work(rank):
    torch.empty(1 << 20, device="cuda")
if __name__ == "__main__":
    torch.multiprocessing.spawn(work, nprocs=2)
"""


def test_the_command_records_spawned_processes(run, tmp_path):
    done = run(SPAWN, *RECORD, "--no-report", "--", sys.executable)
    assert done.returncode == 0, done.stderr
    saved = names(tmp_path)
    assert len(saved) == 2 and all(it.startswith("train.memory.pid") for it in saved), saved


def test_a_history_that_the_program_records_itself_is_left_alone(run, tmp_path):
    done = run(
        "import torch\n"
        "torch.cuda.memory._record_memory_history(max_entries=7, stacks='python')\n"
        "for _ in range(100):\n"
        "    torch.empty(1 << 20, device='cuda')\n"
        "torch.cuda.memory._dump_snapshot('mine.pickle')\n"
        "assert torch._C._cuda_isHistoryEnabled()\n",
        *RECORD, "--no-report", "--", sys.executable,
    )
    assert done.returncode == 0, done.stderr
    for name in ["mine.pickle", "train.memory.pickle"]:
        with (tmp_path / name).open("rb") as file:
            # The ring that the program asked for.
            assert sum(len(it) for it in pickle.load(file)["device_traces"]) == 7, name


def test_the_cell_magic_explains_memory_that_runs_out(run):
    pytest.importorskip("IPython")
    done = run(
        "from IPython.testing.globalipapp import start_ipython\n"
        "shell = start_ipython()\n"
        "shell.run_line_magic('load_ext', 'tonnage')\n"
        "import torch\n"
        "try:\n"
        "    shell.run_cell_magic('tonnage', '', 'import torch; torch.empty(1 << 45, device=\"cuda\")')\n"
        "except torch.OutOfMemoryError as error:\n"
        "    print('raised', error.__notes__)\n"
    )
    assert "raised" in done.stdout and "tonnage: " in done.stdout, done.stdout + done.stderr


def check_training(path: pathlib.Path, done: subprocess.CompletedProcess[str], steps: int) -> None:
    assert done.returncode == 0, done.stderr
    assert "memory peaked at" in " ".join(done.stderr.split()), done.stderr
    snapshot = tonnage.read(path)
    assert len(snapshot.plot().iterations) == steps
    assert f"allocated {snapshot.peak.allocated}" in done.stdout, done.stdout


SAY = "print('allocated', torch.cuda.max_memory_allocated())\n"

TRANSFORMERS = """
import torch, transformers, tonnage
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1024, 1024)
    def forward(self, x, labels=None):
        y = self.layer(x)
        return {"loss": torch.nn.functional.mse_loss(y, labels), "logits": y}
data = [{"x": torch.ones(1024) * it, "labels": torch.ones(1024)} for it in range(16)]
options = transformers.TrainingArguments(
    output_dir="out", max_steps=6, per_device_train_batch_size=2, report_to=[], save_strategy="no", disable_tqdm=True)
callback = tonnage.callbacks.for_transformers(path="job.pickle")
transformers.Trainer(model=Model(), args=options, train_dataset=data, callbacks=[callback]).train()
"""


def test_transformers(run, tmp_path):
    check_training(tmp_path / "job.pickle", run(TRANSFORMERS + SAY), 6)


LIGHTNING = """
import sys, torch, tonnage
try:
    import lightning.pytorch as library
except ImportError:
    import pytorch_lightning as library
class Model(library.LightningModule):
    def __init__(self, fails):
        super().__init__()
        self.layer = torch.nn.Linear(1024, 1024)
        self.fails = fails
    def training_step(self, batch, place):
        if self.fails:
            torch.empty(1 << 45, device="cuda")
        return self.layer(batch).sum()
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)
def fit(callback, fails=False):
    data = torch.utils.data.DataLoader(torch.ones(16, 1024), batch_size=2)
    library.Trainer(
        accelerator="gpu", devices=1, max_steps=6, callbacks=[callback], logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False,
    ).fit(Model(fails), data)
callback = tonnage.callbacks.for_lightning(path="job.pickle")
fit(callback)
"""


def test_lightning(run, tmp_path):
    failing = (
        "try:\n"
        "    fit(callback, fails=True)\n"
        "except torch.OutOfMemoryError as error:\n"
        "    print('explained', error.__notes__)\n"
    )
    done = run(LIGHTNING + SAY + failing)
    check_training(tmp_path / "job.pickle", done, 6)
    assert "explained ['tonnage: " in done.stdout and names(tmp_path) == ["job.2.pickle", "job.pickle"], done.stdout


ACCELERATE = """
import accelerate, torch, tonnage
accelerator = accelerate.Accelerator(log_with=tonnage.callbacks.for_accelerate(path="job.pickle"))
accelerator.init_trackers("job")
model = torch.nn.Linear(1024, 1024)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer = accelerator.prepare(model, optimizer)
for step in range(6):
    loss = model(torch.ones(2, 1024, device=accelerator.device)).sum()
    accelerator.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
    accelerator.log({"loss": loss.item()}, step=step)
accelerator.end_training()
"""


def test_accelerate(run, tmp_path):
    check_training(tmp_path / "job.pickle", run(ACCELERATE + SAY), 6)


def test_a_script_is_predicted_from_python(tmp_path):
    script = tmp_path / "train.py"
    script.write_text("import sys, torch\nheld = torch.zeros(int(sys.argv[1]) << 20, dtype=torch.uint8, device='cuda')\n")
    made = tonnage.torch.predict(script, [64])
    assert made and made.fits and made.allocated.low == made.allocated.high == 64 << 20
    assert made.reserved.high == 64 << 20 and "train.py:2 " in made.peak.line, made
    assert "fits" in str(made) and made.to_dict()["torch"].startswith(made.torch[:4])
    small = tonnage.torch.predict(script, [4096], limit="2GiB")
    assert not small and small.fits is False and small.error.type == "OutOfMemoryError"
    script.write_text("import torch\ntorch.zeros(1, device='cuda')\nraise ValueError('no data')\n")
    with pytest.raises(tonnage.ScriptError, match="ValueError: no data"):
        tonnage.torch.predict(script)


MEMORY_TESTS = """
import torch
def test_step(gpu_memory):
    model = torch.nn.Linear(1024, 1024).cuda()
    model(torch.randn(64, 1024, device="cuda")).sum().backward()
    gpu_memory.assert_peak(WITHIN, tolerance="1%")
def test_name():
    assert torch.cuda.get_device_name() == "NVIDIA A100-SXM4-80GB"
"""


@pytest.mark.parametrize("start", [("-m", "pytest"), (str(pathlib.Path(sys.executable).with_name("pytest")),)])
def test_tests_of_memory_run_without_a_gpu(tmp_path, start):
    tests = tmp_path / "test_memory.py"
    environment = {**os.environ, "TMPDIR": str(tmp_path / "temporary")}
    (tmp_path / "temporary").mkdir()

    def run(within: str) -> subprocess.CompletedProcess[str]:
        tests.write_text(MEMORY_TESTS.replace("WITHIN", within))
        command = [sys.executable, *start, "-p", "no:cacheprovider", "--tonnage-gpu", "a100-80", str(tests)]
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600)

    done = run("27005952")
    assert done.returncode == 0 and "2 passed" in done.stdout, done.stdout + done.stderr
    assert "tonnage: PyTorch has the GPU a100-80, on which nothing is computed" in done.stdout
    failed = run('"8MiB"')
    assert failed.returncode == 1 and "more than expected: 8.00 MiB" in failed.stdout, failed.stdout + failed.stderr
    assert not list((tmp_path / "temporary").glob("tonnage-*"))
