"""How much can your GPU carry? Memory of PyTorch jobs: recorded, explained, tuned, predicted.

>>> import tonnage
>>> snapshot = tonnage.read("snapshot.pickle")
>>> print(snapshot.report(limit="24GiB"))
"""

from __future__ import annotations

import os

from ._errors import (
    ConfError,
    DeviceError,
    Error,
    ExistingFileError,
    FileError,
    ForbiddenFileError,
    InternalError,
    LimitError,
    MissingFileError,
    NoMemoryError,
    RecordError,
    ScriptError,
    SnapshotError,
    UsageError,
)
from ._recipes import predict, run
from ._record import Recording, record
from ._results import Diff, Outcome, Record, Replay, Report, Result, Tuning
from ._snapshot import Device, Peak, Snapshot, read
from ._tables import Table
from ._tonnage import VERSION as __version__
from ._tonnage import after_fork

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# Threads do not come along into a fork.
os.register_at_fork(after_in_child=after_fork)


def load_ipython_extension(shell: Any) -> None:
    """``%load_ext tonnage``."""
    from ._magic import load

    load(shell)


def __getattr__(name: str) -> Any:
    # What few need is imported when it is asked for.
    if name in ("callbacks", "fleet"):
        from importlib import import_module

        return import_module(f".{name}", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "ConfError",
    "Device",
    "DeviceError",
    "Diff",
    "Error",
    "ExistingFileError",
    "FileError",
    "ForbiddenFileError",
    "InternalError",
    "LimitError",
    "MissingFileError",
    "NoMemoryError",
    "Outcome",
    "Peak",
    "Record",
    "RecordError",
    "Recording",
    "Replay",
    "Report",
    "Result",
    "ScriptError",
    "Snapshot",
    "SnapshotError",
    "Table",
    "Tuning",
    "UsageError",
    "__version__",
    "predict",
    "read",
    "record",
    "run",
]
