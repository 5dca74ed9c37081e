"""Sizes of memory: ``"24GiB"`` or bytes."""

from __future__ import annotations

from . import _tonnage
from ._errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TypeAlias

Size: TypeAlias = "int | str"


def word(size: Size) -> str:
    """As the command takes it."""
    if isinstance(size, bool) or not isinstance(size, (int, str)):
        raise UsageError(f"a size is a number of bytes or a text such as '24GiB', not {size!r}")
    return str(size)


def in_bytes(size: Size) -> int:
    """As a number."""
    return _tonnage.parse_size(word(size))


def show(size: int) -> str:
    """As people read it."""
    return f"-{show(-size)}" if size < 0 else _tonnage.show_size(size)
