"""Tables of a snapshot, for whatever takes Arrow's PyCapsule interface."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from . import _tonnage


class Table:
    """Rows of a snapshot as Arrow columns: ``pyarrow.table(it)``, ``polars.DataFrame(it)``, or a DuckDB query over that.

    Columns are shared with whoever takes them, not copied.
    """

    def __init__(self, made: _tonnage.Table) -> None:
        self._made = made

    @property
    def name(self) -> str:
        """``events``, ``allocations``, ``segments`` or ``blocks``."""
        return self._made.name

    @property
    def columns(self) -> list[str]:
        """Names, in order."""
        return [column[0] for column in self._made.columns]

    def describe(self) -> dict[str, str]:
        """What each column says."""
        return {column[0]: column[3] for column in self._made.columns}

    def __len__(self) -> int:
        return len(self._made)

    def __arrow_c_schema__(self) -> object:
        return self._made.__arrow_c_schema__()

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        return self._made.__arrow_c_stream__(requested_schema)

    def to_arrow(self) -> Any:
        """As a ``pyarrow.Table``."""
        import pyarrow

        return pyarrow.table(self)

    def to_pandas(self) -> Any:
        """As a ``pandas.DataFrame``."""
        import pandas

        from_arrow = getattr(pandas.DataFrame, "from_arrow", None)
        return from_arrow(self) if from_arrow is not None else self.to_arrow().to_pandas()

    def to_polars(self) -> Any:
        """As a ``polars.DataFrame``."""
        import polars

        return polars.DataFrame(self)

    def __repr__(self) -> str:
        return f"<tonnage {self.name}: {len(self):,} rows of {', '.join(self.columns)}>"
