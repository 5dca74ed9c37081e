"""What ``tonnage record`` starts in every Python of a job, before its own program.

In:  the variables of the environment that begin with ``TONNAGE_RECORD_``.
Out: one snapshot for each process that used a GPU, its path added to a list; notes on memory that ran out.

The folder of this file is first on the path, under the name ``sitecustomize``; one of the program's own is run after it.
"""

from __future__ import annotations

import atexit
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any


class Job:
    """The recording of this process."""

    def __init__(self, recorder: Any, torch: Any) -> None:
        entries = int(os.environ.get("TONNAGE_RECORD_ENTRIES", recorder.MOST_ENTRIES))
        self._recorder = recorder
        self._torch = torch
        self._recording = recorder.Recording(entries, None, True)

    def begin(self) -> None:
        """Records once the program uses a GPU, and no sooner: what comes before is for every fork of it."""
        self._torch.cuda._lazy_call(self._start)
        self._recorder.explain_uncaught(self._recording)
        atexit.register(self.end, os.getpid())

    def _start(self) -> None:
        # A spawned process does not know its script before.
        path = f"{self._recorder.script()}.memory.pickle"
        folder = os.environ.get("TONNAGE_RECORD_FOLDER")
        self._recording.save_as(os.path.join(folder, os.path.basename(path)) if folder else path)
        self._recording.start()

    def end(self, process: int) -> None:
        """Saves what there is. A fork of this process has nothing of its own to save."""
        if os.getpid() != process or not self._torch.cuda.is_initialized():
            return
        try:
            self._recording.stop()
        except Exception as error:
            print(f"tonnage: the memory of this process cannot be saved: {error}", file=sys.stderr)
            return
        written = os.environ.get("TONNAGE_RECORD_LIST")
        if written and self._recording.path:
            with open(written, "a", encoding="utf-8") as out:
                out.write(self._recording.path + "\n")


def install() -> None:
    """Watches for PyTorch, and gives way to a ``sitecustomize`` of the program's own."""
    import tonnage_after_import
    import tonnage_record

    def begin(torch: ModuleType) -> None:
        try:
            Job(tonnage_record, torch).begin()
        except Exception as error:
            print(f"tonnage: this process is not recorded: {error}", file=sys.stderr)

    tonnage_after_import.AfterImport("torch", begin).install()
    tonnage_after_import.give_way(__file__)


if __name__ == "sitecustomize":
    install()
