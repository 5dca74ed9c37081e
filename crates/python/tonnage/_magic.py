"""``%load_ext tonnage``: the cell magic ``%%tonnage``."""

from __future__ import annotations

from ._errors import Error, UsageError
from ._record import Recording, is_out_of_memory, record
from ._sizes import in_bytes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def load(shell: Any) -> None:
    """Makes the magic known to IPython."""

    def tonnage(line: str, cell: str) -> None:
        """Records the memory of a cell, and shows the report. ``%%tonnage 24GiB`` tells the limit."""
        from IPython.display import display

        limit = line.strip() or None
        if limit is not None and len(limit.split()) > 2:
            raise UsageError(f"%%tonnage takes a limit such as 24GiB, or nothing: not {limit!r}")
        if limit is not None:
            # Before a cell that may take hours.
            in_bytes(limit)
        recording, result = _record(shell, cell)
        try:
            display(recording.report(limit=limit))
        except Error as error:
            print(f"tonnage: {error}")
        # A cell that failed is a failed cell to whoever runs the notebook.
        result.raise_error()

    shell.register_magic_function(tonnage, magic_kind="cell", magic_name="tonnage")


def _record(shell: Any, cell: str) -> tuple[Recording, Any]:
    """Runs a cell as IPython does, which shows what it raises."""
    with record(save=False) as recording:
        result = shell.run_cell(cell)
        raised = result.error_in_exec
        if raised is not None and is_out_of_memory(raised):
            recording.explain(raised)
            for note in getattr(raised, "__notes__", ()):
                print(note)
    made: Recording = recording
    return made, result
