"""The snapshots of many ranks, here and spread over a cluster. Of Ray there is a stand-in."""

from __future__ import annotations

import io
import json
import os
import pathlib
import shutil
import subprocess
import sys
import types

import pytest

import tonnage
from conftest import recording
from tonnage import fleet


@pytest.fixture
def ranks(tmp_path: pathlib.Path) -> pathlib.Path:
    """Six ranks, of which two have other settings, and a file that is none."""
    folder = tmp_path / "ranks"
    folder.mkdir()
    for rank in range(6):
        name = "mlp_seed.default.stacks" if rank < 4 else "mlp_seed.expandable"
        shutil.copy(recording(name), folder / f"rank_{rank}.pickle.zst")
    (folder / "rank_9.pickle").write_bytes(b"cos\nsystem\n.")
    return folder


def command(*words: str, **more) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "tonnage", *words], capture_output=True, text=True, check=False, **more
    )


def test_the_report_is_the_commands(ranks: pathlib.Path) -> None:
    told = tonnage.fleet.report(ranks, limit="80GiB")
    printed = command("fleet", "report", str(ranks), "--limit", "80GiB", "--json")
    assert printed.returncode == 1
    assert told.to_dict() == json.loads(printed.stdout)
    assert (told.files, told.read, told.unreadable[0].rank) == (7, 6, 9)
    assert "could not be read" in str(told)
    with pytest.raises(tonnage.Error, match="cannot look at"):
        tonnage.fleet.report([ranks, ranks / "gone"])


class Cluster(types.ModuleType):
    """What is used of Ray, in this process: tasks are done in an order of their own, and some workers die."""

    def __init__(self, die: tuple[str, ...] = ()) -> None:
        super().__init__("ray")
        self.die = die
        self.cancelled: list[object] = []
        self.most = 0
        self.waiting = 0
        self.exceptions = types.SimpleNamespace(
            WorkerCrashedError=type("WorkerCrashedError", (Exception,), {}),
            OutOfMemoryError=type("OutOfMemoryError", (Exception,), {}),
            RayTaskError=type("RayTaskError", (Exception,), {}),
        )

    def is_initialized(self) -> bool:
        return True

    def cluster_resources(self) -> dict[str, float]:
        return {"CPU": 1.0}

    def remote(self, **options):
        assert options["max_retries"] > 0

        def of(function):
            def call(*arguments):
                self.waiting += 1
                self.most = max(self.most, self.waiting)
                return function, arguments[0]["address"], json.dumps(arguments)

            return types.SimpleNamespace(remote=call)

        return of

    def wait(self, references, num_returns):
        return [references[-1]], references[:-1]

    def get(self, reference):
        function, address, arguments = reference
        self.waiting -= 1
        if any(address.endswith(name) for name in self.die):
            raise self.exceptions.WorkerCrashedError("killed\nby the system")
        try:
            return function(*json.loads(arguments))
        except Exception as error:
            task = self.exceptions.RayTaskError("a task failed")
            task.cause = error
            raise task from None

    def cancel(self, reference, force):
        self.cancelled.append(reference)


def test_a_cluster_says_the_same_bytes(ranks: pathlib.Path, tmp_path: pathlib.Path, monkeypatch) -> None:
    cluster = Cluster()
    monkeypatch.setitem(sys.modules, "ray", cluster)
    here = fleet.report(ranks, out=tmp_path / "here")
    there = fleet.report(ranks, ray="auto", out=tmp_path / "there")
    assert (str(here), here._json) == (str(there), there._json)
    assert 1 < cluster.most <= 2 and not cluster.cancelled
    files = lambda folder: {it.name: it.read_bytes() for it in folder.rglob("*.parquet")}
    assert files(tmp_path / "here") == files(tmp_path / "there") != {}
    # What could not be read is tried again, and nothing else.
    cluster.most = 0
    assert fleet.report(ranks, ray="auto", out=tmp_path / "there")._json == here._json
    assert cluster.most == 1


def test_a_list_from_standard_input_is_read_once(ranks: pathlib.Path, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", Cluster())
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(f"{ranks}\n".encode())))
    assert fleet.report("@-", ray="auto")._json == fleet.report(ranks)._json


def test_a_file_that_kills_workers_is_a_line_of_the_result(ranks: pathlib.Path, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", Cluster(die=("rank_2.pickle.zst",)))
    told = fleet.report(ranks, ray="auto")
    assert [it.rank for it in told.unreadable] == [2, 9]
    assert "died: killed" in told.unreadable[0].why


def test_whoever_stops_leaves_no_task_behind(ranks: pathlib.Path, monkeypatch) -> None:
    cluster = Cluster()
    monkeypatch.setitem(sys.modules, "ray", cluster)
    monkeypatch.setattr(fleet, "_row", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        fleet.report(ranks, ray="auto", in_flight=4)
    assert len(cluster.cancelled) == 3


def test_what_is_wrong_with_a_cluster_is_one_sentence(ranks: pathlib.Path, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(tonnage.Error, match="pip install ray"):
        fleet.report(ranks, ray="auto")
    monkeypatch.setitem(sys.modules, "ray", Cluster())
    with pytest.raises(tonnage.UsageError, match="in_flight"):
        fleet.report(ranks, ray="auto", in_flight=0)
    # A worker without the package.
    def no_import(*_):
        raise RuntimeError("The remote function failed to import on the worker.")

    look = fleet._look
    monkeypatch.setattr(fleet, "_look", no_import)
    with pytest.raises(tonnage.Error, match="cannot import tonnage: install"):
        fleet.report(ranks, ray="auto")
    monkeypatch.setattr(fleet, "_look", lambda file, words, _, path: look(file, words, "0.0.0", path))
    with pytest.raises(tonnage.Error, match="and this program 0.0.0: install the same on every node"):
        fleet.report(ranks, ray="auto")


def test_the_command_without_ray_says_so(ranks: pathlib.Path, tmp_path: pathlib.Path) -> None:
    # A package of this name that is none, in front of one that may be there.
    (tmp_path / "ray.py").write_text("raise ModuleNotFoundError('no ray', name='ray')")
    paths = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    printed = command("fleet", "report", str(ranks), "--ray", "auto", env={**os.environ, "PYTHONPATH": paths})
    assert (printed.returncode, printed.stdout) == (2, "")
    assert printed.stderr.count("\n") == 1 and "pip install ray" in printed.stderr
