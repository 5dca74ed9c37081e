"""The snapshots of many ranks, here and spread over a cluster. Of Ray there is a stand-in."""

from __future__ import annotations

import fcntl
import io
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import types

import pytest

import tonnage
from conftest import recording
from tonnage import __main__ as _main
from tonnage import _ray, _tonnage, fleet


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


def test_ctrl_c_keeps_what_is_done_and_leaves_the_dataset(tmp_path: pathlib.Path) -> None:
    ranks, out = tmp_path / "many", tmp_path / "out"
    ranks.mkdir()
    for rank in range(300):
        shutil.copy(recording("mlp_seed.default.stacks"), ranks / f"rank_{rank}.pickle.zst")

    def press() -> None:
        while not list(out.glob("iterations")):
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=press)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        fleet.report(ranks, out=out, jobs=1)
    thread.join()
    # Nobody holds it any more.
    before = {it: it.stat().st_mtime_ns for it in out.rglob("*")}
    time.sleep(0.2)
    assert {it: it.stat().st_mtime_ns for it in out.rglob("*")} == before
    some = ranks / "rank_0.pickle.zst"
    assert fleet.report(some, out=out)._json == fleet.report(some)._json


class Cluster(types.ModuleType):
    """What is used of Ray, in this process: tasks are done in an order of their own, and some workers die."""

    def __init__(self, die: tuple[str, ...] = ()) -> None:
        super().__init__("ray")
        self.die = die
        self.cancelled: list[object] = []
        self.forced: list[bool] = []
        # Whether tasks under way take longer than anyone waits.
        self.hangs = False
        self.most = 0
        self.waiting = 0
        # How often each was begun that dies; after so many times it is done.
        self.begun: dict[str, int] = {}
        self.dies_until = 1000
        # How often nothing is done yet.
        self.silent = 0
        self.is_connected, self.ended, self.refuses = True, 0, None
        self.dies_of = "WorkerCrashedError"
        error = type("RayError", (Exception,), {})
        names = ["WorkerCrashedError", "OutOfMemoryError", "NodeDiedError", "ObjectLostError", "RayTaskError"]
        kinds = {it: type(it, (error,), {}) for it in [*names, "RuntimeEnvSetupError"]}
        kinds["OwnerDiedError"] = type("OwnerDiedError", (kinds["ObjectLostError"],), {})
        self.exceptions = types.SimpleNamespace(RayError=error, **kinds)

    def is_initialized(self) -> bool:
        return self.is_connected

    def init(self, address, **_) -> None:
        if self.refuses is not None:
            raise self.refuses
        self.is_connected = True

    def shutdown(self) -> None:
        self.is_connected = False
        self.ended += 1

    def get_runtime_context(self):
        return types.SimpleNamespace(gcs_address="10.0.0.1:6379", get_node_id=lambda: "here")

    def nodes(self) -> list[dict]:
        return [{"NodeID": "there", "Resources": {"CPU": 9.0}}, {"NodeID": "here", "Resources": {"CPU": 3.0}}]

    def cluster_resources(self) -> dict[str, float]:
        return {"CPU": 1.0}

    def remote(self, **options):
        # Else Ray does for ever again what runs out of memory.
        assert options["max_retries"] == 0

        def of(function):
            def call(*arguments):
                self.waiting += 1
                self.most = max(self.most, self.waiting)
                return function, arguments[0]["address"], json.dumps(arguments)

            return types.SimpleNamespace(remote=call)

        return of

    def wait(self, references, num_returns, timeout=None):
        if timeout != _ray._ENDING:
            if self.silent:
                self.silent -= 1
                return [], references
            return [references[-1]], references[:-1]
        assert num_returns == len(references)
        left = [it for it in references if self.hangs and it not in self.cancelled]
        return [it for it in references if it not in left], left

    def get(self, reference):
        function, address, arguments = reference
        self.waiting -= 1
        self.begun[address] = self.begun.get(address, 0) + 1
        if any(address.endswith(name) for name in self.die) and self.begun[address] <= self.dies_until:
            raise getattr(self.exceptions, self.dies_of)("killed\nby the system")
        try:
            return function(*json.loads(arguments))
        except Exception as error:
            task = self.exceptions.RayTaskError("a task failed")
            task.cause = error
            raise task from None

    def cancel(self, reference, force=False):
        self.cancelled.append(reference)
        self.forced.append(force)


