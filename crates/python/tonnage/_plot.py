"""Pictures of memory over time."""

from __future__ import annotations

import os

from . import _tonnage
from ._errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


#: More iterations than this are not told apart.
_MARKED = 120

#: How dark each phase is.
_SHADES = {"forward": 0.18, "backward": 0.5, "optimizer": 0.95}


class Plot:
    """A picture: ``svg``, ``png()``, ``save("peak.svg")``; or an object of a drawing library, to go on with."""

    def __init__(
        self,
        svg: str,
        groups: list[str],
        columns: list[tuple[int, list[int], int]],
        marks: tuple[list[str | None], list[int], list[int]],
        *,
        limit: int | None = None,
    ) -> None:
        #: The picture as SVG.
        self.svg = svg
        #: What memory is told apart by, lowest first.
        self.groups = groups
        #: Of each column, from left to right, its entry of most allocated memory, the bytes of each group then, and the
        #: most reserved bytes.
        self.columns = columns
        #: Of each column what the program was doing: ``"forward"``, ``"backward"``, ``"optimizer"``; ``None`` where the
        #: history does not tell.
        self.phases = marks[0]
        #: First entries of iterations; none where none were found.
        self.iterations = marks[1]
        #: Entries of requests that failed.
        self.failed = marks[2]
        #: The limit that is drawn, in bytes.
        self.limit = limit

    def _stretches(self) -> list[tuple[str, int, int]]:
        """Phases with the entries at which they begin and end."""
        stretches: list[tuple[str, int, int]] = []
        before: str | None = None
        for (event, _, _), phase in zip(self.columns, self.phases):
            if before is not None:
                name, begin, _ = stretches[-1]
                stretches[-1] = (name, begin, event)
            if phase is not None and phase != before:
                stretches.append((phase, event, event))
            before = phase
        return stretches

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
        """The same as matplotlib's axes: groups, the line of what is reserved, limit, iterations, failures, phases."""
        from matplotlib import pyplot

        events = [event for event, _, _ in self.columns]
        _, axes = pyplot.subplots()
        layers = [[column[at] for _, column, _ in self.columns] for at in range(len(self.groups))]
        if layers:
            axes.stackplot(events, *layers, labels=self.groups, step="post")
        axes.plot(events, [reserved for _, _, reserved in self.columns], label="reserved", color="black",
                  drawstyle="steps-post")
        if self.limit is not None:
            axes.axhline(self.limit, label="limit", color="#cc0000", linestyle="--")
        if len(self.iterations) <= _MARKED:
            for event in self.iterations:
                axes.axvline(event, color="black", alpha=0.35, linestyle=":")
        for event in self.failed[:_MARKED]:
            axes.axvline(event, color="#cc0000")
        named: set[str] = set()
        for phase, begin, end in self._stretches():
            axes.axvspan(begin, end, 0, 0.02, color="black", alpha=_SHADES[phase], linewidth=0,
                         label=None if phase in named else phase)
            named.add(phase)
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
        chart = area + line.encode(x="event:Q", y="reserved:Q")

        def ruled(values: list[dict[str, int]], **look: Any) -> Any:
            return altair.Chart(altair.Data(values=values)).mark_rule(**look)

        if self.limit is not None:
            chart += ruled([{"limit": self.limit}], color="#cc0000", strokeDash=[6, 4]).encode(y="limit:Q")
        if 0 < len(self.iterations) <= _MARKED:
            begins = ruled([{"event": event} for event in self.iterations], opacity=0.35, strokeDash=[2, 3])
            chart += begins.encode(x="event:Q")
        if self.failed:
            failed = [{"event": event} for event in self.failed[:_MARKED]]
            chart += ruled(failed, color="#cc0000").encode(x="event:Q")
        stretches = [{"phase": phase, "event": begin, "end": end} for phase, begin, end in self._stretches()]
        if stretches:
            bars = altair.Chart(altair.Data(values=stretches)).mark_bar(color="black", height=6, yOffset=4)
            shades = altair.Scale(domain=list(_SHADES), range=list(_SHADES.values()))
            opacity = altair.Opacity("phase:N", scale=shades)
            chart += bars.encode(x="event:Q", x2="end:Q", y=altair.value("height"), opacity=opacity)
        return chart

    def __repr__(self) -> str:
        return f"<tonnage plot of {', '.join(self.groups)}: {len(self.columns):,} columns>"

    def _repr_svg_(self) -> str:
        # Notebooks want it without the line that files begin with.
        return self.svg.partition("?>")[2].lstrip()
