"""Recording: PyTorch's memory history around a piece of a program, and what it tells when memory runs out.

In:  a ``with``, a decorated function, or a whole program under ``tonnage record``.
Out: a snapshot, one file for each process, and notes on an ``OutOfMemoryError`` that passes through.

This file stands by itself: ``tonnage record`` hands it to Pythons that have no tonnage installed. Nothing but the
standard library is imported at the top, and PyTorch only if the program has it.
"""

from __future__ import annotations

import functools
import os
import sys
import warnings

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import Any, TypeVar, overload

    from ._results import Report
    from ._snapshot import Snapshot

    F = TypeVar("F", bound=Callable[..., Any])

#: Entries that are kept: the last ones. Chosen: some gigabytes of PyTorch's memory at most, and hours of most programs.
MOST_ENTRIES = 1_000_000

#: Marks of iterations begin like those that PyTorch's optimizers leave, which tools look for.
STEP = "Optimizer.step#tonnage"


class Recording:
    """A recording, under way or ended. Made by ``tonnage.record``."""

    def __init__(self, max_entries: int, path: str | None, save: bool) -> None:
        self._max_entries = max_entries
        self._path = path
        self._save = save
        self._ours = False
        self._snapshot: Any = None
        #: Where the snapshot was saved, if it was.
        self.path: str | None = None

    def __repr__(self) -> str:
        state = "under way" if self._ours else "not under way"
        return f"<tonnage recording, {state}{f', saved as {self.path}' if self.path else ''}>"

    def __enter__(self) -> Recording:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, raised: BaseException | None, trace: TracebackType | None
    ) -> None:
        if raised is not None and is_out_of_memory(raised):
            self.explain(raised)
        try:
            self.stop()
        except Exception as error:
            # The program's own exception is what counts.
            if raised is None:
                raise
            _tell(f"the recording cannot be kept: {error}")

    def start(self) -> None:
        """Begins to record, unless the program does that already."""
        torch = sys.modules.get("torch") or _torch()
        if torch is None or not sees_gpu(torch):
            _warn("nothing is recorded: " + ("PyTorch is not installed" if torch is None else "PyTorch sees no GPU"))
            return
        # Recording does as much; and before, PyTorch has no allocator to ask, and asks it all the same: that ends the process.
        torch.cuda.init()
        if is_recording(torch):
            return
        torch.cuda.memory._record_memory_history(max_entries=self._max_entries, stacks="python")
        self._ours = True

    def save_as(self, path: str) -> None:
        """Where the snapshot is to be written at the end, or when memory runs out."""
        self._path = path

    def stop(self) -> None:
        """Ends the recording, and keeps what it has."""
        torch = sys.modules.get("torch")
        if torch is None or not torch.cuda.is_initialized():
            return
        try:
            if self._snapshot is None:
                self._snapshot = torch.cuda.memory._snapshot()
        finally:
            if self._ours:
                torch.cuda.memory._record_memory_history(enabled=None)
                self._ours = False
        if self._save and self.path is None and self._path is not None:
            self.save()

    def step(self) -> None:
        """Marks the end of an iteration. Steps of PyTorch's own optimizers are marked without this."""
        torch = sys.modules.get("torch")
        if torch is not None:
            with torch.profiler.record_function(STEP):
                pass

    def take(self) -> Snapshot:
        """The snapshot: of the end, or of this moment if the recording is under way."""
        from tonnage import read

        taken = self._snapshot
        if taken is None:
            taken = _snapshot_now()
        if isinstance(taken, dict):
            taken = read(taken, name=self.path or "recording")
            if self._snapshot is not None:
                # The objects of a million entries take gigabytes.
                self._snapshot = taken
        snapshot: Snapshot = taken
        return snapshot

    @property
    def snapshot(self) -> Snapshot:
        """The snapshot."""
        return self.take()

    def report(self, **options: Any) -> Report:
        """What limits the program's memory, why, and what to change: as ``Snapshot.report``."""
        return self.take().report(**options)

    def save(self, path: str | os.PathLike[str] | None = None) -> str:
        """Writes the snapshot, and says where: there, or beside the script; the process's rank is added to the name.

        A file that is there already is kept: the new one has a number then.
        """
        return self._save_as(path, "memory")

    def _save_as(self, path: str | os.PathLike[str] | None, what: str) -> str:
        given = self._path if path is None else os.fspath(path)
        self.path = write(self._taken(), place(given, what))
        return self.path

    def _taken(self) -> Any:
        return self._snapshot if self._snapshot is not None else _snapshot_now()

    def explain(self, raised: BaseException) -> None:
        """Says on the exception what held the memory and what helps, and saves the snapshot. It raises nothing."""
        if getattr(raised, "_tonnage_explained", False):
            return
        try:
            raised._tonnage_explained = True  # type: ignore[attr-defined]
            if self._snapshot is None:
                self._snapshot = _snapshot_now()
            lines = self._verdict()
            if self._save:
                lines.append(f"The snapshot: {self._save_as(None, 'oom')}")
                lines.append(f"Look at it: tonnage view {self.path}")
            add_note(raised, "\n".join(f"tonnage: {line}" for line in lines))
        except Exception as error:
            # The program's own exception is what counts.
            _tell(f"what held the memory cannot be told: {error}")

    def _verdict(self) -> list[str]:
        try:
            import tonnage
        except ImportError:
            return ["out of memory"]
        try:
            report = self.take().report()
        except tonnage.Error as error:
            return [f"out of memory; nothing more can be told: {error}"]
        lines = [report.verdict.text]
        if report.verdict.line:
            size = tonnage._sizes.show(report.verdict.bytes)
            lines.append(f"{size} ({report.verdict.bytes:,} bytes), most of them from {report.verdict.line}")
        if report.advice:
            first = report.advice[0]
            lines.append(f"What to change: {first.change}")
            lines.extend(f"    {line}" for line in first.code)
        return lines


