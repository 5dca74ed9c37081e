"""Pictures of memory over time."""

from __future__ import annotations

import os

from . import _tonnage
from ._errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ._snapshot import Snapshot


class Plot:
    """A picture: ``svg``, ``png()``, ``save("peak.svg")``; or an object of a drawing library, to go on with."""

    def __init__(self, svg: str, snapshot: Snapshot, ordinal: int | None = None) -> None:
        #: The picture as SVG.
        self.svg = svg
        self._snapshot = snapshot
        self._ordinal = ordinal

    def png(self) -> bytes:
        """The picture as PNG. Words need a font of this machine."""
        return bytes(_tonnage.png(self.svg))

    def save(self, path: str | os.PathLike[str], *, force: bool = False) -> None:
        """Writes it to a file, as its ending says: ``.svg`` or ``.png``. Another file is replaced with ``force``."""
        name = os.fspath(path)
        if name.endswith(".png"):
            data = self.png()
        elif name.endswith(".svg"):
            data = self.svg.encode()
        else:
            raise UsageError(f"{name}: pictures are `.svg` or `.png`")
        _tonnage.write_file(name, data, force)

    def to_matplotlib(self) -> Any:
        """Allocated and reserved bytes over the entries, as matplotlib's axes."""
        from matplotlib import pyplot

        columns = self._columns()
        _, axes = pyplot.subplots()
        axes.fill_between(columns["event"], columns["allocated"], label="allocated", alpha=0.5)
        axes.plot(columns["event"], columns["reserved"], label="reserved")
        axes.set_xlabel("entry of the history")
        axes.set_ylabel("bytes")
        axes.legend()
        return axes

    def to_altair(self) -> Any:
        """The same as a chart of Altair's."""
        import altair

        columns = self._columns()
        rows = [
            {"event": event, "kind": kind, "bytes": size}
            for kind in ("allocated", "reserved")
            for event, size in zip(columns["event"], columns[kind])
        ]
        chart = altair.Chart(altair.Data(values=rows)).mark_line()
        return chart.encode(x="event:Q", y="bytes:Q", color="kind:N")

    def _columns(self) -> dict[str, list[int]]:
        """At most a few thousand pieces of the device's entries, each with the most that there was in it."""
        table = self._snapshot.events().to_arrow().select(["device", "event", "allocated", "reserved"]).to_pydict()
        devices = table["device"]
        chosen = self._ordinal
        if chosen is None and devices:
            # As in the picture: the device with the most entries.
            chosen = max(sorted(set(devices)), key=devices.count)
        rows = [at for at, it in enumerate(devices) if it == chosen]
        wide = max(1, len(rows) // 2000)
        pieces = [rows[begin : begin + wide] for begin in range(0, len(rows), wide)]
        most = {name: [max(table[name][at] for at in piece) for piece in pieces] for name in ("allocated", "reserved")}
        return {"event": [table["event"][piece[0]] for piece in pieces], **most}

    def _repr_svg_(self) -> str:
        # Notebooks want it without the line that files begin with.
        return self.svg.partition("?>")[2].lstrip()
