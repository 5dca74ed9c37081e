"""Pictures of memory over time."""

from __future__ import annotations

import os

from . import _tonnage
from ._errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class Plot:
    """A picture: ``svg``, ``png()``, ``save("peak.svg")``; or an object of a drawing library, to go on with."""

    def __init__(self, svg: str, groups: list[str], columns: list[tuple[int, list[int], int]]) -> None:
        #: The picture as SVG.
        self.svg = svg
        #: What memory is told apart by, lowest first.
        self.groups = groups
        #: Of each column, from left to right, its entry of most allocated memory, the bytes of each group then, and the
        #: most reserved bytes.
        self.columns = columns

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
        """The same as matplotlib's axes: the groups one on the other, and the line of what is reserved."""
        from matplotlib import pyplot

        events = [event for event, _, _ in self.columns]
        _, axes = pyplot.subplots()
        layers = [[column[at] for _, column, _ in self.columns] for at in range(len(self.groups))]
        if layers:
            axes.stackplot(events, *layers, labels=self.groups, step="post")
        axes.plot(events, [reserved for _, _, reserved in self.columns], label="reserved", color="black",
                  drawstyle="steps-post")
        axes.set_xlabel("entry of the history")
        axes.set_ylabel("bytes")
        axes.legend()
        return axes

    def to_altair(self) -> Any:
        """The same as a chart of Altair's."""
        import altair

        areas = [
            {"event": event, "kind": kind, "place": place, "bytes": size}
            for event, column, _ in self.columns
            for place, (kind, size) in enumerate(zip(self.groups, column))
        ]
        lines = [{"event": event, "reserved": reserved} for event, _, reserved in self.columns]
        area = altair.Chart(altair.Data(values=areas)).mark_area(interpolate="step-after")
        color = altair.Color("kind:N", sort=self.groups)
        area = area.encode(x="event:Q", y=altair.Y("bytes:Q", stack="zero"), color=color, order="place:Q")
        line = altair.Chart(altair.Data(values=lines)).mark_line(interpolate="step-after", color="black")
        return area + line.encode(x="event:Q", y="reserved:Q")

    def _repr_svg_(self) -> str:
        # Notebooks want it without the line that files begin with.
        return self.svg.partition("?>")[2].lstrip()