def _snapshot_now() -> Any:
    """What PyTorch has recorded so far."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        sentence = "nothing was recorded: PyTorch did not use a GPU"
        try:
            from tonnage import RecordError
        except ImportError:
            raise RuntimeError(sentence) from None
        raise RecordError(sentence)
    return torch.cuda.memory._snapshot()


def _make(max_entries: int, path: str | os.PathLike[str] | None, save: bool) -> Recording:
    return Recording(max_entries, None if path is None else os.fspath(path), save)


if TYPE_CHECKING:

    @overload
    def record(function: F) -> F: ...

    @overload
    def record(
        *, max_entries: int = MOST_ENTRIES, path: str | os.PathLike[str] | None = None, save: bool = True
    ) -> _Record: ...


def record(
    function: Any = None,
    *,
    max_entries: int = MOST_ENTRIES,
    path: str | os.PathLike[str] | None = None,
    save: bool = True,
) -> Any:
    """Records PyTorch's memory: ``with tonnage.record() as rec:``, or ``@tonnage.record`` on a function.

    The last ``max_entries`` entries are kept, with Python's stacks. At the end ``rec.report()`` tells; with ``path`` the
    snapshot is written there. When memory runs out inside, the exception goes on with notes that say why, and the
    snapshot is saved beside the script, unless ``save`` is False. A history that the program records itself is left alone.
    """
    if function is None:
        return _Record(max_entries, path, save)
    return _Record(max_entries, path, save)(function)


#: Flags of code: ``async def``, and ``yield`` in a function. (`inspect` has them too, and takes longer than all of this.)
_ASYNC, _YIELDS = 0x80, 0x20


class _Record:
    """What ``tonnage.record()`` gives: for a ``with``, or for functions."""

    def __init__(self, max_entries: int, path: str | os.PathLike[str] | None, save: bool) -> None:
        if isinstance(max_entries, bool) or not isinstance(max_entries, int) or max_entries < 1:
            from tonnage import UsageError

            raise UsageError(f"max_entries is a number of entries, at least 1, not {max_entries!r}")
        self._make = functools.partial(_make, max_entries, path, save)
        self._entered: list[Recording] = []

    def __enter__(self) -> Recording:
        recording = self._make()
        self._entered.append(recording)
        return recording.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, raised: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._entered.pop().__exit__(kind, raised, trace)

    def __call__(self, function: F) -> F:
        if not callable(function):
            raise TypeError(f"@tonnage.record is for functions, not for {type(function).__name__}")
        # What it does comes after its call, in two kinds of functions.
        flags = getattr(getattr(function, "__code__", None), "co_flags", 0)
        if flags & _ASYNC:

            @functools.wraps(function)
            async def recorded(*arguments: Any, **options: Any) -> Any:
                with self._make():
                    return await function(*arguments, **options)

        elif flags & _YIELDS:

            @functools.wraps(function)
            def recorded(*arguments: Any, **options: Any) -> Any:
                with self._make():
                    return (yield from function(*arguments, **options))

        else:

            @functools.wraps(function)
            def recorded(*arguments: Any, **options: Any) -> Any:
                with self._make():
                    return function(*arguments, **options)

        return recorded  # type: ignore[return-value]


def explain_uncaught(recording: Recording) -> Callable[[], None]:
    """Explains memory that runs out where no one catches that, until the function is called that this returns."""
    print_exception = sys.excepthook

    def explain(kind: type[BaseException], raised: BaseException, trace: TracebackType | None) -> None:
        if is_out_of_memory(raised):
            recording.explain(raised)
        print_exception(kind, raised, trace)

    def stop() -> None:
        # Someone else may have put another in front since.
        if sys.excepthook is explain:
            sys.excepthook = print_exception

    sys.excepthook = explain
    return stop


def _torch() -> Any:
    try:
        import torch
    except ImportError:
        return None
    return torch


def sees_gpu(torch: Any) -> bool:
    """Whether there is anything to record."""
    return bool(torch.cuda.is_available())


def is_recording(torch: Any) -> bool:
    """Whether the program records a history already. Not to be asked before PyTorch has an allocator."""
    enabled = getattr(torch._C, "_cuda_isHistoryEnabled", None)
    return bool(enabled is not None and enabled())


def is_out_of_memory(raised: BaseException) -> bool:
    """Whether a GPU has run out of memory: by the name of the class, which PyTorch's has under several modules."""
    return any(kind.__name__ == "OutOfMemoryError" for kind in type(raised).__mro__)