def test_a_cluster_says_the_same_bytes(ranks: pathlib.Path, tmp_path: pathlib.Path, monkeypatch) -> None:
    cluster = Cluster()
    monkeypatch.setitem(sys.modules, "ray", cluster)
    here = fleet.report(ranks, out=tmp_path / "here")
    there = fleet.report(ranks, ray="auto", in_flight=2, out=tmp_path / "there")
    assert (str(here), here._json) == (str(there), there._json)
    assert 1 < cluster.most <= 2 and not cluster.cancelled
    files = lambda folder: {it.name: it.read_bytes() for it in folder.rglob("*.parquet")}
    assert files(tmp_path / "here") == files(tmp_path / "there") != {}
    # What could not be read is tried again, and nothing else.
    cluster.most = 0
    assert fleet.report(ranks, ray="auto", out=tmp_path / "there")._json == here._json
    assert cluster.most == 1


def test_a_cluster_that_grows_has_more_to_do(ranks: pathlib.Path, monkeypatch) -> None:
    cluster = Cluster()
    monkeypatch.setitem(sys.modules, "ray", cluster)
    # It grows for tasks that wait.
    fleet.report(ranks, ray="auto")
    assert cluster.most == 7
    monkeypatch.setattr(_ray, "_FEWEST", 1)
    monkeypatch.setattr(_ray, "_ASKED", 0.0)
    cluster.most, cores = 0, iter([1.0, 1.0])
    monkeypatch.setattr(cluster, "cluster_resources", lambda: {"CPU": next(cores, 2.0)})
    fleet.report(ranks, ray="auto")
    assert cluster.most == 4
    # A cluster without a node yet has no cores.
    monkeypatch.setattr(cluster, "cluster_resources", dict)
    fleet.report(ranks, ray="auto")


def test_a_list_from_standard_input_is_read_once(ranks: pathlib.Path, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", Cluster())
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(f"{ranks}\n".encode())))
    assert fleet.report("@-", ray="auto")._json == fleet.report(ranks)._json


@pytest.mark.parametrize("what", ["WorkerCrashedError", "OutOfMemoryError", "NodeDiedError", "OwnerDiedError"])
def test_a_file_that_kills_workers_is_a_line_of_the_result(what: str, ranks: pathlib.Path, monkeypatch) -> None:
    cluster = Cluster(die=("rank_2.pickle.zst",))
    cluster.dies_of = what
    monkeypatch.setitem(sys.modules, "ray", cluster)
    told = fleet.report(ranks, ray="auto")
    assert [it.rank for it in told.unreadable] == [2, 9]
    assert "died: killed" in told.unreadable[0].why
    # It is given out again three times, and the others once.
    assert sorted(cluster.begun.values()) == [1] * 6 + [4]
    cluster.begun.clear()
    cluster.dies_until = 3
    assert fleet.report(ranks, ray="auto")._json == fleet.report(ranks)._json


