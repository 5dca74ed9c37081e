"""What ``tonnage exec`` starts in every Python of a job, before its own program.

In:  the options of ``tonnage.torch.install``, as JSON in the variable ``TONNAGE_EXEC``.
Out: PyTorch on Tonnage's allocator, from its import on; where that cannot be, a sentence and exit status 2.

The folder of this file is first on the path, under the name ``sitecustomize``; one of the program's own is run after it.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import json
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def begin(torch: Any) -> None:
    """Installs the allocator. A process that sees no GPU has no need of it."""
    if torch.version.cuda is not None and torch.cuda.device_count() == 0:
        return
    try:
        import tonnage.torch
    except ImportError as error:
        stop(f"{sys.executable} has no tonnage ({error}): pip install tonnage into it")
    try:
        tonnage.torch.install(**json.loads(os.environ["TONNAGE_EXEC"]))
    except tonnage.Error as error:
        stop(str(error))


def stop(sentence: str) -> None:
    """The program does not begin."""
    print(f"error: {sentence}", file=sys.stderr)
    raise SystemExit(2)


def install() -> None:
    """Watches for PyTorch, and gives way to a ``sitecustomize`` of the program's own."""
    here = os.path.dirname(os.path.abspath(__file__))
    import tonnage_after_import

    tonnage_after_import.AfterImport("torch", begin).install()
    sys.path[:] = [folder for folder in sys.path if os.path.abspath(folder) != here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize")
    if spec is not None and spec.loader is not None:
        # A module of its own, which knows its own file: it may be another hook of ours, as in `tonnage record -- tonnage exec …`.
        sys.modules["sitecustomize"] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)


if __name__ == "sitecustomize":
    install()