def add_note(raised: BaseException, note: str) -> None:
    """Says something on an exception; before Python 3.11 as a warning."""
    if hasattr(raised, "add_note"):
        raised.add_note(note)
    else:
        _tell(note)


def _tell(text: str) -> None:
    """Says something while an exception passes through: where warnings are errors, on standard error."""
    try:
        _warn(text)
    except RuntimeWarning:
        print(text if text.startswith("tonnage") else f"tonnage: {text}", file=sys.stderr)


def _warn(text: str) -> None:
    # At the line of the program, not of this file.
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename == __file__:
        level, frame = level + 1, frame.f_back
    warnings.warn(text if text.startswith("tonnage") else f"tonnage: {text}", RuntimeWarning, stacklevel=level)


#: Variables by which launchers tell a process its place among all of the job: torchrun and Accelerate; Slurm; Open MPI;
#: MPICH and Intel MPI.
RANKS = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK")


def process_name() -> str:
    """What tells this process from others of the job: its rank; in a spawned process its number; else nothing."""
    rank = _rank_in_group()
    if rank is not None:
        return f".rank{rank}"
    for name in RANKS:
        value = os.environ.get(name, "")
        # One process alone has no need of a name: a shell that Slurm has started is rank 0 of 1.
        if value.isdigit() and not (name == "SLURM_PROCID" and os.environ.get("SLURM_NTASKS", "1") == "1"):
            return f".rank{value}"
    # Lightning tells the processes that it starts their place on this machine, and the machine's.
    local = os.environ.get("LOCAL_RANK", "")
    if local.isdigit():
        node = os.environ.get("NODE_RANK") or os.environ.get("GROUP_RANK") or ""
        return f".node{node}.local{local}" if node.isdigit() and node != "0" else f".local{local}"
    multiprocessing = sys.modules.get("multiprocessing.process")
    if multiprocessing is not None and multiprocessing.parent_process() is not None:
        return f".pid{os.getpid()}"
    return ""


