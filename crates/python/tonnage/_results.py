"""What is answered: attributes, the documented JSON, the terminal's text, and a picture for notebooks."""

from __future__ import annotations

import json
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from . import _tonnage


class Record:
    """A JSON object with its keys as attributes: ``report.verdict.bytes``."""

    def __init__(self, data: dict[str, Any]) -> None:
        self._data = data

    def __getattr__(self, name: str) -> Any:
        try:
            return wrap(self.__dict__["_data"][name])
        except KeyError:
            known = ", ".join(sorted(self.__dict__.get("_data", ())))
            raise AttributeError(f"no `{name}` here: there are {known}") from None

    def __getitem__(self, name: str) -> Any:
        return wrap(self._data[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._data)

    def __len__(self) -> int:
        return len(self._data)

    def __contains__(self, name: object) -> bool:
        return name in self._data

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self._data]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Record) and self._data == other._data

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        inside = ", ".join(f"{key}={value!r}" for key, value in self._data.items())
        return f"{type(self).__name__}({inside[:200]}{'…' if len(inside) > 200 else ''})"

    def to_dict(self) -> dict[str, Any]:
        """As plain dictionaries and lists."""
        return self._data


def wrap(value: Any) -> Any:
    """Objects as records, also inside lists."""
    if isinstance(value, dict):
        return Record(value)
    if isinstance(value, list):
        return [wrap(item) for item in value]
    return value


class Result(Record):
    """What a question was answered with.

    Attributes are the fields of the documented JSON (``tonnage schema``), ``to_dict()`` is all of it, ``str()`` what the
    command prints.
    """

    def __init__(self, text: str, data: str, negative: bool = False) -> None:
        super().__init__(json.loads(data))
        self._text = text
        self._json = data
        self._negative = negative

    def __str__(self) -> str:
        return self._text

    def __bool__(self) -> bool:
        """Whether the command's exit status would be 0: it fits, it is exact, nothing grew."""
        return not self._negative

    def to_json(self) -> str:
        """The documented JSON."""
        return self._json

    def _repr_html_(self) -> str:
        from ._notebook import preformatted

        return preformatted(self._text)


class Report(Result):
    """What limits a job's memory, why, and what to change."""

    device: int
    events: int
    history: str
    conf: str
    limit: int | None
    total: int | None
    verdict: Record
    causes: list[Record]
    waste: Record
    blame: Any
    peak: Any
    growth: Any
    failed_requests: int
    ooms: list[Record]
    failure: Record | None
    advice: list[Record]
    settings: Record | None
    pinned: Record | None
    notes: list[str]

    def __init__(self, made: _tonnage.Report) -> None:
        self._made = made
        super().__init__("", made.json())
        self._whole = self._data
        self._data = self._whole["files"][0]["report"]

    def __str__(self) -> str:
        return self._made.text()

    def to_dict(self) -> dict[str, Any]:
        """The documented JSON, with the file's name around the report."""
        return self._whole

    def to_html(self) -> str:
        """One page that needs nothing else, with drawings."""
        return self._made.html()

    def save(self, path: str | os.PathLike[str], *, force: bool = False) -> None:
        """Writes that page to a file. Another file is replaced with ``force``."""
        from . import _tonnage

        _tonnage.write_file(os.fspath(path), self.to_html().encode(), force)

    def _repr_html_(self) -> str:
        from ._notebook import document

        return document(self.to_html())


class Tuning(Result):
    """Settings, best first."""

    schema: int
    file: str
    device: int
    release: str
    events: int
    floor: int
    limit: int | None
    fits: bool
    known: Any
    recorded: str
    saving: int
    need: Record | None
    candidates: list[Record]
    inferred: list[str]
    limit_in_force: Record | None
    failure: Record | None
    lead: Record | None


class Replay(Result):
    """A recording through the engine: as it was, under other settings, or by the rules of another release (``kind``)."""

    schema: int
    kind: str
    file: str
    device: int
    events: int


class Diff(Result):
    """What changed between two snapshots."""

    schema: int
    a: str
    b: str
    grown: list[Record] | None
    settings: list[Record]
    devices: list[Record]


class Outcome(Result):
    """What a recipe takes, or would take; with ``error`` if memory does not suffice."""

    schema: int
    recipe: str
    device: str
    limit: int | None
