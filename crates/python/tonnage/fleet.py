"""The snapshots of a thousand ranks: which differ, and why. Here, or on the Ray cluster that is there."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
import tempfile
import time
import warnings

from . import __main__ as _main
from . import _ray, _tonnage
from ._errors import Error
from ._results import Result
from ._snapshot import _flags

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator
    from typing import IO, Any

__all__ = ["Fleet", "report"]

#: Files of one storage that cannot be read one after the other, for a reason that is the same for all of it, until the rest is
#: left: as without Ray.
_GONE = 3

#: Rows that are put into the dataset at once, seconds that they wait for more, and seconds that another run is waited for at the end.
_KEPT = 64
_WAIT = 5.0
_PATIENCE = 30.0


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

    ``sources`` are folders, globs, files, and lists as ``@FILE``, here or in object storage (``s3://``, ``gs://``, ``az://``,
    ``abfss://``, ``https://``), with credentials and endpoints from the usual variables of the environment. Options are those of ``tonnage fleet report``, with ``_``
    for ``-``.

    With ``ray`` each file is a task of that Ray cluster: an address, or ``"auto"`` for the one that this program is
    connected to or finds, or ``"local"`` for one of its own. Workers need this package, of the same version, and see the files
    under the same paths; what lies in storage they read themselves, with the variables of their own environment. At most
    ``in_flight`` tasks are there at once; if none is given, two for each core that the cluster has by then and no fewer than
    64, so that one that grows does. A lost worker's files are done again, up to three times. The result is that without ``ray``, byte for byte, where every file has the memory that reading it takes:
    ``max_memory`` and ``jobs`` do not reach the workers.
    """
    if isinstance(sources, (str, os.PathLike)):
        sources = [sources]
    words = [*_flags(**options), "--", *(os.fspath(source) for source in sources)]
    if ray is None:
        return Fleet(*_tonnage.ask_fleet(["fleet", "report", *words]))
    out = options.get("out")
    with _rows_from_ray(words, ray, in_flight, None if out is None else os.fspath(out)) as (words, lost):
        told = Fleet(*_tonnage.ask_fleet(["fleet", "report", *words]))
    if lost is not None:
        warnings.warn(lost, stacklevel=2)
    return told


@contextlib.contextmanager
def _rows_from_ray(
    words: list[str], address: str, in_flight: int | None, out: str | None
) -> Iterator[tuple[list[str], str | None]]:
    """Words to ask about the same with, and a file of the rows of all files that were left to do, which Ray has made; and why the
    dataset has them not, if another run took it."""
    with _nameless() as listed, _nameless() as all_rows, _nameless() as late:
        words = _without_stdin(words, listed)
        files = json.loads(_tonnage.ask_fleet(["fleet", "files", *words])[1])
        if files["dataset"]:
            # There is nothing to look at.
            yield words, None
            return
        # Whatever fails here: no task is left behind, whoever keeps the error.
        kept = out is not None
        with contextlib.closing(_on_ray(files, address, in_flight, kept)) as rows, contextlib.closing(_batches(rows)) as batches:
            for batch in batches:
                text = "".join(f"{row}\n" for row in batch).encode()
                all_rows.write(text)
                if out is not None:
                    _keep(late, text, out)
        # Where a file has one place for all who read it, the list was read to its end.
        listed.seek(0)
        words = ["--rows", _path(all_rows), *words]
        if out is None or _is_free(late, out):
            yield words, None
        else:
            yield _ray.without(words, "--out")[0], f"{out} is being written by another run: what is said here is not kept"


def _nameless() -> IO[bytes]:
    """A file that is gone with this program, however it ends: lists have addresses that let others read."""
    return tempfile.TemporaryFile(prefix="tonnage-fleet-")


def _path(file: IO[bytes]) -> str:
    """Where this program itself reads a file without a name, from its beginning."""
    file.flush()
    file.seek(0)
    return f"/dev/fd/{file.fileno()}"


