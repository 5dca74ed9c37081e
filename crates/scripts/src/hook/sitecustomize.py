"""Runs inside a script whose memory `tonnage predict` asks for: Python imports this before the script begins.

Once PyTorch is imported its allocator's history is switched on; when the process ends, figures, history and the
exception that ended it, if any, are written where the command looks for them. The script's own `sitecustomize`, if
there is one, runs as well. Nothing here allocates on the device.
"""

import atexit
import json
import os
import sys

FOLDER = os.path.dirname(os.path.abspath(__file__))
OUT = os.environ.get("TONNAGE_OUT")


class Watch:
    """What one process did with the device."""

    def __init__(self, torch):
        self.torch = torch
        self.process = os.getpid()
        self.error = None
        self.done = False
        torch.cuda._lazy_call(self.begin)
        self.chained = sys.excepthook
        sys.excepthook = self.failed
        atexit.register(self.finish)
        self.leave = os._exit
        os._exit = self.leave_at_once
        if os.environ.get("TONNAGE_VALUES") == "1":
            import tonnage_values

            tonnage_values.install_or_say(torch)

    def begin(self):
        """The device is initialised: from now on everything is written down."""
        stacks = os.environ.get("TONNAGE_STACKS") == "1"
        self.torch.cuda.memory._record_memory_history(
            enabled="all", context="alloc" if stacks else None, stacks="python", max_entries=sys.maxsize
        )

    def failed(self, kind, error, trace):
        self.error = {"type": kind.__name__, "message": str(error)[:4000], "line": line_of(trace)}
        self.chained(kind, error, trace)

    def leave_at_once(self, code):
        self.finish()
        self.leave(code)

    def finish(self):
        torch = self.torch
        if self.done or os.getpid() != self.process or not torch.cuda.is_initialized():
            return
        self.done = True
        torch.cuda.synchronize()
        stats = torch.cuda.memory_stats()
        snapshot = os.path.join(OUT, f"{self.process}.pickle")
        torch.cuda.memory._dump_snapshot(snapshot)
        answer = {
            "process": self.process,
            "torch": str(torch.__version__),
            "stats": {key: int(value) for key, value in stats.items()},
            "error": self.error,
            "share": share_of(torch),
            "compiled": "torch._inductor.compile_fx" in sys.modules,
            "snapshot": snapshot,
        }
        partly = os.path.join(OUT, f"{self.process}.part")
        with open(partly, "w") as file:
            json.dump(answer, file)
        os.replace(partly, os.path.join(OUT, f"{self.process}.json"))


def share_of(torch):
    """The share of the device that the script allows itself; not every release tells."""
    try:
        return float(torch.cuda.get_per_process_memory_fraction())
    except (AttributeError, RuntimeError):
        return 1.0


def line_of(trace):
    """The innermost line of the program's own, or the innermost at all."""
    lines = []
    while trace is not None:
        code = trace.tb_frame.f_code
        lines.append((code.co_filename, trace.tb_lineno, code.co_name))
        trace = trace.tb_next
    own = [line for line in lines if "site-packages" not in line[0] and not line[0].startswith("<")]
    return list((own or lines or [None])[-1] or ()) or None


def run_the_next():
    """Another `sitecustomize`, which this one hides."""
    if FOLDER in sys.path:
        sys.path.remove(FOLDER)
    own = sys.modules.pop("sitecustomize", None)
    try:
        import sitecustomize  # noqa: F401
    except ImportError as error:
        if error.name != "sitecustomize":
            raise
        if own is not None:
            sys.modules["sitecustomize"] = own
    sys.path.append(FOLDER)


if OUT:
    from tonnage_after_import import AfterImport

    AfterImport("torch", Watch).install()
run_the_next()
