"""Recording: with a stand-in for PyTorch, in programs of their own."""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

import stand_in
import tonnage

BEGIN = "import torch, tonnage\n"


@pytest.fixture
def program(tmp_path: pathlib.Path, plain, python):
    """Runs a program that has the stand-in, as a file."""
    stand_in.install(tmp_path)
    folder = tmp_path / "job"
    folder.mkdir()

    def run(text: str, *before: str, snapshot: str = "mlp_seed.default.stacks", **environment: str):
        script = folder / "train.py"
        script.write_text(text)
        path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
        environment = {"STAND_IN_SNAPSHOT": str(plain(snapshot)), "PYTHONPATH": path, **environment}
        return python(*before, str(script), **environment)

    run.folder = folder
    return run


def test_a_piece_of_a_program_is_recorded_and_reported(program):
    done = program(
        BEGIN
        + "with tonnage.record(max_entries=5000) as rec:\n"
        "    torch.cuda.init()\n"
        "    rec.step()\n"
        "assert torch.calls[0] == ('record', 'all', {'max_entries': 5000, 'stacks': 'python'})\n"
        "assert torch.calls[1] == ('scope', 'Optimizer.step#tonnage')\n"
        "assert torch.calls[-1] == ('record', None, {})\n"
        "assert rec.report().verdict.cause == 'need'\n"
        "assert rec.snapshot.peak.allocated == 195529216\n"
        "rec.save('mine.pickle')\n"
        "assert tonnage.read('mine.pickle').peak == rec.snapshot.peak\n"
    )
    assert done.returncode == 0, done.stderr
    # Without a path nothing is saved unasked.
    assert [it.name for it in program.folder.iterdir()] == ["train.py"]