def _without_stdin(words: list[str], file: IO[bytes]) -> list[str]:
    """Words with a file in place of standard input, which can be read once and is asked for twice."""
    if "@-" not in words:
        return words
    shutil.copyfileobj(sys.stdin.buffer, file)
    path = _path(file)
    return [f"@{path}" if word == "@-" else word for word in words]


def _batches(rows: Iterable[str]) -> Generator[list[str], None, None]:
    """Rows as they are put into the dataset: so many at once, or those of a while."""
    batch: list[str] = []
    began = time.monotonic()
    try:
        for row in rows:
            batch.append(row)
            if len(batch) >= _KEPT or time.monotonic() - began >= _WAIT:
                yield batch
                batch, began = [], time.monotonic()
    except GeneratorExit:
        # Nobody takes more.
        raise
    except BaseException:
        # Whatever ends it: what is done is kept.
        yield batch
        raise
    yield batch


def _keep(late: IO[bytes], rows: bytes, out: str) -> bool:
    """Puts rows into the dataset, and those that are late in the file; whether it could: another run may be writing it, and
    what was done so far is worth more than to stop for that."""
    late.seek(0, os.SEEK_END)
    late.write(rows)
    try:
        _tonnage.ask_fleet(["fleet", "keep", "--rows", _path(late), "--out", out])
    except Error as error:
        if "is being written by another run" in str(error):
            return False
        raise
    late.seek(0)
    late.truncate()
    return True


def _is_free(late: IO[bytes], out: str) -> bool:
    """Whether another run lets the dataset go in a while, and what is late is in it."""
    end = time.monotonic() + _PATIENCE
    while not _keep(late, b"", out):
        if time.monotonic() > end:
            return False
        time.sleep(0.5)
    return True


def _on_ray(files: dict[str, Any], address: str, in_flight: int | None, kept: bool) -> Generator[str, None, None]:
    """The rows of files, as JSON, in the order in which they are done; ``kept`` is whether a dataset has them. A storage that goes
    away meanwhile is not waited for with each of its files."""
    in_a_row: dict[str, int] = {}
    count = 0
    calls = []
    for file in files["left"]:
        path = file.pop("path")
        calls.append((file, files["words"], _tonnage.VERSION, path))
    # A reader that is ended leaves nothing behind.
    with contextlib.closing(_ray.spread(_look, calls, address, in_flight, doing="looking at files")) as done:
        for (file, *_), row in done:
            if isinstance(row, _ray.Lost):
                yield json.dumps({**file, "seen": {"unreadable": str(row)}})
                continue
            yield row
            count += 1
            looked = json.loads(row)
            gone = looked.get("gone")
            in_a_row = {it: times for it, times in in_a_row.items() if not file["address"].startswith(f"{it}/") or gone == it}
            if gone is not None:
                in_a_row[gone] = in_a_row.get(gone, 0) + 1
            if in_a_row.get(gone, 0) >= _GONE and count < len(calls):
                rest = "; what is done is kept, the same command goes on from there" if kept else ""
                raise Error(f"{gone}: {looked['seen']['unreadable']}; {count} of {len(calls)} files were looked at by then{rest}")


def _look(file: dict[str, Any], words: list[str], version: str, path: str) -> str:
    """One file, looked at by a worker: its row, as JSON."""
    _ray.check_version(version)
    about = [f"--address={file['address']}", f"--version-of={file['version']}"]
    here = _ray.tasks_here()
    if here is not None:
        about.append(f"--jobs={here}")
    if file["size"] is not None:
        about.append(f"--size={file['size']}")
    return _tonnage.ask_fleet(["fleet", "look", *about, *words, "--", path])[1]


def _command(words: list[str]) -> int:
    """``tonnage fleet report … --ray ADDRESS``: prints what the command does, and returns its exit status."""
    words, address = _ray.without(words, "--ray")
    _, out = _ray.without(words, "--out")
    try:
        with _rows_from_ray(words, address or "auto", None, out) as (words, lost):
            # From here on as the command without Ray.
            _main.leave_signals()
            status = _tonnage.command(["tonnage", "fleet", "report", *words])
        if lost is not None:
            print(f"warning: {lost}", file=sys.stderr)
        return status
    except Error as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return _ray.stopped(kept=out is not None)
