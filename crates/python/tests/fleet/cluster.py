"""Ray from PyPI: several nodes on this machine, workers and nodes that are killed. Run by `cargo xtask fleet`."""

from __future__ import annotations

import contextlib
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import threading

import pytest

import tonnage
from servers import command, every_way_failed, free_port, s3_variables, wait_until
from tonnage import fleet

ray = pytest.importorskip("ray")


@pytest.fixture(scope="module")
def cluster():
    """Three nodes with a core each: the cluster, and its address."""
    from ray.cluster_utils import Cluster

    # They are all on this machine.
    os.environ["RAY_ENABLE_UV_RUN_RUNTIME_ENV"] = "0"
    nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    nodes.add_node(num_cpus=1)
    nodes.add_node(num_cpus=1)
    ray.init(address=nodes.address, log_to_driver=False, logging_level="error")
    yield nodes
    ray.shutdown()
    nodes.shutdown()


def workers(doing: str = "ray::_look") -> list[int]:
    """Processes that look at a file."""
    found = []
    for path in pathlib.Path("/proc").iterdir():
        if path.name.isdigit():
            try:
                if (path / "cmdline").read_bytes().startswith(doing.encode()):
                    found.append(int(path.name))
            except OSError:
                pass
    return found


def kill_a_worker() -> None:
    """Kills a process that looks at a file, and waits until it is gone."""
    killed: list[int] = []

    def is_killed() -> bool:
        for pid in workers():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                killed.append(pid)
                return True
        return False

    wait_until("a worker looks at a file", is_killed)
    wait_until("it is gone", lambda: killed[0] not in workers())


def slow_down(monkeypatch: pytest.MonkeyPatch, seconds: float, nodes: pathlib.Path) -> None:
    """Lets every look at a file take so long at least, and leave a file with the name of its node."""
    look = fleet._look
    nodes.mkdir()

    def slowed(*arguments):
        import time

        import ray

        (nodes / ray.get_runtime_context().get_node_id()).touch()
        time.sleep(seconds)
        return look(*arguments)

    # What its workers are called by.
    slowed.__name__ = slowed.__qualname__ = "_look"
    monkeypatch.setattr(fleet, "_look", slowed)


def alive() -> set[str]:
    """Nodes that are there."""
    return {it["NodeID"] for it in ray.nodes() if it["Alive"]}


def in_a_thread(work):
    """Work that goes on elsewhere, and what it gives."""
    result: list = []
    thread = threading.Thread(target=lambda: result.append(work()))
    thread.start()
    return thread, result


