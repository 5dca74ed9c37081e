"""Snapshots, and the questions that are asked of them."""

from __future__ import annotations

import os

from . import _tonnage
from ._errors import SnapshotError, UsageError
from ._results import Diff, Record, Replay, Report, Tuning, wrap
from ._sizes import Size, in_bytes, word
from ._tables import Table

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import IO, Any

    from ._plot import Plot
    from ._view import Page


class Peak(Record):
    """The most bytes of each kind within a history; they may be at different moments."""

    requested: int
    allocated: int
    active: int
    reserved: int


class Device(Record):
    """A device of a snapshot: what it held at the end, and the peaks within its history."""

    device: int
    events: int
    history: str
    segments: int
    reserved: int
    allocated: int
    active: int
    cached: int
    requested: int

    @property
    def peak(self) -> Peak | None:
        """The peaks, or None without a history."""
        peak = self._data["peak"]
        return None if peak is None else Peak(peak)


def read(
    source: str | os.PathLike[str] | bytes | bytearray | memoryview | IO[bytes] | dict[str, Any],
    *,
    name: str | None = None,
    max_memory: Size | None = None,
) -> Snapshot:
    """Reads a snapshot: a path, bytes, a file object, or what ``torch.cuda.memory._snapshot()`` returns.

    Files may be packed with zstd, gzip or xz; nothing in them is executed. ``name`` is what it goes by, instead of its path.
    ``max_memory`` is what reading may take, of files that you trust.
    """
    most = None if max_memory is None else in_bytes(max_memory)
    if isinstance(source, dict):
        made = _tonnage.Snapshot.from_dict(source, name or "snapshot")
    elif isinstance(source, (bytes, bytearray, memoryview)):
        made = _tonnage.Snapshot.from_bytes(bytes(source), name or "bytes", most)
    elif hasattr(source, "read"):
        shown = name or str(getattr(source, "name", "file"))
        made = _tonnage.Snapshot.from_file(source, shown, most)
    elif isinstance(source, (str, os.PathLike)):
        path = os.fsdecode(source)
        # Bytes that are no text are shown as such, and not lost.
        shown = name or path.encode(errors="surrogateescape").decode(errors="replace")
        made = _tonnage.Snapshot.from_path(path, shown, most)
    else:
        raise UsageError(
            "a snapshot is read from a path, bytes, a file object or the dictionary of torch.cuda.memory._snapshot(), "
            f"not from {type(source).__name__}"
        )
    if made.trailing:
        import warnings

        warnings.warn(
            f"{made.name}: the snapshot ends {made.trailing} bytes before the file does; what follows is left out",
            stacklevel=2,
        )
    return Snapshot(made)


