"""What tests share: recordings, and Python programs of their own."""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import sys

import pytest

import tonnage

pytest_plugins = ["pytester"]

ROOT = pathlib.Path(__file__).resolve().parents[3]
TRACES = ROOT / "testdata" / "traces"


def pytest_configure(config: pytest.Config) -> None:
    # A shell starts what runs in the background with Ctrl-C ignored, and whatever that starts has it so.
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    config.addinivalue_line("markers", "full: needs what is heavy to install; run by `cargo xtask python-full`")


def recording(name: str) -> pathlib.Path:
    """One of the project's recordings."""
    return TRACES / f"{name}.pickle.zst"


#: By these a process knows its place in a job, and names files: tests begin without, whoever starts them.
PLACES = ("RANK", "LOCAL_RANK", "NODE_RANK", "GROUP_RANK", "SLURM_PROCID", "SLURM_NTASKS", "OMPI_COMM_WORLD_RANK",
          "PMI_RANK")


@pytest.fixture(autouse=True)
def no_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test is part of someone else's job."""
    for name in [*PLACES, *(it for it in os.environ if it.startswith("TONNAGE_RECORD_"))]:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="session")
def plain(tmp_path_factory: pytest.TempPathFactory):
    """Recordings as plain pickles, by their name: written by tonnage, since not every Python reads zstd."""
    folder = tmp_path_factory.mktemp("plain")

    def path(name: str) -> pathlib.Path:
        out = folder / f"{name}.pickle"
        if not out.exists():
            tonnage.read(recording(name)).save(out)
        return out

    return path


@pytest.fixture
def snapshot() -> tonnage.Snapshot:
    """A small job with stacks."""
    return tonnage.read(recording("mlp_seed.default.stacks"))


@pytest.fixture
def python(tmp_path: pathlib.Path):
    """Runs a Python program in a folder of its own."""

    def run(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *words],
            cwd=tmp_path,
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            timeout=600,
        )

    return run