def test_several_nodes_say_the_same_bytes(
    cluster, small: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = fleet.report(small, out=tmp_path / "here")
    # Not so fast that one node has them all before the others have a worker.
    nodes = tmp_path / "nodes"
    slow_down(monkeypatch, 0.3, nodes)
    there = fleet.report(small, ray=cluster.address, out=tmp_path / "there")
    assert (str(here), here._json) == (str(there), there._json)
    files = lambda folder: {it.name: it.read_bytes() for it in folder.rglob("*.parquet")}
    assert files(tmp_path / "here") == files(tmp_path / "there") != {}
    assert {it.name for it in nodes.iterdir()} == alive()
    assert len(list(nodes.iterdir())) == 3


def test_workers_that_are_killed_change_nothing(cluster, large: pathlib.Path) -> None:
    here = fleet.report(large)
    thread, told = in_a_thread(lambda: fleet.report(large, ray=cluster.address))
    for _ in range(3):
        kill_a_worker()
    thread.join(900)
    assert told[0]._json == here._json


def test_a_file_that_kills_every_worker_is_a_line_of_the_result(
    cluster, small: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    look, begun = fleet._look, str(tmp_path / "begun")
    name = min(it.name for it in small.iterdir() if it.name.endswith(".zst"))

    def killed(*arguments):
        import os
        import signal

        if arguments[0]["address"].endswith(name):
            with open(begun, "a") as file:
                file.write("x")
            os.kill(os.getpid(), signal.SIGKILL)
        return look(*arguments)

    monkeypatch.setattr(fleet, "_look", killed)
    told = fleet.report(small, ray=cluster.address)
    why = {it.file.rsplit("/", 1)[1]: it.why for it in told.unreadable}
    assert len(why) == 2 and "the Ray workers that were at it died" in why[name], why
    # As often as is said, by whoever gives it out and by nobody else.
    assert pathlib.Path(begun).read_text() == "x" * 4


def test_what_takes_the_memory_of_a_node_ends(small: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """Ray ends what runs on a node that is short of memory, and would begin it again for ever: here a node always is."""
    file = min(it for it in small.iterdir() if it.name.endswith(".zst"))
    program = (
        "import ray, tonnage\n"
        "from tonnage import fleet\n"
        "look = fleet._look\n"
        "def slowed(*arguments):\n"
        "    import time\n"
        f"    with open({str(tmp_path / 'begun')!r}, 'a') as file: file.write('x')\n"
        "    time.sleep(600)\n"
        "    return look(*arguments)\n"
        "fleet._look = slowed\n"
        "short = {'memory_usage_threshold': 0.0001, 'min_memory_free_bytes': -1, 'memory_monitor_refresh_ms': 100}\n"
        "ray.init('local', num_cpus=1, log_to_driver=False, include_dashboard=False, _system_config=short)\n"
        "try:\n"
        f"    tonnage.fleet.report({str(file)!r}, ray='auto')\n"
        "except tonnage.Error as error:\n"
        "    print('told:', error)\n"
    )
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300, cwd=tmp_path)
    assert "told:" in told.stdout and "memory" in told.stdout, told.stdout + told.stderr[-2000:]
    assert (tmp_path / "begun").read_text() in ("x" * times for times in range(5)), told.stdout


def test_a_node_that_is_lost_changes_nothing(
    cluster, large: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = fleet.report(large)
    before, node = alive(), cluster.add_node(num_cpus=1)
    wait_until("the node is there", lambda: len(alive() - before) == 1)
    (name,) = alive() - before
    slow_down(monkeypatch, 1, tmp_path / "nodes")
    thread, told = in_a_thread(lambda: fleet.report(large, ray=cluster.address))
    # One that takes longer than this does to see it.
    wait_until("the node looks at a file", (tmp_path / "nodes" / name).exists)
    cluster.remove_node(node, allow_graceful=False)
    thread.join(900)
    assert told[0]._json == here._json


def test_everything_at_once(cluster, unreliable, in_s3: str, small: pathlib.Path, monkeypatch, tmp_path: pathlib.Path) -> None:
    """A worker killed, storage that fails, three files that are none: the same, and the three are named."""
    import boto3

    address, handler = unreliable
    client = boto3.client(
        "s3", endpoint_url=os.environ["AWS_ENDPOINT_URL"], region_name="us-east-1", aws_access_key_id="k",
        aws_secret_access_key="s",
    )
    corrupt = ["rank_90000.pickle.zst", "rank_90001.pickle.gz", "rank_90002.pickle"]
    whole = sorted(it for it in small.iterdir() if it.name.endswith(".zst"))[0].read_bytes()
    for name, body in zip(corrupt, [whole[: len(whole) // 2], b"\x1f\x8b" + b"x" * 99, b"cos\nsystem\n."]):
        client.put_object(Bucket="fleet", Key=f"broken/{name}", Body=body)
    sources = [in_s3, "s3://fleet/broken"]
    here = fleet.report(sources)
    named = {it.file.rsplit("/", 1)[1] for it in here.unreadable}
    assert named >= set(corrupt) and len(named) == len(here.unreadable) == 4
    ray.shutdown()
    # Workers have the variables of their own environment.
    variables = s3_variables(address)
    ray.init(
        address=cluster.address, log_to_driver=False, logging_level="error", runtime_env={"env_vars": variables}
    )
    monkeypatch.setenv("AWS_ENDPOINT_URL", address)
    slow_down(monkeypatch, 0.3, tmp_path / "nodes")
    thread, told = in_a_thread(lambda: fleet.report(sources, ray="auto"))
    kill_a_worker()
    thread.join(900)
    assert told[0]._json == here._json
    assert every_way_failed(handler), handler.asked


def test_ctrl_c_ends_the_tasks_and_keeps_what_is_done(cluster, large: pathlib.Path, tmp_path: pathlib.Path) -> None:
    out = tmp_path / "ranks"
    words = [sys.executable, "-m", "tonnage", "fleet", "report", str(large), "--ray", cluster.address, "--out", str(out)]
    child = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    wait_until("tasks are there", workers)
    child.send_signal(signal.SIGINT)
    _, said = child.communicate(timeout=300)
    assert child.returncode == 130 and "Traceback" not in said, said
    wait_until("no task is left", lambda: not workers())
    assert fleet.report(large, out=out)._json == fleet.report(large)._json


def test_what_is_wrong_is_one_sentence(small: pathlib.Path, tmp_path: pathlib.Path) -> None:
    nobody = command("fleet", "report", str(small), "--ray", f"127.0.0.1:{free_port()}")
    assert nobody.returncode == 2 and "no Ray cluster at 127.0.0.1" in nobody.stderr, nobody.stderr
    assert "Traceback" not in nobody.stderr
    # Workers find another version of the package, or none: each in a cluster of its own.
    other = tmp_path / "other"
    package = pathlib.Path(tonnage.__file__).parent
    shutil.copytree(package, other / "tonnage", ignore=shutil.ignore_patterns("__pycache__"))
    (other / "tonnage/_tonnage.abi3.so").rename(other / "tonnage/own.so")
    (other / "tonnage/_tonnage.py").write_text(
        "import importlib.machinery, importlib.util, os\n"
        "_path = os.path.join(os.path.dirname(__file__), 'own.so')\n"
        "_loader = importlib.machinery.ExtensionFileLoader('_tonnage', _path)\n"
        "_own = importlib.util.module_from_spec(importlib.util.spec_from_loader('_tonnage', _loader))\n"
        "_loader.exec_module(_own)\n"
        "globals().update({k: v for k, v in vars(_own).items() if not k.startswith('__')})\n"
        "VERSION = '0.0.0'\n"
    )
    for path, why in [(other, "this program"), (tmp_path, "install tonnage")]:
        program = (
            "import ray, sys, tonnage\n"
            f"ray.init('local', num_cpus=1, log_to_driver=False, include_dashboard=False, runtime_env={{'env_vars': {{'PYTHONPATH': {str(path)!r}}}}})\n"
            "try:\n"
            f"    tonnage.fleet.report({str(small)!r}, ray='auto')\n"
            "except tonnage.Error as error:\n"
            "    print('told:', error)\n"
        )
        told = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, timeout=300, cwd=tmp_path
        )
        lines = [it for it in told.stdout.splitlines() if it.startswith("told:")]
        assert len(lines) == 1 and why in lines[0], told.stdout + told.stderr[-2000:]
