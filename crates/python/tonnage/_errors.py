"""What can go wrong. Each says the sentence that the command would print."""

from __future__ import annotations


class Error(Exception):
    """Anything that tonnage refuses. The kinds below say what can be done about it."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class UsageError(Error, ValueError):
    """An argument that the command would refuse."""


class ConfError(Error, ValueError):
    """Settings that PyTorch would refuse in ``PYTORCH_CUDA_ALLOC_CONF``."""


class SnapshotError(Error, ValueError):
    """Something that is no snapshot, or a damaged one."""

    #: Where in the pickle, unpacked, as ``python -m pickletools`` counts; None where there is no such place.
    offset: int | None = None


class LimitError(SnapshotError):
    """A snapshot that takes more memory to read than it may: pass ``max_memory`` if you trust it."""


class FileError(Error, OSError):
    """A file that cannot be read or written."""


class MissingFileError(FileError, FileNotFoundError):
    """A file that is not there."""


class ForbiddenFileError(FileError, PermissionError):
    """A file that may not be read or written."""


class ExistingFileError(FileError, FileExistsError):
    """A file that is there already and is kept: pass ``force=True`` to replace it."""


class RecordError(Error, RuntimeError):
    """A recording that cannot be made."""


class ScriptError(Error, RuntimeError):
    """A script that failed by itself, so that there is no answer about its memory."""

    #: What is known of it all the same, as the command prints it.
    text: str = ""


class NoMemoryError(Error, MemoryError):
    """Memory of a GPU that others have now: later there may be enough."""


class DeviceError(Error, RuntimeError):
    """A GPU that failed."""


class InternalError(Error, RuntimeError):
    """A mistake of tonnage's own: please report it."""
