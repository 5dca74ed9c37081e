"""What the hooks of a job share, in Pythons that need not have tonnage installed: a function that is called once a module has
been imported, and the way on to the program's own ``sitecustomize``.

In:  the name of a module, and the function. Out: the function's call, with the module, before whoever imports it goes on.

This file stands by itself, as ``_record.py`` does.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any


class AfterImport(importlib.abc.MetaPathFinder):
    """Waits for a module to be imported. Whoever only asks whether it is there changes nothing."""

    def __init__(self, name: str, call: Callable[[ModuleType], None]) -> None:
        self._name = name
        self._call = call
        self._asks = False

    def install(self) -> None:
        """Waits from now on."""
        sys.meta_path.insert(0, self)

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        # Whoever imports a module of a package says where that lies.
        if name != self._name or (path is not None) != ("." in name) or self._asks:
            return None
        # Others find it, as they would without this.
        self._asks = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._asks = False
        if spec is not None and hasattr(spec.loader, "exec_module"):
            spec.loader = _Loader(spec.loader, self)  # type: ignore[assignment]
        return spec

    def imported(self, module: ModuleType) -> None:
        """The module is there: nothing more is waited for."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)
        call, self._call = self._call, _nothing
        call(module)


def _nothing(module: ModuleType) -> None:
    """Called when a module is there that was there before, such as one of two that were found at once."""


def give_way(file: str) -> None:
    """Runs the ``sitecustomize`` that stands behind the one in this file, as if that were not there."""
    here = os.path.dirname(os.path.abspath(file))
    sys.path[:] = [folder for folder in sys.path if os.path.abspath(folder) != here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize")
    if spec is not None and spec.loader is not None:
        # A module of its own, which knows its own file: it may be another hook of ours, as in `tonnage record -- tonnage exec …`.
        sys.modules["sitecustomize"] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)


class _Loader:
    """A module's own loader, in all but that it says when it has loaded."""

    def __init__(self, loader: Any, after: AfterImport) -> None:
        self._loader = loader
        self._after = after

    def __getattr__(self, name: str) -> Any:
        # Sources, data, resources: whatever is asked of a module before it is loaded. A copy has no loader yet.
        loader = self.__dict__.get("_loader")
        if loader is None:
            raise AttributeError(name)
        return getattr(loader, name)

    def exec_module(self, module: ModuleType) -> None:
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        module.__loader__ = self._loader
        self._loader.exec_module(module)
        self._after.imported(module)
