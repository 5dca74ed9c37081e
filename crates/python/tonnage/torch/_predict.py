"""The memory of a PyTorch script before a GPU is there: ``tonnage.torch.predict("train.py", ["--batch", "8"], gpu="h200")``."""

from __future__ import annotations

import os
import sys

from .. import _tonnage
from .._errors import UsageError
from .._results import Record, Result
from .._snapshot import _flags

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any


class Prediction(Result):
    """What a script would take; true if it fits. Peaks have ``low`` and ``high``, which are equal where nothing is left open."""

    schema: int
    command: list[str]
    gpu: str
    limit: int | None
    torch: str
    requested: Record | None
    allocated: Record | None
    reserved: Record | None
    context: int
    peak: Record | None
    allocations: int | None
    ooms: int | None
    fits: bool | None
    cards: list[Record]
    need: Record | None
    error: Record | None
    advice: list[str]
    guesses: list[Record]
    unknown: list[str]
    files: list[Record]
    seconds: float
    snapshot: str | None


def predict(
    script: str | os.PathLike[str] | Sequence[str],
    args: Sequence[str | os.PathLike[str] | int | float] = (),
    *,
    gpu: str | os.PathLike[str] | None = None,
    limit: int | str | None = None,
    conf: str | None = None,
    save: str | os.PathLike[str] | None = None,
    time: int | None = None,
    python: str | os.PathLike[str] | None = None,
    **options: Any,
) -> Prediction:
    """What a script takes on a GPU that need not be there, as ``tonnage predict -- python train.py`` tells it.

    The script runs as it is, twice or more, in processes of their own, on CUDA libraries that compute nothing: what it writes is
    written, and is made of zeros. ``script`` is its path, or the words behind Python (``["-m", "package.train"]``); ``gpu`` a card
    by its name or a file with a card's data; ``limit`` the most that can be had of it, such as ``24GiB``; ``conf`` PyTorch's
    settings; ``save`` a file for the history; ``time`` the seconds that each run may take; ``python`` another interpreter than
    this one. Other options are those of the command, such as ``world=8, rank=3``.

    A script that runs out of memory is an answer; one that fails for another reason raises ``tonnage.ScriptError``.
    """
    if isinstance(args, (str, bytes)):
        raise UsageError(f"args: a list of arguments is wanted, such as {args.split()!r}, not one text")
    words = [script] if isinstance(script, (str, os.PathLike)) else list(script)
    command = [os.fspath(python or sys.executable), *(os.fspath(word) for word in words), *map(_word, args)]
    named = {"gpu": gpu, "save": save}
    paths = {name: os.fspath(path) for name, path in named.items() if path is not None}
    flags = _flags(**paths, limit=limit, conf=conf, time=time, **options)
    return Prediction(*_tonnage.ask(["predict", *flags, "--", *command]))


def _word(argument: str | os.PathLike[str] | int | float) -> str:
    return os.fspath(argument) if isinstance(argument, (str, os.PathLike)) else str(argument)
