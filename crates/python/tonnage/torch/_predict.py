"""The memory of a PyTorch script before a GPU is there: ``tonnage.torch.predict("train.py", ["--batch", "8"], gpu="h200")``."""

from __future__ import annotations

import os
import sys

from .. import _tonnage
from .._errors import UsageError
from .._results import Record, Result
from .._snapshot import _flags
from . import _ranks

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Any


class Prediction(Result):
    """What a script would take; true if it fits. Peaks have ``low`` and ``high``, which are equal where nothing is left open.

    Of several ranks of a job, ``ranks`` has a prediction for each that was run, and peaks are the most of any."""

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
    rank: str | int | Iterable[int | str] | None = None,
    layout: str | Mapping[str, int] | None = None,
    alike: str | Iterable[str] | None = None,
    out: str | os.PathLike[str] | None = None,
    ray: str | None = None,
    in_flight: int | None = None,
    **options: Any,
) -> Prediction:
    """What a script takes on a GPU that need not be there, as ``tonnage predict -- python train.py`` tells it.

    The script runs as it is, twice or more, in processes of their own, on CUDA libraries that compute nothing: what it writes is
    written, and is made of zeros. ``script`` is its path, or the words behind Python (``["-m", "package.train"]``); ``gpu`` a card
    by its name or a file with a card's data; ``limit`` the most that can be had of it, such as ``24GiB``; ``conf`` PyTorch's
    settings; ``save`` a file for the history; ``time`` the seconds that each run may take; ``python`` another interpreter than
    this one. Other options are those of the command, such as ``world=8, rank=3``.

    Of a job of ``world`` ranks ``rank`` names some (``3``, ``"0-15,31"``, ``[0, 31]``) or ``"all"``; ``layout`` are its axes,
    outermost first (``{"dp": 4, "tp": 2}``), and ``alike`` those along which ranks are alike, so that they may share a run.
    ``out`` is the folder of a dataset for them. With ``ray`` each rank is a task of that Ray cluster, as of
    ``tonnage.fleet.report``: workers need this package, of the same version, and see the script and the folder in which it is
    started under the same paths; histories come back to ``out``. At most ``in_flight`` tasks are there at once.

    A script that runs out of memory is an answer; one that fails for another reason raises ``tonnage.ScriptError``.
    """
    if isinstance(args, (str, bytes)):
        raise UsageError(f"args: a list of arguments is wanted, such as {args.split()!r}, not one text")
    words = [script] if isinstance(script, (str, os.PathLike)) else list(script)
    command = [os.fspath(python or sys.executable), *(os.fspath(word) for word in words), *map(_word, args)]
    named = {"gpu": gpu, "save": save, "out": out}
    paths = {name: os.fspath(path) for name, path in named.items() if path is not None}
    if layout is not None and not isinstance(layout, str):
        layout = ",".join(f"{axis}={size}" for axis, size in layout.items())
    ranks = {"rank": _listed(rank), "layout": layout, "alike": _listed(alike)}
    flags = _flags(**paths, limit=limit, conf=conf, time=time, **options, **ranks)
    if ray is None:
        return Prediction(*_tonnage.ask(["predict", *flags, "--", *command]))
    return Prediction(*_tonnage.ask(["predict", *_ranks.run(flags, command, ray, in_flight)]))


def _listed(value: str | int | Iterable[int | str] | None) -> str | int | None:
    """Several values as the command takes them."""
    return value if value is None or isinstance(value, (str, int)) else ",".join(map(str, value))


def _word(argument: str | os.PathLike[str] | int | float) -> str:
    return os.fspath(argument) if isinstance(argument, (str, os.PathLike)) else str(argument)