def _rank_in_group() -> int | None:
    """The rank in PyTorch's process group, where there is one of several processes."""
    distributed = sys.modules.get("torch.distributed")
    try:
        if distributed is None or not distributed.is_available() or not distributed.is_initialized():
            return None
        rank: int = distributed.get_rank()
        return rank if distributed.get_world_size() > 1 else None
    except (AttributeError, RuntimeError, ValueError):
        # Groups come and go at the end of a job.
        return None


def script() -> str:
    """The path that files of this program begin with: the script's, without its ending."""
    main: str | None = getattr(sys.modules.get("__main__"), "__file__", None)
    if main is None:
        return os.path.join(os.getcwd(), "python")
    return os.path.splitext(os.path.abspath(main))[0]


def place(path: str | None, what: str) -> str:
    """Where a snapshot of this process is wanted: there, or beside the script; with its rank before the ending."""
    stem, ending = _ending(f"{script()}.{what}.pickle" if path is None else path)
    name = process_name()
    # One that names its rank itself keeps it.
    return f"{stem}{ending}" if name and stem.endswith(name) else f"{stem}{name}{ending}"


def _ending(path: str) -> tuple[str, str]:
    """A path without its ending, and that: `.pickle.zst` is one."""
    stem, ending = os.path.splitext(path)
    if ending in (".zst", ".gz", ".xz"):
        stem, inner = os.path.splitext(stem)
        ending = inner + ending
    return stem, ending


def folders(wanted: str) -> list[str]:
    """Where a file may go: to its folder, else to the current one, else to that for temporary files."""
    import tempfile

    return [os.path.dirname(os.path.abspath(wanted)), os.getcwd(), tempfile.gettempdir()]


def write(snapshot: Any, wanted: str) -> str:
    """Writes a snapshot, whole or not at all: where it is wanted, or elsewhere with a sentence. Says where."""
    name = os.path.basename(wanted)
    failed: OSError | None = None
    for folder in folders(wanted):
        # The ending decides how it is written.
        # The number of a process is not its own in containers that share a folder.
        unfinished = os.path.join(folder, f".{os.getpid()}.{os.urandom(4).hex()}.{name}")
        try:
            _write(snapshot, unfinished)
            path = _free(os.path.join(folder, name))
            try:
                os.replace(unfinished, path)
            except OSError:
                # Ours, and empty.
                _forget(path)
                raise
        except OSError as error:
            failed = failed or error
            _forget(unfinished)
            continue
        except BaseException:
            _forget(unfinished)
            raise
        if failed is not None:
            _tell(f"{os.path.dirname(os.path.abspath(wanted))} cannot be written to ({failed}): saved as {path}")
        elif os.path.basename(path) != name:
            _tell(f"{wanted} is there already and is kept: saved as {path}")
        return path
    assert failed is not None
    raise failed


def _free(wanted: str) -> str:
    """Takes a name that no file has: this one, or the first with a number. The file is there then, and empty."""
    stem, ending = _ending(wanted)
    path, number = wanted, 1
    while True:
        try:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
            return path
        except FileExistsError:
            number += 1
            path = f"{stem}.{number}{ending}"


def _write(snapshot: Any, path: str) -> None:
    if isinstance(snapshot, dict):
        if not path.endswith((".zst", ".gz", ".xz")):
            import pickle

            with open(path, "wb") as out:
                pickle.dump(snapshot, out, protocol=4)
            return
        from tonnage import read

        snapshot = read(snapshot)
    snapshot.save(path)


def _forget(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        pass
