"""One line for the training loops of others.

    Trainer(..., callbacks=[tonnage.callbacks.for_transformers()])
    lightning.Trainer(..., callbacks=[tonnage.callbacks.for_lightning()])
    Accelerator(log_with=tonnage.callbacks.for_accelerate())

Each records the training, marks its steps, prints the report at the end, and explains memory that runs out.
"""

from __future__ import annotations

import sys

from ._record import MOST_ENTRIES, Recording, explain_uncaught

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class _Training:
    """What all of them do: a recording for each training, of which there may be several, one after the other."""

    def __init__(self, path: str | None, max_entries: int, report: bool) -> None:
        self._path = path
        self._max_entries = max_entries
        self._report = report
        self._stop_explaining: Any = None
        self.recording = Recording(max_entries, path, True)

    def begin(self) -> None:
        # One that was broken off by an exception which no one told of.
        self._finish()
        self.recording = Recording(self._max_entries, self._path, True)
        self.recording.start()
        self._stop_explaining = explain_uncaught(self.recording)

    def step(self) -> None:
        self.recording.step()

    def fail(self, raised: BaseException) -> None:
        if self._stop_explaining is not None:
            self._stop_explaining()
            self._stop_explaining = None
            self.recording.__exit__(type(raised), raised, None)

    def end(self) -> None:
        from . import Error

        if self._finish() and self._report:
            try:
                print(self.recording.report(), file=sys.stderr)
            except Error as error:
                print(f"tonnage: no report: {error}", file=sys.stderr)

    def _finish(self) -> bool:
        """Ends the recording that is under way, and says whether there was one."""
        if self._stop_explaining is None:
            return False
        self._stop_explaining()
        self._stop_explaining = None
        self.recording.stop()
        return True


def for_transformers(*, path: str | None = None, max_entries: int = MOST_ENTRIES, report: bool = True) -> Any:
    """A callback for ``transformers.Trainer``."""
    from transformers import TrainerCallback

    class TonnageCallback(TrainerCallback):  # type: ignore[misc]
        def __init__(self) -> None:
            self.training = _Training(path, max_entries, report)

        @property
        def recording(self) -> Recording:
            """The recording of the last training."""
            return self.training.recording

        def on_train_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
            self.training.begin()

        def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
            self.training.step()

        def on_train_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
            self.training.end()

    return TonnageCallback()


def for_lightning(*, path: str | None = None, max_entries: int = MOST_ENTRIES, report: bool = True) -> Any:
    """A callback for Lightning's ``Trainer``, of ``lightning`` or ``pytorch_lightning``."""
    try:
        from lightning.pytorch.callbacks import Callback
    except ImportError:
        from pytorch_lightning.callbacks import Callback

    class TonnageCallback(Callback):  # type: ignore[misc]
        def __init__(self) -> None:
            self.training = _Training(path, max_entries, report)

        @property
        def recording(self) -> Recording:
            """The recording of the last training."""
            return self.training.recording

        def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
            self.training.begin()

        def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            self.training.step()

        def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
            self.training.fail(exception)

        def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
            self.training.end()

    return TonnageCallback()


def for_accelerate(*, path: str | None = None, max_entries: int = MOST_ENTRIES, report: bool = True) -> Any:
    """A tracker for ``accelerate.Accelerator``: each ``accelerator.log`` marks a step, ``end_training`` reports."""
    from accelerate.tracking import GeneralTracker

    class TonnageTracker(GeneralTracker):  # type: ignore[misc]
        name = "tonnage"
        requires_logging_directory = False
        main_process_only = False

        def __init__(self) -> None:
            super().__init__()
            self.training = _Training(path, max_entries, report)
            self.training.begin()

        @property
        def tracker(self) -> Recording:
            return self.training.recording

        def start(self) -> None:
            pass

        def store_init_configuration(self, values: dict[str, Any]) -> None:
            pass

        def log(self, values: dict[str, Any], step: int | None = None, **more: Any) -> None:
            self.training.step()

        def finish(self) -> None:
            self.training.end()

    return TonnageTracker()
