"""Tests of memory: the fixture ``gpu_memory``.

    def test_step(gpu_memory):
        step()
        gpu_memory.assert_peak("1.2 GiB", tolerance="1%")

Without a size the baseline is compared with, a file beside the test that ``pytest --tonnage-update`` writes. With
``pytest --tonnage-gpu h200``, or ``tonnage_gpu = "h200"`` among pytest's settings, PyTorch has that GPU in all tests, on a machine
without one: CUDA libraries that compute nothing stand in for it, and PyTorch's own allocator does what it would do.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import hashlib
import json
import os
import pathlib
import re
import shutil
import sys

import pytest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Any

    from ._record import Recording
    from ._results import Outcome
    from ._sizes import Size
    from ._snapshot import Snapshot
    from .torch._predict import Prediction

#: Says that the process has a GPU that computes nothing: which one, for whom, and its folder.
FAKE_GPU = "TONNAGE_PYTEST_GPU"
FAKE_GPU_OF = "TONNAGE_PYTEST_PROCESS"
FAKE_GPU_FOLDER = "TONNAGE_PYTEST_FOLDER"

#: Programs that do nothing but run pytest: itself, PyCharm's, and Visual Studio Code's, which reads its words from a file that it
#: removes, so that the words that pytest was given count.
STARTS = ("pytest", "py.test", "_jb_pytest_runner.py")
STARTS_ONCE = ("run_pytest_script.py",)

#: The file with the baselines of a folder of tests.
BASELINES = "tonnage-baselines.json"


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("tonnage", "memory of the GPU")
    group.addoption(
        "--tonnage-update",
        action="store_true",
        help="write what the tests of gpu_memory measure as their baselines, instead of comparing",
    )
    about = "the GPU that PyTorch has in tests, which need not be there: h200, a100-80 … or a file with a GPU's data; nothing is computed on it"
    group.addoption("--tonnage-gpu", metavar="NAME", help=about)
    parser.addini("tonnage_gpu", about, default="")


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Before anyone imports PyTorch: runs pytest again in the place of this process, where libraries that compute nothing are
    loaded first."""
    gpu = early_config.known_args_namespace.tonnage_gpu or early_config.getini("tonnage_gpu")
    if FAKE_GPU in os.environ:
        _forget_libraries_at_the_end()
        return
    if not gpu:
        return
    words = _pytest_words(early_config.invocation_params.args)
    if words is None:
        raise pytest.UsageError(
            "--tonnage-gpu and tonnage_gpu start pytest again: run it as `pytest` or `python -m pytest`, not from a program"
        )
    from . import _tonnage
    from ._errors import Error

    try:
        folder, variables = _tonnage.fake_gpu(sys.executable, str(gpu))
    except Error as error:
        raise pytest.UsageError(f"--tonnage-gpu {gpu}: {error}") from None
    environment = {**os.environ, **dict(variables), FAKE_GPU: str(gpu)}
    environment |= {FAKE_GPU_OF: str(os.getpid()), FAKE_GPU_FOLDER: str(folder)}
    # What pytest has caught so far is nothing, and its files would stay in the place of the terminal.
    capture = early_config.pluginmanager.getplugin("capturemanager")
    if capture is not None:
        capture.stop_global_capturing()
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(sys.executable, [sys.executable, *words], environment)


def _pytest_words(given: Sequence[str | os.PathLike[str]]) -> list[str] | None:
    """The words behind Python that start pytest again, which was given these; nothing where a program called it."""
    words = sys.orig_argv[1:]
    for number, word in enumerate(words):
        if number and words[number - 1] in ("-W", "-X"):
            continue
        if word.startswith("-m"):
            module = word[2:] or next(iter(words[number + 1 :]), "")
            return words if module in ("pytest", "py.test") else None
        if not word.startswith("-"):
            program = os.path.basename(word)
            if program in STARTS_ONCE:
                return [*words[:number], "-m", "pytest", *(os.fspath(word) for word in given)]
            return words if program in STARTS else None
    return None


