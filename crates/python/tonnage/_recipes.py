"""Recipes: what training takes, before and after it runs."""

from __future__ import annotations

from . import _tonnage
from ._results import Outcome
from ._snapshot import _flags

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def predict(recipe: str | None = None, **options: Any) -> Outcome:
    """What a recipe would take, to the byte, without running it: ``tonnage.predict("gpt2", batch=8, fit="24GiB")``.

    Options are those of ``tonnage predict``, with ``_`` for ``-``.
    """
    return Outcome(*_tonnage.ask(["predict", *_words(recipe), *_flags(**options)]))


def run(recipe: str | None = None, **options: Any) -> Outcome:
    """Trains a recipe in this machine's memory, and tells what it took. Options are those of ``tonnage run``."""
    return Outcome(*_tonnage.ask(["run", *_words(recipe), *_flags(**options)]))


def _words(recipe: str | None) -> list[str]:
    return [] if recipe is None else [recipe]