def test_a_function_is_recorded_each_time(program):
    done = program(
        BEGIN
        + "@tonnage.record\n"
        "def step(a, *, b):\n"
        "    torch.cuda.init()\n"
        "    return a + b\n"
        "@tonnage.record(max_entries=7)\n"
        "def other():\n"
        "    return 5\n"
        "assert step(1, b=2) == 3 and step(2, b=2) == 4 and other() == 5\n"
        "assert step.__name__ == 'step'\n"
        "assert [it[1] for it in torch.calls if it[0] == 'record'] == ['all', None] * 3\n"
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("entries", [0, -1, True, "x", 2.5, None])
def test_rings_without_entries_are_refused(entries):
    with pytest.raises(tonnage.UsageError, match="at least 1"):
        tonnage.record(max_entries=entries)


def test_functions_that_go_on_after_their_call_are_recorded_to_their_end(program):
    done = program(
        BEGIN
        + "import asyncio\n"
        "def recording():\n"
        "    return torch._recording\n"
        "@tonnage.record\n"
        "async def later(a):\n"
        "    await asyncio.sleep(0)\n"
        "    return a, recording()\n"
        "@tonnage.record(max_entries=7)\n"
        "def steps():\n"
        "    got = yield recording()\n"
        "    return got\n"
        "assert asyncio.run(later(5)) == (5, True) and not recording()\n"
        "walk = steps()\n"
        "assert next(walk) is True\n"
        "try:\n"
        "    walk.send(7)\n"
        "except StopIteration as end:\n"
        "    assert end.value == 7 and not recording()\n"
        "else:\n"
        "    assert False\n"
        "try:\n"
        "    tonnage.record(5)\n"
        "except TypeError as error:\n"
        "    assert 'not for int' in str(error)\n"
        "else:\n"
        "    assert False\n"
    )
    assert done.returncode == 0, done.stderr


def test_memory_that_runs_out_is_explained_on_the_exception(program):
    done = program(
        BEGIN
        + "def train():\n"
        "    with tonnage.record():\n"
        "        torch.empty(1 << 50, device='cuda')\n"
        "try:\n"
        "    train()\n"
        "except torch.OutOfMemoryError as error:\n"
        "    assert str(error) == 'CUDA out of memory.' and type(error) is torch.OutOfMemoryError\n"
        "    kept = error\n"
        "train()\n"
    )
    assert done.returncode == 1
    saved = program.folder / "train.oom.pickle"
    assert saved.exists()
    assert tonnage.read(saved).peak.allocated == 195_529_216
    said = done.stderr
    if sys.version_info >= (3, 11):
        assert said.rstrip().splitlines()[-1].startswith("tonnage: Look at it: tonnage view ")
    for part in [
        "CUDA out of memory.",
        "tonnage: Reserved memory peaked at 208.00 MiB",
        "(195,526,856 bytes), most of them from train/workloads.py:12",
        "What to change: ",
        str(saved),
    ]:
        assert part in said, said


def test_other_exceptions_pass_untouched(program):
    done = program(
        BEGIN
        + "try:\n"
        "    with tonnage.record():\n"
        "        torch.cuda.init()\n"
        "        raise ValueError('mine')\n"
        "except ValueError as error:\n"
        "    assert not getattr(error, '__notes__', None)\n"
    )
    assert done.returncode == 0, done.stderr
    assert [it.name for it in program.folder.iterdir()] == ["train.py"]


def test_a_history_of_the_programs_own_is_left_alone(program):
    own = "import torch\ntorch.cuda.memory._record_memory_history(max_entries=3)\n"
    seen = "assert [it for it in torch.calls if it[0] == 'record'] == [('record', 'all', {'max_entries': 3})]\n"
    done = program(own + "torch.empty(3, device='cuda')\n" + seen, *RECORD)
    assert done.returncode == 0, done.stderr
    assert "saved " in done.stderr
    done = program(
        BEGIN
        + "torch.cuda.memory._record_memory_history(max_entries=3)\n"
        "with tonnage.record() as rec:\n"
        "    torch.cuda.init()\n"
        "assert [it for it in torch.calls if it[0] == 'record'] == [('record', 'all', {'max_entries': 3})]\n"
        "assert rec.snapshot.peak\n"
    )
    assert done.returncode == 0, done.stderr


def test_without_a_gpu_it_says_so_and_the_program_goes_on(program):
    done = program(
        BEGIN
        + "with tonnage.record() as rec:\n"
        "    pass\n"
        "try:\n"
        "    rec.report()\n"
        "except tonnage.RecordError as error:\n"
        "    print(error)\n",
        STAND_IN_GPU="0",
    )
    # At the line that asked for it.
    assert "train.py:2: RuntimeWarning: tonnage: nothing is recorded: PyTorch sees no GPU" in done.stderr
    assert done.stdout == "nothing was recorded: PyTorch did not use a GPU\n"


def test_a_folder_that_cannot_be_written_to_is_left_for_another(program, tmp_path):
    done = program(
        BEGIN
        + "import os\n"
        "with tonnage.record() as rec:\n"
        "    torch.cuda.init()\n"
        "path = rec.save('/proc/nowhere/mine.pickle')\n"
        "assert path == os.path.join(os.getcwd(), 'mine.pickle'), path\n"
    )
    assert done.returncode == 0, done.stderr
    assert "/proc/nowhere cannot be written to" in done.stderr and "saved as" in done.stderr


RANKS = [
    ({}, ""),
    ({"RANK": "0"}, ".rank0"),
    ({"RANK": "3", "LOCAL_RANK": "1"}, ".rank3"),
    ({"SLURM_PROCID": "2", "SLURM_NTASKS": "8"}, ".rank2"),
    # A shell on a machine of Slurm's.
    ({"SLURM_PROCID": "0", "SLURM_NTASKS": "1"}, ""),
    ({"OMPI_COMM_WORLD_RANK": "5"}, ".rank5"),
    ({"LOCAL_RANK": "1"}, ".local1"),
    ({"LOCAL_RANK": "1", "NODE_RANK": "2"}, ".node2.local1"),
    ({"RANK": "../../etc"}, ""),
]


@pytest.mark.parametrize(("environment", "name"), RANKS)
def test_ranks_have_files_of_their_own(program, environment, name):
    text = BEGIN + "with tonnage.record(path='job.pickle') as rec:\n    torch.cuda.init()\nprint(rec.path)\n"
    done = program(text, **environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{program.folder.parent / f'job{name}.pickle'}\n"
    assert tonnage.read(done.stdout.strip()).peak.allocated == 195_529_216


def test_the_rank_of_the_process_group_counts_most(program):
    done = program(
        BEGIN
        + "import sys, types\n"
        "sys.modules['torch.distributed'] = types.SimpleNamespace(is_available=lambda: True, is_initialized=lambda: True,\n"
        "    get_rank=lambda: 6, get_world_size=lambda: 8)\n"
        "with tonnage.record(path='job.pickle.zst') as rec:\n    torch.cuda.init()\nprint(rec.path)\n",
        LOCAL_RANK="2",
    )
    assert done.stdout == f"{program.folder.parent / 'job.rank6.pickle.zst'}\n", done.stderr
    path = program.folder.parent / "job.rank6.pickle.zst"
    assert path.read_bytes()[:4] == b"\x28\xb5\x2f\xfd", "packed, as its name says"
    assert tonnage.read(path).peak.allocated == 195_529_216


def test_spawned_processes_have_files_of_their_own(program):
    done = program(
        "import multiprocessing, torch, tonnage\n"
        "def work(place):\n"
        "    with tonnage.record(path='job.pickle'):\n"
        "        torch.cuda.init()\n"
        "if __name__ == '__main__':\n"
        "    context = multiprocessing.get_context('spawn')\n"
        "    several = [context.Process(target=work, args=(it,)) for it in range(2)]\n"
        "    for it in several: it.start()\n"
        "    for it in several: it.join()\n"
        "    print(sorted(it.pid for it in several))\n"
    )
    assert done.returncode == 0, done.stderr
    names = sorted(it.name for it in program.folder.parent.glob("job.*"))
    assert names == [f"job.pid{it}.pickle" for it in sorted(map(int, done.stdout.strip("[]\n").split(", ")), key=str)]


def test_files_that_are_there_are_kept(program):
    text = BEGIN + "with tonnage.record(path='job.pickle') as rec:\n    torch.cuda.init()\nprint(rec.path)\n"
    mine = program.folder.parent / "job.pickle"
    mine.write_text("mine")
    for name in ["job.2.pickle", "job.3.pickle"]:
        done = program(text)
        assert done.stdout == f"{program.folder.parent / name}\n", done.stderr
        assert "job.pickle is there already and is kept" in done.stderr
    assert mine.read_text() == "mine"
    (program.folder / "train.memory.pickle").write_text("mine too")
    done = program("import torch\ntorch.empty(3, device='cuda')\n", *RECORD)
    assert f"saved {program.folder / 'train.memory.2.pickle'}\n" in done.stderr
    assert (program.folder / "train.memory.pickle").read_text() == "mine too"


RECORD = ("-m", "tonnage", "record", "--", sys.executable)


def test_the_command_records_a_program_that_knows_nothing_of_it(program):
    done = program(
        # Libraries ask whether it is there before they import it.
        "import importlib.util\nassert importlib.util.find_spec('torch') is not None\n"
        "import torch, sys\n"
        "assert not any('tonnage-hook' in it for it in sys.path)\n"
        "torch.empty(3, device='cuda')\n"
        "print('trained', sys.argv[0].endswith('train.py'))\n"
        "sys.exit(3)\n",
        *RECORD,
    )
    assert done.returncode == 3, done.stderr
    assert done.stdout == "trained True\n"
    assert "Reserved memory peaked at 208.00 MiB" in done.stderr
    saved = program.folder / "train.memory.pickle"
    assert f"saved {saved}\n" in done.stderr
    assert tonnage.read(saved).peak.allocated == 195_529_216


def test_the_command_leaves_a_module_its_loader(program):
    done = program(
        "import copy, importlib.resources, importlib.util, inspect, pickle\n"
        "spec = importlib.util.find_spec('torch')\n"
        # What a loader is asked before its module is there,
        "assert not spec.loader.is_package('torch')\n"
        "assert spec.loader.get_data(spec.origin) == open(spec.origin, 'rb').read()\n"
        "assert 'OutOfMemoryError' in spec.loader.get_source('torch')\n"
        "assert spec.loader.path == spec.origin and spec.loader.name == 'torch'\n"
        "assert not hasattr(spec.loader, 'no_such_thing')\n"
        "assert copy.copy(spec.loader).path == spec.origin\n"
        "assert importlib.util.module_from_spec(spec).__name__ == 'torch'\n"
        # and afterwards.
        "import torch\n"
        "assert type(torch.__loader__) is type(torch.__spec__.loader)\n"
        "assert type(torch.__loader__).__module__ == '_frozen_importlib_external'\n"
        "assert 'class OutOfMemoryError' in inspect.getsource(torch)\n"
        "torch.empty(3, device='cuda')\n",
        *RECORD,
    )
    assert done.returncode == 0, done.stderr
    assert "Reserved memory peaked at 208.00 MiB" in done.stderr


def test_the_command_explains_memory_that_runs_out(program):
    done = program("import torch\ntorch.empty(1 << 50, device='cuda')\n", *RECORD)
    assert done.returncode == 1
    assert "OutOfMemoryError: CUDA out of memory." in done.stderr
    assert "tonnage: Reserved memory peaked at" in done.stderr
    assert done.stderr.count("saved ") == 1


def test_the_command_has_a_file_for_each_process(program):
    done = program(
        "import os, subprocess, sys, torch\n"
        "if 'RANK' not in os.environ:\n"
        "    for rank in '01':\n"
        "        subprocess.run([sys.executable, __file__], env={**os.environ, 'RANK': rank}, check=True)\n"
        "else:\n"
        "    torch.empty(3, device='cuda')\n",
        "-m", "tonnage", "record", "--no-report", "--output", "out", "--", sys.executable,
    )
    assert done.returncode == 0, done.stderr
    names = sorted(it.name for it in (program.folder.parent / "out").iterdir())
    assert names == ["train.memory.rank0.pickle", "train.memory.rank1.pickle"]


def test_the_command_names_files_of_spawned_processes_by_the_script(program):
    done = program(
        "import multiprocessing, torch\n"
        "def work():\n"
        "    torch.empty(3, device='cuda')\n"
        "if __name__ == '__main__':\n"
        "    process = multiprocessing.get_context('spawn').Process(target=work)\n"
        "    process.start()\n"
        "    process.join()\n",
        *RECORD,
    )
    assert done.returncode == 0, done.stderr
    (name,) = [it.name for it in program.folder.iterdir() if it.suffix == ".pickle"]
    assert name.startswith("train.memory.pid"), name


def test_memory_that_runs_out_under_the_command_has_its_rank_once(program):
    done = program("import torch\ntorch.empty(1 << 50, device='cuda')\n", *RECORD, RANK="4")
    assert done.returncode == 1
    assert sorted(it.name for it in program.folder.iterdir()) == ["train.memory.rank4.pickle", "train.py"]


def test_the_command_says_when_nothing_was_recorded(program):
    done = program("print('no GPU here')\n", *RECORD)
    assert done.returncode == 0 and done.stdout == "no GPU here\n"
    assert "nothing was recorded" in done.stderr
    missing = program("", "-m", "tonnage", "record", "--", "/no/such/program")
    assert missing.returncode == 2 and "cannot run /no/such/program" in missing.stderr


def test_the_programs_own_sitecustomize_is_run(program, tmp_path):
    (tmp_path / "sitecustomize.py").write_text("import builtins; builtins.mine = 5\n")
    done = program("import torch\nprint(mine)\ntorch.empty(1, device='cuda')\n", *RECORD)
    assert done.stdout == "5\n", done.stderr
    assert "saved " in done.stderr


@pytest.mark.parametrize("name", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
def test_signals_go_on_to_the_program(tmp_path, name):
    ready = tmp_path / "ready"
    process = subprocess.Popen(
        [*(sys.executable, *RECORD), "-c",
         f"import time, signal; signal.signal(signal.SIGINT, signal.SIG_DFL); open({str(ready)!r}, 'w').close()\n"
         "time.sleep(1000)"],
        stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, stdout=subprocess.PIPE,
    )
    began = time.monotonic()
    while not ready.exists():
        assert time.monotonic() - began < 600
        time.sleep(0.02)
    process.send_signal(name)
    assert process.wait(timeout=600) == -name


def until(condition) -> None:
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < 600
        time.sleep(0.02)


def test_signals_that_are_ignored_stay_ignored(tmp_path):
    ready, go = tmp_path / "ready", tmp_path / "go"
    process = subprocess.Popen(
        [*(sys.executable, *RECORD), "-c",
         "import signal, sys, time, pathlib\n"
         "print([signal.getsignal(it) == signal.SIG_IGN for it in (signal.SIGHUP, signal.SIGINT)])\n"
         f"pathlib.Path({str(ready)!r}).touch()\n"
         f"while not pathlib.Path({str(go)!r}).exists(): time.sleep(0.02)\n"],
        stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        # As nohup does, and a shell with what it starts in the background.
        preexec_fn=lambda: [signal.signal(it, signal.SIG_IGN) for it in (signal.SIGHUP, signal.SIGINT)],
    )
    until(ready.exists)
    process.send_signal(signal.SIGHUP)
    process.send_signal(signal.SIGINT)
    go.touch()
    said, _ = process.communicate(timeout=600)
    assert process.returncode == 0
    assert said == "[True, True]\n"


def test_the_command_can_be_stopped_while_it_reports(program, plain, tmp_path):
    # A pipe in the place of the snapshot: whoever reports on it waits until someone writes.
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    script = program.folder / "train.py"
    script.write_text(f"import os\nopen(os.environ['TONNAGE_RECORD_LIST'], 'w').write({str(pipe)!r})\n")
    process = subprocess.Popen([sys.executable, *RECORD, str(script)], stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    # Opens once someone reads: the program has ended then.
    with pipe.open("wb"):
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=600) == -signal.SIGTERM