def pytest_report_header() -> str | None:
    gpu = os.environ.get(FAKE_GPU)
    return f"tonnage: PyTorch has the GPU {gpu}, on which nothing is computed" if gpu else None


def _forget_libraries_at_the_end() -> None:
    """The folder goes with the process that it was made for, not with a pytest that a test runs inside of it, nor with its forks."""
    folder = os.environ.get(FAKE_GPU_FOLDER)
    if folder and os.environ.get(FAKE_GPU_OF) == str(os.getpid()):
        del os.environ[FAKE_GPU_OF]
        atexit.register(_forget_libraries, folder, os.getpid())


def _forget_libraries(folder: str, process: int) -> None:
    if os.getpid() == process:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def gpu_memory(request: pytest.FixtureRequest) -> Iterator[GpuMemory]:
    """The memory that a test takes: of PyTorch on a GPU, or of a recipe or snapshot that is passed to it."""
    memory = GpuMemory(_name(request.node), request.path, request.config.getoption("--tonnage-update"))
    memory._begin()
    try:
        yield memory
    finally:
        memory._end()


def _name(node: pytest.Item) -> str:
    """The test within its file, with its classes and parameters. (The node's id has more under xdist's groups.)"""
    names: list[str] = []
    for it in node.listchain():
        # What was there so far are folders.
        names = [] if isinstance(it, pytest.File) else [*names, it.name]
    return "::".join(names)


