"""The command, as ``tonnage`` and as ``python -m tonnage``."""

from __future__ import annotations

import signal
import sys


def version() -> str:
    """The wheel, and the PyTorch that it sees."""
    from importlib import metadata

    import tonnage

    try:
        torch = f"PyTorch {metadata.version('torch')}"
    except metadata.PackageNotFoundError:
        torch = "no PyTorch"
    python = ".".join(map(str, sys.version_info[:3]))
    return f"tonnage {tonnage.__version__} (wheel, Python {python}, {torch})"


def leave_signals() -> None:
    """As any program of the system: Ctrl-C ends this one at once, unless whoever started it has it ignored. Rust's own
    handlers come on top."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def main() -> int:
    """Runs the command with the words of this process, and returns its exit status."""
    words = sys.argv[1:]
    if words in (["--version"], ["-V"]):
        print(version())
        return 0
    # What is behind `--` is not for us.
    own = words[: words.index("--")] if "--" in words else words
    if any(it.split("=")[0] == "--ray" for it in own):
        if own[:2] == ["fleet", "report"]:
            from tonnage import fleet

            return fleet._command(words[2:])
        if own[:1] == ["predict"]:
            from tonnage.torch import _ranks

            return _ranks._command(words[1:])
    from tonnage import _tonnage

    leave_signals()
    return _tonnage.command(["tonnage", *words])


if __name__ == "__main__":
    sys.exit(main())
