"""The snapshots of a thousand ranks: which differ, and why. Here, or on the Ray cluster that is there."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
import tempfile

from . import _tonnage
from ._errors import Error, UsageError
from ._results import Result
from ._snapshot import _flags

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Any

__all__ = ["Fleet", "report"]

#: How often Ray does a file again whose worker is lost; whatever is in it may be what kills workers.
_RETRIES = 3

#: Rows that are put into the dataset at once.
_KEPT = 64


class Fleet(Result):
    """What ``tonnage fleet report`` says."""


def report(
    sources: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    *,
    ray: str | None = None,
    in_flight: int | None = None,
    **options: Any,
) -> Fleet:
    """Compares the snapshots of all ranks of a job: ``tonnage.fleet.report("runs/latest")``.

    ``sources`` are folders, globs, files, and lists as ``@FILE``. Options are those of ``tonnage fleet report``, with ``_``
    for ``-``.

    With ``ray`` each file is a task of that Ray cluster: an address, or ``"auto"`` for the one that this program is
    connected to or finds, or ``"local"`` for one of its own. Workers need this package, of the same version, and see the files
    under the same paths. At most ``in_flight`` tasks are there at once, two for each core of the cluster if none is given;
    Ray does a lost worker's files again. The result is that without ``ray``, byte for byte, where every file has the memory
    that reading it takes: ``max_memory`` and ``jobs`` do not reach the workers.
    """
    if isinstance(sources, (str, os.PathLike)):
        sources = [sources]
    words = [*_flags(**options), "--", *(os.fspath(source) for source in sources)]
    if ray is None:
        return Fleet(*_tonnage.ask(["fleet", "report", *words]))
    out = options.get("out")
    with _rows_from_ray(words, ray, in_flight, None if out is None else os.fspath(out)) as (rows, words):
        return Fleet(*_tonnage.ask(["fleet", "report", "--rows", rows, *words]))


@contextlib.contextmanager
def _rows_from_ray(
    words: list[str], address: str, in_flight: int | None, out: str | None
) -> Iterator[tuple[str, list[str]]]:
    """A file with the rows of all files that are left to do, which Ray has made, and the words to ask about them."""
    with tempfile.TemporaryDirectory(prefix="tonnage-fleet-") as folder:
        words = _without_stdin(words, os.path.join(folder, "list"))
        files = json.loads(_tonnage.ask(["fleet", "files", *words])[1])
        path = os.path.join(folder, "rows.jsonl")
        with open(path, "w", encoding="utf-8") as all_rows:
            for batch in _batches(_on_ray(files, address, in_flight)):
                text = "".join(f"{row}\n" for row in batch)
                all_rows.write(text)
                if out is not None:
                    _keep(os.path.join(folder, "batch.jsonl"), text, out)
        yield path, words


def _without_stdin(words: list[str], path: str) -> list[str]:
    """Words with a file in place of standard input, which can be read once and is asked for twice."""
    if "@-" not in words:
        return words
    with open(path, "wb") as file:
        shutil.copyfileobj(sys.stdin.buffer, file)
    return [f"@{path}" if word == "@-" else word for word in words]


def _batches(rows: Iterable[str]) -> Iterator[list[str]]:
    batch: list[str] = []
    for row in rows:
        batch.append(row)
        if len(batch) == _KEPT:
            yield batch
            batch = []
    yield batch


def _keep(path: str, rows: str, out: str) -> None:
    with open(path, "w", encoding="utf-8") as file:
        file.write(rows)
    _tonnage.ask(["fleet", "keep", "--rows", path, "--out", out])


def _on_ray(files: dict[str, Any], address: str, in_flight: int | None) -> Iterator[str]:
    """The rows of files, as JSON, in the order in which they are done."""
    if in_flight is not None and in_flight < 1:
        raise UsageError("in_flight is a number of tasks, from 1")
    left = files["left"]
    if not left:
        return
    ray = _connect(address)
    if in_flight is None:
        in_flight = max(2, int(2 * ray.cluster_resources().get("CPU", 1)))
    task = ray.remote(num_cpus=1, max_retries=_RETRIES)(_look)
    waiting: dict[Any, dict[str, Any]] = {}
    following = iter(left)
    try:
        while True:
            for file in following:
                path = os.path.abspath(file["address"])
                waiting[task.remote(file, files["words"], _tonnage.VERSION, path)] = file
                if len(waiting) >= in_flight:
                    break
            if not waiting:
                return
            for reference in ray.wait(list(waiting), num_returns=1)[0]:
                yield _row(ray, reference, waiting.pop(reference))
    finally:
        # Whoever stops here, by Ctrl-C or by an error, leaves no task behind.
        for reference in waiting:
            ray.cancel(reference, force=True)


def _row(ray: Any, reference: Any, file: dict[str, Any]) -> str:
    """The row of a file that is done; of one that kills its workers, a row that says so."""
    try:
        row: str = ray.get(reference)
        return row
    except (ray.exceptions.WorkerCrashedError, ray.exceptions.OutOfMemoryError) as error:
        lines = str(error).strip().splitlines()
        why = f"the Ray workers that looked at it died: {lines[0] if lines else type(error).__name__}"
        return json.dumps({**file, "seen": {"unreadable": why}})
    except ray.exceptions.RayTaskError as error:
        cause = getattr(error, "cause", None)
        if isinstance(cause, ModuleNotFoundError):
            raise Error(
                f"a Ray worker has no package {cause.name}: install tonnage {_tonnage.VERSION} on every node"
            ) from None
        # What Ray makes of a task that its worker cannot import.
        if isinstance(cause, RuntimeError) and "failed to import" in str(cause):
            raise Error(f"a Ray worker cannot import tonnage: install tonnage {_tonnage.VERSION} on every node") from None
        if isinstance(cause, _OtherVersionError):
            raise Error(str(cause)) from None
        raise


class _OtherVersionError(Exception):
    """A worker has another version of the package."""


def _look(file: dict[str, Any], words: list[str], version: str, path: str) -> str:
    """One file, looked at by a worker: its row, as JSON."""
    if _tonnage.VERSION != version:
        raise _OtherVersionError(
            f"a Ray worker has tonnage {_tonnage.VERSION}, and this program {version}: install the same on every node"
        )
    about = [f"--address={file['address']}", f"--version-of={file['version']}"]
    if file["size"] is not None:
        about.append(f"--size={file['size']}")
    return _tonnage.ask(["fleet", "look", *about, *words, "--", path])[1]


def _connect(address: str) -> Any:
    """Ray, connected to a cluster."""
    try:
        import ray
    except ModuleNotFoundError:
        raise Error("Ray is not installed here: `pip install ray`, or leave it out to use this machine alone") from None
    if not ray.is_initialized():
        try:
            ray.init(address=address, log_to_driver=False, logging_level="error")
        except (ConnectionError, ValueError) as error:
            lines = str(error).splitlines()
            raise Error(f"no Ray cluster at {address}: {lines[0] if lines else type(error).__name__}") from None
    return ray


def _command(words: list[str]) -> int:
    """``tonnage fleet report … --ray ADDRESS``: prints what the command does, and returns its exit status."""
    words, address = _without(words, "--ray")
    _, out = _without(words, "--out")
    try:
        with _rows_from_ray(words, address or "auto", None, out) as (rows, words):
            return _tonnage.command(["tonnage", "fleet", "report", "--rows", rows, *words])
    except Error as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def _without(words: list[str], flag: str) -> tuple[list[str], str | None]:
    """Words without a flag and its value, and the value."""
    kept: list[str] = []
    value = None
    rest = iter(words)
    for word in rest:
        if word == "--":
            return [*kept, word, *rest], value
        if word == flag:
            value = next(rest, "")
        elif word.startswith(f"{flag}="):
            value = word[len(flag) + 1 :]
        else:
            kept.append(word)
    return kept, value