class GpuMemory:
    """What a test took so far, and what it may take."""

    def __init__(self, test: str, path: pathlib.Path, update: bool) -> None:
        self._test = test
        self._path = path
        self._update = update
        self._recording: Any = None
        self._measured: Snapshot | Outcome | Prediction | None = None

    def _begin(self) -> None:
        """Records what PyTorch does from here on, if it has a GPU."""
        torch = sys.modules.get("torch")
        if torch is None or not torch.cuda.is_available():
            return
        from ._record import record

        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        self._recording = record(save=False).__enter__()

    def _end(self) -> None:
        if self._recording is not None:
            self._recording.__exit__(None, None, None)

    def measure(self, what: Snapshot | Recording | Outcome | Prediction) -> None:
        """Takes the memory of this instead: a snapshot, a recording, or what ``tonnage.predict``, ``tonnage.run`` and
        ``tonnage.torch.predict`` return."""
        from ._errors import UsageError
        from ._record import Recording
        from ._results import Outcome
        from ._snapshot import Snapshot
        from .torch._predict import Prediction

        if isinstance(what, Recording):
            what = what.snapshot
        if not isinstance(what, (Snapshot, Outcome, Prediction)):
            raise UsageError(f"gpu_memory measures a snapshot, a recording or a prediction, not {type(what).__name__}")
        self._measured = what

    def snapshot(self) -> Snapshot | None:
        """What was recorded so far, if there is a history."""
        from ._snapshot import Snapshot

        if isinstance(self._measured, Snapshot):
            return self._measured
        if self._measured is None and self._recording is not None:
            taken: Snapshot = self._recording.take()
            return taken
        return None

    @property
    def peak(self) -> int:
        """The most bytes that were allocated."""
        from ._errors import RecordError
        from ._results import Outcome
        from .torch._predict import Prediction

        if isinstance(self._measured, Outcome):
            peak: int = self._measured.allocated_peak
            return peak
        if isinstance(self._measured, Prediction) and self._measured.allocated is not None:
            most: int = self._measured.allocated.high
            return most
        snapshot = self.snapshot()
        if snapshot is None:
            raise RecordError(
                "gpu_memory has nothing to measure: import torch on a machine with a GPU, or with --tonnage-gpu, before the test "
                "begins, or pass a snapshot or a prediction to gpu_memory.measure()"
            )
        return snapshot.peak.allocated

    def assert_peak(self, size: Size | None = None, *, tolerance: str | int = "1%") -> None:
        """Fails if the most bytes that were allocated differ from this size, or from the baseline, by more than that."""
        __tracebackhide__ = True
        from ._sizes import in_bytes, show

        if size is not None:
            expected, what = in_bytes(size), "expected"
        elif self._update:
            self._write()
            return
        else:
            expected, what = self._baseline(), "the baseline"
        peak = self.peak
        allowed = _tolerance(tolerance, expected)
        if abs(peak - expected) <= allowed:
            return
        sign = "more" if peak > expected else "less"
        difference = show(abs(peak - expected))
        message = [
            f"the peak of allocated memory is {show(peak)} ({peak:,} bytes), {difference} {sign} than {what}: "
            f"{show(expected)} ({expected:,} bytes), within {tolerance}"
        ]
        message.extend(self._explanation())
        if size is None:
            message.append("if that is meant: pytest --tonnage-update")
        pytest.fail("\n".join(message), pytrace=False)

    def _explanation(self) -> list[str]:
        """What changed since the baseline, or what held the peak."""
        from ._errors import Error
        from ._snapshot import read

        snapshot = self.snapshot()
        if snapshot is None:
            return [str(self._measured)] if self._measured is not None else []
        before = self._recorded()
        try:
            return [str(read(before).diff(snapshot)) if before.exists() else str(snapshot.report())]
        except Error as error:
            return [f"(it cannot be explained: {error})"]

    def _recorded(self) -> pathlib.Path:
        """The snapshot that belongs to the baseline."""
        # Two tests may differ in what no name of a file can have.
        digest = hashlib.sha256(self._key().encode()).hexdigest()[:8]
        name = re.sub(r"[^A-Za-z0-9_.-]+", "-", f"{self._path.stem}.{self._test}")[:100] + f".{digest}"
        return self._path.parent / "tonnage-baselines" / f"{name}.pickle.zst"

    def _baselines(self) -> dict[str, int]:
        path = self._path.parent / BASELINES
        if not path.exists():
            return {}
        try:
            baselines = json.loads(path.read_text(encoding="utf-8"))
            if not isinstance(baselines, dict) or not all(type(it) is int for it in baselines.values()):
                raise ValueError("it is no object of numbers")
        except ValueError as error:
            pytest.fail(f"{path} has no baselines that can be read: {error}", pytrace=False)
        return baselines

    def _key(self) -> str:
        return f"{self._path.name}::{self._test}"

    def _baseline(self) -> int:
        baseline = self._baselines().get(self._key())
        if baseline is None:
            pytest.fail(f"{self._key()} has no baseline yet: pytest --tonnage-update writes one", pytrace=False)
        return baseline

    def _write(self) -> None:
        peak, snapshot = self.peak, self.snapshot()
        path = self._path.parent / BASELINES
        with _alone(path.parent):
            baselines = self._baselines()
            baselines[self._key()] = peak
            unfinished = path.with_suffix(".unfinished")
            unfinished.write_text(json.dumps(dict(sorted(baselines.items())), indent=2) + "\n", encoding="utf-8")
            os.replace(unfinished, path)
        if snapshot is not None:
            self._recorded().parent.mkdir(exist_ok=True)
            snapshot.save(self._recorded(), force=True)


@contextlib.contextmanager
def _alone(folder: pathlib.Path) -> Iterator[None]:
    """No other process of the test run writes the baselines of that folder meanwhile."""
    opened = os.open(folder, os.O_RDONLY)
    try:
        # Network file systems lock no folders; there, test runs of several processes take their chance.
        with contextlib.suppress(OSError):
            fcntl.flock(opened, fcntl.LOCK_EX)
        yield
    finally:
        # The lock goes with it.
        os.close(opened)


def _tolerance(tolerance: str | int, expected: int) -> float:
    from ._errors import UsageError
    from ._sizes import in_bytes

    text = str(tolerance).strip()
    if not text.endswith("%"):
        return in_bytes(tolerance)
    try:
        share = float(text[:-1])
    except ValueError:
        share = -1.0
    if not 0 <= share < float("inf"):
        raise UsageError(f"`{tolerance}` is no tolerance: write it as in '1%' or '20MiB'")
    return expected * share / 100