class Snapshot:
    """A memory snapshot of PyTorch's. Made by ``tonnage.read``; figures are worked out when they are asked for."""

    def __init__(self, made: _tonnage.Snapshot) -> None:
        self._made = made
        self._inspection: dict[str, Any] | None = None

    @property
    def name(self) -> str:
        """The name it goes by: its path, if it has one."""
        return self._made.name

    def _inspected(self) -> dict[str, Any]:
        if self._inspection is None:
            import json

            self._text, data, _ = self._made.ask(["inspect"])
            inspection = json.loads(data)
            peaks = dict(self._made.peaks())
            names = ("requested", "allocated", "active", "reserved")
            for device in inspection["devices"]:
                peak = peaks.get(device["device"])
                device["peak"] = None if peak is None else dict(zip(names, peak))
            self._inspection = inspection
        return self._inspection

    @property
    def devices(self) -> list[Device]:
        """The devices."""
        return [Device(device) for device in self._inspected()["devices"]]

    @property
    def peak(self) -> Peak:
        """The peaks of the device with most entries."""
        recorded = [device for device in self.devices if device.peak is not None]
        if not recorded:
            raise SnapshotError(
                f"{self.name}: there is no memory history, only the state at the end: call "
                "torch.cuda.memory._record_memory_history() before the work"
            )
        peak = max(recorded, key=lambda device: device.events).peak
        assert peak is not None
        return peak

    @property
    def settings(self) -> Record | None:
        """The allocator's settings, as far as the snapshot tells."""
        settings = self._made.settings()
        return None if settings is None else Record(settings)

    @property
    def pinned(self) -> Record | None:
        """The host's pinned memory, if the snapshot tells."""
        pinned: Record | None = wrap(self._inspected()["pinned"])
        return pinned

    def events(self, *, levels: bool = False) -> Table:
        """A row for each entry of the history; with ``levels`` also the bytes requested, allocated, active and reserved
        after each, which are worked out from all of it."""
        return Table(self._made.table("events") if levels else self._made.recorded_events())

    def allocations(self) -> Table:
        """A row for each allocation: when it came and went, where it was asked for."""
        return Table(self._made.table("allocations"))

    def segments(self) -> Table:
        """A row for each segment at the end."""
        return Table(self._made.table("segments"))

    def blocks(self) -> Table:
        """A row for each block at the end."""
        return Table(self._made.table("blocks"))

    def report(
        self,
        *,
        limit: Size | None = None,
        total: Size | None = None,
        pytorch: str | None = None,
        ordinal: int | None = None,
    ) -> Report:
        """What limits the job, why, and the one change that helps most."""
        flags = _flags(limit=limit, total=total, pytorch=pytorch, ordinal=ordinal)
        return Report(self._made.report(["report", *flags]))

    def tune(
        self,
        *,
        limit: Size | None = None,
        total: Size | None = None,
        pytorch: str | None = None,
        ordinal: int | None = None,
    ) -> Tuning:
        """The settings under which the job needs least memory."""
        flags = _flags(limit=limit, total=total, pytorch=pytorch, ordinal=ordinal)
        return Tuning(*self._made.ask(["tune", *flags]))

    def replay(
        self,
        *,
        conf: str | None = None,
        limit: Size | None = None,
        total: Size | None = None,
        pytorch: str | None = None,
        ordinal: int | None = None,
        as_release: str | None = None,
    ) -> Replay:
        """The same requests once more: as they were, with other settings (``conf``), or by the rules of another release."""
        flags = _flags(limit=limit, total=total, pytorch=pytorch, ordinal=ordinal, conf=conf)
        flags += _flags(**{"as": as_release})
        return Replay(*self._made.ask(["replay", *flags]))

    def diff(
        self,
        other: Snapshot,
        *,
        top: int | None = None,
        fail_if_peak_grows: str | int | None = None,
        fail_if_reserved_grows: str | int | None = None,
    ) -> Diff:
        """What changed from this one to the other."""
        if not isinstance(other, Snapshot):
            raise UsageError(f"a snapshot is compared with a snapshot, not with {type(other).__name__}")
        flags = _flags(
            top=top, fail_if_peak_grows=fail_if_peak_grows, fail_if_reserved_grows=fail_if_reserved_grows
        )
        return Diff(*self._made.ask(["diff", *flags], other._made))

    def view(self, *, limit: Size | None = None, port: int | None = None) -> Page:
        """The snapshot as a local page, in a notebook inline; it is served until it is closed or forgotten."""
        from ._view import Page

        if port is not None and not (isinstance(port, int) and 0 <= port < 1 << 16):
            raise UsageError(f"a port is a number from 0 to 65535, not {port!r}")
        return Page(self._made.view(None if limit is None else in_bytes(limit), port))

    def plot(
        self,
        *,
        by: str = "purpose",
        limit: Size | None = None,
        title: str | None = None,
        ordinal: int | None = None,
        width: int | None = None,
        height: int | None = None,
        dark: bool = False,
    ) -> Plot:
        """Memory over time as a picture, ``by`` purpose or module: shown in a notebook, or saved as SVG or PNG."""
        from ._plot import Plot

        flags = _flags(by=by, limit=limit, title=title, ordinal=ordinal, width=width, height=height, dark=dark)
        svg, groups, columns, marks = self._made.plot(["plot", "--output=-", *flags])
        return Plot(svg, groups, columns, marks, limit=None if limit is None else in_bytes(limit))

    def save(self, path: str | os.PathLike[str], *, force: bool = False) -> None:
        """Writes it as PyTorch would; packed, if the name ends in ``.zst`` or ``.gz``. Another file is replaced with ``force``."""
        self._made.save(os.fspath(path), force)

    def __str__(self) -> str:
        self._inspected()
        return self._text

    def __repr__(self) -> str:
        events, devices = sum(device.events for device in self.devices), len(self.devices)
        return f"<tonnage snapshot {self.name}: {devices} device{'' if devices == 1 else 's'}, {events:,} events>"

    def _repr_html_(self) -> str:
        from ._notebook import preformatted

        return preformatted(str(self))


def _flags(**options: Any) -> list[str]:
    """Options of a verb, as the command takes them."""
    words = []
    for name, value in options.items():
        if value is None:
            continue
        flag = "--" + name.replace("_", "-")
        if name in ("limit", "total", "fit", "context"):
            value = word(value)
        if value is True:
            words.append(flag)
        elif value is not False:
            words.append(f"{flag}={value}")
    return words
