"""Simulated ranks on Ray from PyPI: two nodes on this machine, a script on the stand-in for PyTorch. Run by `cargo xtask fleet`."""

from __future__ import annotations

import json
import lzma
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import threading

import pytest

import tonnage
import tonnage.torch
from servers import wait_until

ray = pytest.importorskip("ray")

ROOT = pathlib.Path(__file__).parents[4]
STAND_IN = ROOT / "crates/cli/tests/stand_in/torch"

#: Ranks of the second stage ask for more; one may fail, one may wait, and the first may write a log.
SCRIPT = """
import os, pathlib, sys, time, torch
rank = int(os.environ["RANK"])
with open(f"ran_{rank}", "a") as file: file.write("x")
if rank == 0 and len(sys.argv) > 1: open(sys.argv[1], "a").write("a line")
if rank % 4 > 1: torch.recording = torch.recording.replace("small", "large")
while pathlib.Path("wait").exists() and rank == 3: time.sleep(0.05)
if pathlib.Path(f"fails_{rank}").exists(): raise ValueError("no such shard")
torch.cuda.init()
"""

JOB = {"world": 16, "rank": "all", "layout": {"dp": 4, "pp": 2, "tp": 2}, "alike": "dp", "time": 60}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A folder with the stand-in, a script and two histories."""
    folder = tmp_path_factory.mktemp("ranks")
    shutil.copytree(STAND_IN, folder / "torch", ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "torch/lib").mkdir()
    libraries = pathlib.Path(tonnage.__file__).parent / "libraries"
    shutil.copy(next(libraries.glob("*fake_cudart*")), folder / "torch/lib/libcudart.so.13")
    (folder / "train.py").write_text(SCRIPT)
    for name, script in [("small", "seed_mlp"), ("large", "small_gpt")]:
        # As PyTorch writes them: not packed, whatever their names say.
        history = lzma.open(ROOT / f"testdata/scripts/{script}.pickle.xz").read()
        (folder / f"{name}.pickle.zst").write_bytes(history)
        peak = 1 << 30 if name == "large" else 1 << 28
        stats = {f"{kind}_bytes.all.peak": peak for kind in ("requested", "allocated", "reserved")}
        stats |= {"allocation.all.allocated": peak >> 20, "num_ooms": 0}
        (folder / f"{name}.json").write_text(json.dumps({"stats": stats}))
    return folder


@pytest.fixture(scope="module")
def cluster(place: pathlib.Path):
    """Two nodes with a core each, whose workers find the stand-in: the cluster, and its address."""
    from ray.cluster_utils import Cluster

    before = {name: os.environ.get(name) for name in ("PYTHONPATH", "STAND_IN", "RAY_ENABLE_UV_RUN_RUNTIME_ENV")}
    os.environ["RAY_ENABLE_UV_RUN_RUNTIME_ENV"] = "0"
    paths = [str(place), *filter(None, [before["PYTHONPATH"]])]
    os.environ |= {"PYTHONPATH": os.pathsep.join(paths), "STAND_IN": str(place / "small")}
    nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    nodes.add_node(num_cpus=1)
    ray.init(address=nodes.address, log_to_driver=False, logging_level="error")
    yield nodes
    ray.shutdown()
    nodes.shutdown()
    for name, value in before.items():
        if value is None:
            del os.environ[name]
        else:
            os.environ[name] = value


@pytest.fixture
def here(place: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    monkeypatch.chdir(place)
    for left in [*place.glob("ran_*"), *place.glob("fails_*"), *place.glob("wait"), *place.glob("train.log")]:
        left.unlink()
    return place


def runs(folder: pathlib.Path) -> dict[int, int]:
    """Ranks that ran since this was asked last, and how often: a prediction is two runs."""
    told = {int(path.name[4:]): path for path in folder.glob("ran_*")}
    counts = {rank: told[rank].stat().st_size for rank in sorted(told)}
    for path in told.values():
        path.unlink()
    return counts


def ran(folder: pathlib.Path) -> list[int]:
    return list(runs(folder))


def steady(prediction: tonnage.torch.Prediction, out: pathlib.Path) -> dict:
    """What is the same whoever ran them."""
    told = json.loads(prediction.to_json().replace(str(out), "OUT"))
    told["from_before"] = None
    for rank in told["ranks"]:
        rank["prediction"] |= {"seconds": None, "files": None}
    return told


def test_workers_say_the_same(cluster, here: pathlib.Path, tmp_path: pathlib.Path) -> None:
    there = tonnage.torch.predict("train.py", **JOB, out=tmp_path / "there", ray=cluster.address)
    assert ran(here) == [0, 1, 2, 3, 12, 13, 14, 15]
    alone = tonnage.torch.predict("train.py", **JOB, out=tmp_path / "alone")
    assert ran(here) == [0, 1, 2, 3, 12, 13, 14, 15]
    assert steady(there, tmp_path / "there") == steady(alone, tmp_path / "alone")
    assert (there.runs, len(there.shared), there.from_before, alone.from_before) == (8, 8, 8, 0)
    # Histories came back, and are what was kept here.
    report = lambda name: tonnage.fleet.report(tmp_path / name / "snapshots").to_json().replace(name, "")
    assert report("there") == report("alone")
    again = tonnage.torch.predict("train.py", **JOB, out=tmp_path / "there", ray=cluster.address)
    assert (again.from_before, ran(here)) == (8, [])


def test_a_rank_that_fails_is_a_row_and_is_tried_once(cluster, here: pathlib.Path, tmp_path: pathlib.Path) -> None:
    (here / "fails_13").touch()
    # The set of rank 13 is not alike: its middle is run too. A command that is given again tries that rank again, once.
    for tried in ([0, 1, 2, 3, 5, 9, 12, 13, 14, 15], [13]):
        with pytest.raises(tonnage.ScriptError, match="rank 13: the script ended with status 1: ValueError: no such shard"):
            tonnage.torch.predict("train.py", **JOB, out=tmp_path / "out", ray=cluster.address)
        assert runs(here) == dict.fromkeys(tried, 2)
    (here / "fails_13").unlink()
    told = tonnage.torch.predict("train.py", **JOB, out=tmp_path / "out", ray=cluster.address)
    assert told.fits and ran(here) == [13]


def test_a_log_that_the_command_names_changes_nothing(cluster, here: pathlib.Path, tmp_path: pathlib.Path) -> None:
    for tried in ([0, 1, 2, 3, 12, 13, 14, 15], []):
        told = tonnage.torch.predict("train.py", ["train.log"], **JOB, out=tmp_path / "out", ray=cluster.address)
        assert told.fits and runs(here) == dict.fromkeys(tried, 2)
    assert (here / "train.log").exists()


def test_whoever_presses_ctrl_c_has_the_dataset_again(cluster, here: pathlib.Path, tmp_path: pathlib.Path) -> None:
    (here / "wait").touch()

    def press() -> None:
        wait_until("rank 3 runs", (here / "ran_3").exists)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=press)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        tonnage.torch.predict("train.py", world=4, rank="all", out=tmp_path / "out", jobs=1)
    thread.join()
    (here / "wait").unlink()
    told = tonnage.torch.predict("train.py", world=4, rank="all", out=tmp_path / "out", jobs=1)
    assert (told.runs, told.from_before) == (4, 3)


def test_ctrl_c_ends_scripts_and_keeps_what_is_done(cluster, here: pathlib.Path, tmp_path: pathlib.Path) -> None:
    (here / "wait").touch()
    out = tmp_path / "out"
    flags = ["--world", "4", "--rank", "all", "--out", str(out), "--ray", cluster.address]
    words = [sys.executable, "-m", "tonnage", "predict", *flags, "--", sys.executable, "train.py"]
    child = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    wait_until("three ranks are done", lambda: len(list(out.glob("snapshots/*.zst"))) == 3 and (here / "ran_3").exists())
    assert scripts()
    child.send_signal(signal.SIGINT)
    _, said = child.communicate(timeout=300)
    assert child.returncode == 130 and "Traceback" not in said, said
    wait_until("no script is left", lambda: not scripts())
    (here / "wait").unlink()
    ran(here)
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert ran(here) == [3]


def scripts() -> list[int]:
    """Processes of the script, wherever they are."""
    found = []
    for path in pathlib.Path("/proc").iterdir():
        try:
            if path.name.isdigit() and (path / "cmdline").read_bytes().split(b"\0")[1:2] == [b"train.py"]:
                found.append(int(path.name))
        except OSError:
            pass
    return found


def test_what_is_wrong_is_one_sentence(cluster, here: pathlib.Path, tmp_path: pathlib.Path) -> None:
    with pytest.raises(tonnage.UsageError, match="out"):
        tonnage.torch.predict("train.py", world=2, rank="all", ray=cluster.address)
    with pytest.raises(tonnage.Error, match=r"4 × 2 = 8 ranks"):
        tonnage.torch.predict("train.py", world=16, layout="dp=4,pp=2", out=tmp_path / "x", ray=cluster.address)
    assert ran(here) == []