def test_a_worker_shares_the_memory_of_its_node(ranks: pathlib.Path, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", Cluster())
    asked: list[list[str]] = []
    ask = _tonnage.ask_fleet
    monkeypatch.setattr(_tonnage, "ask_fleet", lambda words: asked.append(words) or ask(words))
    _ray.tasks_here.cache_clear()
    fleet.report(ranks, ray="auto")
    looks = [words for words in asked if words[1] == "look"]
    assert len(looks) == 7 and all("--jobs=3" in words for words in looks)
    # Where Ray does not tell, the machine does.
    _ray.tasks_here.cache_clear()
    monkeypatch.setattr(Cluster, "nodes", lambda _: 1 // 0)
    assert fleet.report(ranks, ray="auto").read == 6
    assert not any(word.startswith("--jobs") for word in asked[-2])
    _ray.tasks_here.cache_clear()


def test_a_cluster_without_a_cpu_is_waited_for_and_that_is_said(ranks: pathlib.Path, monkeypatch, capsys) -> None:
    cluster = Cluster()
    monkeypatch.setitem(sys.modules, "ray", cluster)
    cluster.silent = 2
    told = fleet.report(ranks, ray="auto")
    # It has a CPU, and takes its time.
    assert (told.read, capsys.readouterr().err) == (6, "")
    cluster.silent = 3
    monkeypatch.setattr(cluster, "cluster_resources", lambda: {"memory": 1.0})
    assert fleet.report(ranks, ray="auto").read == 6
    assert capsys.readouterr().err == "note: the Ray cluster has no CPU yet: waiting until it has one\n"


def test_a_storage_that_goes_away_is_not_waited_for_with_each_file(ranks: pathlib.Path, tmp_path, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", Cluster())
    look, base, seen = fleet._look, str(ranks), []

    def looked(file, *arguments):
        seen.append(file)
        row = json.loads(look(file, *arguments))
        # It answers twice, after two in a row and before three.
        if len(seen) not in (1, 4):
            row |= {"seen": {"unreadable": "nobody answers"}, "gone": base}
        return json.dumps(row)

    monkeypatch.setattr(fleet, "_look", looked)
    monkeypatch.setattr(_ray, "_FEWEST", 1)
    monkeypatch.setattr(_ray._Room, "cores", lambda _: 0)
    shutil.copy(ranks / "rank_0.pickle.zst", ranks / "rank_6.pickle.zst")
    out = tmp_path / "out"
    with pytest.raises(tonnage.Error, match=f"^{base}: nobody answers; 7 of 8 files were looked at by then; what is done is kept"):
        fleet.report(ranks, ray="auto", out=out)
    monkeypatch.undo()
    assert fleet.report(ranks, out=out)._json == fleet.report(ranks)._json


def test_whoever_stops_leaves_no_task_behind(ranks: pathlib.Path, monkeypatch) -> None:
    cluster = Cluster()
    monkeypatch.setitem(sys.modules, "ray", cluster)
    monkeypatch.setattr(_ray, "_result", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        fleet.report(ranks, ray="auto", in_flight=4)
    # The one under way ends by itself, or is ended.
    assert len(cluster.cancelled) == 2 and not any(cluster.forced)
    cluster.hangs = True
    with pytest.raises(KeyboardInterrupt):
        fleet.report(ranks, ray="auto", in_flight=4)
    assert cluster.forced == [False] * 4 + [True]


def test_an_error_on_the_way_leaves_no_task_behind(ranks: pathlib.Path, tmp_path: pathlib.Path, monkeypatch) -> None:
    cluster = Cluster()
    monkeypatch.setitem(sys.modules, "ray", cluster)
    monkeypatch.setattr(fleet, "_KEPT", 1)
    monkeypatch.setattr(fleet, "_keep", lambda *_: 1 // 0)
    try:
        fleet.report(ranks, ray="auto", in_flight=4, out=tmp_path / "out")
    except ZeroDivisionError as error:
        # While someone looks at the error, which has all that was on the way.
        assert len(cluster.cancelled) == 2, error
    else:
        raise AssertionError("it did not fail")


@pytest.mark.parametrize("rows", [3, 100])
def test_another_run_that_takes_the_dataset_is_no_end(rows: int, ranks: pathlib.Path, tmp_path, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", Cluster())
    out, whole = tmp_path / "out", fleet.report(ranks)
    fleet.report(ranks / "rank_0.pickle.zst", out=out)
    on_ray = fleet._on_ray

    def taken(*arguments):
        """Rows of which the first come while another run writes the dataset."""
        with open(out / "_tonnage_fleet.json", "r+") as marker:
            fcntl.flock(marker, fcntl.LOCK_EX)
            for count, row in enumerate(on_ray(*arguments)):
                if count == rows:
                    fcntl.flock(marker, fcntl.LOCK_UN)
                yield row
            held.append(open(out / "_tonnage_fleet.json", "r+"))
            if rows == 100:
                fcntl.flock(marker, fcntl.LOCK_UN)
                fcntl.flock(held[-1], fcntl.LOCK_EX)

    held: list = []
    monkeypatch.setattr(fleet, "_on_ray", taken)
    monkeypatch.setattr(fleet, "_KEPT", 1)
    monkeypatch.setattr(fleet, "_PATIENCE", 0.1)
    if rows == 3:
        assert fleet.report(ranks, ray="auto", out=out)._json == whole._json
        monkeypatch.undo()
        assert fleet.report(ranks, out=out)._json == whole._json
    else:
        with pytest.warns(UserWarning, match="another run: what is said here is not kept"):
            assert fleet.report(ranks, ray="auto", out=out)._json == whole._json
    held[-1].close()


def test_what_was_connected_to_here_is_left_and_no_other_cluster_taken(ranks: pathlib.Path, monkeypatch) -> None:
    cluster = Cluster()
    monkeypatch.setitem(sys.modules, "ray", cluster)
    for address in ("auto", "10.0.0.1:6379", "localhost:6379"):
        fleet.report(ranks, ray=address)
    assert cluster.ended == 0
    for address in ("10.0.0.1:6380", "10.0.0.2:6379", "local", "ray://10.0.0.1:10001"):
        with pytest.raises(tonnage.UsageError, match=f"connected to another Ray cluster than {address}"):
            fleet.report(ranks, ray=address)
    cluster.is_connected = False
    fleet.report(ranks, ray="10.0.0.2:6379")
    assert (cluster.is_connected, cluster.ended) == (False, 1)
    # While it is connected for this, another client's address is another cluster.
    monkeypatch.setattr(_ray, "_check_that_someone_listens", lambda _: None)
    with _ray._connected("ray://10.0.0.2:10001"):
        fleet.report(ranks, ray="ray://10.0.0.2:10001")
        with pytest.raises(tonnage.UsageError, match="connected to another Ray cluster than ray://10.0.0.3:10001"):
            fleet.report(ranks, ray="ray://10.0.0.3:10001")
    assert (cluster.is_connected, cluster.ended) == (False, 2)
    cluster.refuses = RuntimeError("Version mismatch: The cluster was started with:\n    Ray: 2.1\n    Python: 3.9")
    with pytest.raises(tonnage.Error, match="Version mismatch: The cluster was started with: Ray: 2.1 Python: 3.9$"):
        fleet.report(ranks, ray="auto")


def test_a_dataset_is_read_and_no_cluster_asked(ranks: pathlib.Path, tmp_path: pathlib.Path, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    out = tmp_path / "out"
    fleet.report(ranks, out=out)
    assert fleet.report(out, ray="auto")._json == fleet.report(out)._json
    words = ["-m", "tonnage", "fleet", "report", str(out), "--json"]
    printed = [subprocess.run([sys.executable, *words, *more], capture_output=True) for more in ([], ["--ray", "auto"])]
    assert printed[0].returncode == 1 and printed[0].stdout == printed[1].stdout != b""
    with pytest.raises(tonnage.Error, match="^--tune is asked of files, and .* is a dataset"):
        fleet.report(out, ray="auto", tune=True)


def test_a_name_that_is_no_text_is_refused_before_a_cluster_is_asked(ranks: pathlib.Path, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    shutil.copy(ranks / "rank_0.pickle.zst", os.fsencode(ranks) + b"/rank_7\xff.pickle.zst")
    with pytest.raises(tonnage.Error, match="this name is not UTF-8, and Ray's workers are not told it"):
        fleet.report(ranks, ray="auto")
    assert fleet.report(ranks).read == 7


def test_rows_are_kept_after_a_while_however_few(monkeypatch) -> None:
    monkeypatch.setattr(fleet, "_WAIT", 0.0)
    assert list(fleet._batches(["a", "b"])) == [["a"], ["b"], []]
    monkeypatch.setattr(fleet, "_WAIT", 3600.0)
    assert list(fleet._batches(["a", "b"])) == [["a", "b"]]
    rows = [str(number) for number in range(fleet._KEPT + 1)]
    assert [len(it) for it in fleet._batches(rows)] == [fleet._KEPT, 1]


def test_what_is_wrong_with_a_cluster_is_one_sentence(ranks: pathlib.Path, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(tonnage.Error, match="pip install ray"):
        fleet.report(ranks, ray="auto")
    monkeypatch.setitem(sys.modules, "ray", Cluster())
    with pytest.raises(tonnage.UsageError, match="in_flight"):
        fleet.report(ranks, ray="auto", in_flight=0)
    # Ray itself, and a task.
    broken = Cluster(die=("rank_2.pickle.zst",))
    broken.dies_of = "RuntimeEnvSetupError"
    monkeypatch.setitem(sys.modules, "ray", broken)
    with pytest.raises(tonnage.Error, match="^Ray failed: killed$"):
        fleet.report(ranks, ray="auto")
    monkeypatch.setattr(broken, "wait", lambda *_, **__: (_ for _ in ()).throw(broken.exceptions.RayError("gone\nx")))
    with pytest.raises(tonnage.Error, match="^Ray failed: gone$"):
        fleet.report(ranks, ray="auto")
    monkeypatch.setitem(sys.modules, "ray", Cluster())
    with monkeypatch.context() as patched:
        patched.setattr(fleet, "_look", lambda *_: 1 // 0)
        with pytest.raises(tonnage.Error, match="^a Ray task failed: .*division.* by zero$"):
            fleet.report(ranks, ray="auto")
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


def test_ctrl_c_is_the_commands_where_ray_is_done(ranks: pathlib.Path, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", Cluster())
    # The command itself would have this process for its own.
    seen = []
    monkeypatch.setattr(fleet._tonnage, "command", lambda words: seen.append(signal.getsignal(signal.SIGINT)) or 0)
    before = signal.getsignal(signal.SIGINT)
    try:
        assert fleet._command([str(ranks), "--ray", "auto"]) == 0
    finally:
        signal.signal(signal.SIGINT, before)
    assert seen == [signal.SIG_DFL]


def test_nothing_is_left_on_the_disk_however_the_command_ends(ranks: pathlib.Path, tmp_path: pathlib.Path, monkeypatch) -> None:
    """Rows and lists have addresses that let others read."""
    monkeypatch.setitem(sys.modules, "ray", Cluster())
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(f"{ranks}\n".encode())))
    seen = []

    def ended(words):
        """What the command has where Ctrl-C ends this program at once."""
        words, rows = _ray.without(words, "--rows")
        seen.extend([list(folder.iterdir()), len(open(rows).readlines()), open(words[-1][1:]).read()])
        return 130

    monkeypatch.setattr(_main, "leave_signals", lambda: None)
    monkeypatch.setattr(fleet._tonnage, "command", ended)
    assert fleet._command(["--ray", "auto", "--out", str(tmp_path / "out"), "--", "@-"]) == 130
    assert seen == [[], 7, f"{ranks}\n"]


def test_the_command_without_ray_says_so(ranks: pathlib.Path, tmp_path: pathlib.Path) -> None:
    # A package of this name that is none, in front of one that may be there.
    (tmp_path / "ray.py").write_text("raise ModuleNotFoundError('no ray', name='ray')")
    paths = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    printed = command("fleet", "report", str(ranks), "--ray", "auto", env={**os.environ, "PYTHONPATH": paths})
    assert (printed.returncode, printed.stdout) == (2, "")
    assert printed.stderr.count("\n") == 1 and "pip install ray" in printed.stderr
