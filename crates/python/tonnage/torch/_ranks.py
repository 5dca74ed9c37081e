"""Ranks of a job, predicted by the workers of a Ray cluster: ``tonnage.torch.predict(…, world=16, rank="all", ray="auto")``.

The command says which ranks are to run next and takes what comes of each into its dataset (its hidden steps, as
``predict_ranks/elsewhere.rs`` has them); here ranks only travel. At the end the command finds every run there, and says what it
would have said without Ray.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
import time
from pathlib import Path

from .. import __main__ as _main
from .. import _ray, _tonnage
from .._errors import Error, UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

#: The flag by which the command takes ranks that failed as they are.
_AS_THEY_ARE = "--failures-kept"

#: Seconds that another program may have the dataset: what workers did is worth more than to stop for that.
_PATIENCE = 30.0

#: Ranks that a sentence names.
_NAMED = 8


def run(words: list[str], command: list[str], address: str, in_flight: int | None) -> list[str]:
    """Lets Ray run the ranks that are left, until none is; and the words of the command that finds all of them."""
    if not any(word.split("=")[0] == "--out" for word in words):
        raise UsageError("ray: name a folder for what workers bring (out)")
    known: list[str] = []
    done: set[int] = set()
    while True:
        ask = _patiently if known else _tonnage.ask
        plan = json.loads(ask(["predict", "--left", *known, *words, "--", *command])[1])
        left = plan["left"]
        # What ranks are run with stays what it was at the beginning, and those that failed by themselves are not tried twice.
        key = f"--key={json.dumps(plan['key'])}"
        known = [_AS_THEY_ARE, key]
        if not left:
            return [*known, *words, "--", *command]
        if done.issuperset(left):
            named = ", ".join(map(str, left[:_NAMED])) + (", …" if len(left) > _NAMED else "")
            raise Error(f"ranks were run and are not found in the dataset, which nobody else may change meanwhile: {named}")
        done.update(left)
        about = [*plan["words"], key]
        calls = [
            ({"address": f"rank {rank}", "rank": rank}, about, _tonnage.VERSION, plan["folder"], plan["command"], plan["settings"])
            for rank in left
        ]
        # What a worker runs has processes of its own: it ends them when it is asked to end.
        spread = _ray.spread(_simulate, calls, address, in_flight, doing="running ranks", short=False)
        with contextlib.closing(spread) as made:
            for (asked, *_), files in made:
                if isinstance(files, _ray.Lost):
                    lost = {"verdict": "failed", "why": str(files), "history": False, "prediction": None, "text": ""}
                    files = {"run.json": json.dumps({"key": plan["key"], **lost}).encode()}
                _keep(asked["rank"], files, words, command)


def _keep(rank: int, files: dict[str, bytes], words: list[str], command: list[str]) -> None:
    """Puts what a worker has made into the dataset."""
    rest, _ = _ray.without(words, "--rank")
    with tempfile.TemporaryDirectory(prefix="tonnage-rank-") as folder:
        for name, data in files.items():
            Path(folder, name).write_bytes(data)
        _patiently(["predict", f"--keep={folder}", f"--rank={rank}", *rest, "--", *command])


def _patiently(words: list[str]) -> tuple[str, str, bool]:
    """Asks the command, which another program may keep from the dataset for a while."""
    end = time.monotonic() + _PATIENCE
    while True:
        try:
            return _tonnage.ask(words)
        except Error as error:
            if "is being written by another run" not in str(error) or time.monotonic() > end:
                raise
        time.sleep(0.5)


def _simulate(
    asked: dict[str, Any], words: list[str], version: str, folder: str, command: list[str], settings: dict[str, Any]
) -> dict[str, bytes]:
    """One rank, run by a worker: the files that come of it."""
    _ray.check_version(version)
    try:
        os.chdir(folder)
    except OSError as error:
        raise _ray.RefusedError(
            f"a Ray worker cannot go to {folder}, where the script is run: workers must see it under the same path ({error})"
        ) from None
    with tempfile.TemporaryDirectory(prefix="tonnage-rank-") as made:
        try:
            with _settings(settings):
                _tonnage.ask(["predict", f"--rank={asked['rank']}", f"--one={made}", *words, "--", *command])
        except Error as error:
            raise _ray.RefusedError(f"a Ray worker: {error}") from None
        return {path.name: path.read_bytes() for path in Path(made).iterdir()}


@contextlib.contextmanager
def _settings(settings: dict[str, Any]) -> Iterator[None]:
    """Lets a worker have the variables that decide what PyTorch does with memory as whoever asks has them, and no others of
    these; its own come back, since it does other work later."""
    begin, places = tuple(settings["begin"]), tuple(settings["places"])

    def own() -> dict[str, str]:
        return {name: it for name, it in os.environ.items() if name.startswith(begin) and not name.endswith(places)}

    def become(values: dict[str, str]) -> None:
        for name in own():
            del os.environ[name]
        os.environ.update(values)

    before = own()
    try:
        become(settings["values"])
        yield
    finally:
        become(before)


def _command(words: list[str]) -> int:
    """``tonnage predict … --ray ADDRESS -- python train.py``: prints what the command does, and returns its exit status."""
    words, address = _ray.without(words, "--ray")
    flags, command = _parted(words)
    try:
        found = run(flags, command, address or "auto", None)
    except Error as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return _ray.stopped(kept=True)
    # From here on as the command without Ray.
    _main.leave_signals()
    return _tonnage.command(["tonnage", "predict", *found])


def _parted(words: list[str]) -> tuple[list[str], list[str]]:
    """Flags, and the command behind ``--``."""
    if "--" not in words:
        return words, []
    place = words.index("--")
    return words[:place], words[place + 1 :]
