"""What ``tonnage exec`` starts in every Python of a job, before its own program.

In:  the options of ``tonnage.torch.install``, as JSON in the variable ``TONNAGE_EXEC``.
Out: PyTorch on Tonnage's allocator, from its import on; where that cannot be, a sentence and exit status 2.

The folder of this file is first on the path, under the name ``sitecustomize``; one of the program's own is run after it.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def begin(torch: Any) -> None:
    """Installs the allocator. A process that sees no GPU has no need of it."""
    try:
        import tonnage.torch
    except ImportError as error:
        if torch.version.cuda is not None and torch.cuda.device_count() == 0:
            return
        stop(f"{sys.executable} has no tonnage ({error}): pip install tonnage into it")
    if torch.version.cuda is not None and tonnage.torch._gpus(torch) == 0:
        return
    options = os.environ.get("TONNAGE_EXEC")
    if options is None:
        # Someone took it out of the environment, and wants none of it.
        return
    try:
        tonnage.torch.install(**json.loads(options))
    except (tonnage.Error, OSError, TypeError, ValueError) as error:
        stop(str(error))


def stop(sentence: str) -> None:
    """The program does not begin."""
    print(f"error: {sentence}", file=sys.stderr)
    raise SystemExit(2)


def install() -> None:
    """Watches for PyTorch, and gives way to a ``sitecustomize`` of the program's own."""
    import tonnage_after_import

    # `tonnage exec` looks whether any Python came by.
    with contextlib.suppress(OSError):
        os.close(os.open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "came_by"), os.O_CREAT, 0o600))
    tonnage_after_import.AfterImport("torch", begin).install()
    tonnage_after_import.give_way(__file__)


if __name__ == "sitecustomize":
    install()
