"""Runs inside a script whose memory `tonnage predict` asks for: Python imports this before the script begins.

Once PyTorch is imported its allocator's history is switched on; when the process ends, figures, history and the
exception that ended it, if any, are written where the command looks for them. What the script changes among files is
written down. The script's own `sitecustomize`, if there is one, runs as well. Nothing here allocates on the device.
"""

import atexit
import ctypes
import functools
import json
import os
import resource
import sys
import time

import tonnage_files

FOLDER = os.path.dirname(os.path.abspath(__file__))
OUT = os.environ.get("TONNAGE_OUT")


class Watch:
    """What one process did with the device."""

    def __init__(self, torch):
        self.torch = torch
        self.process = os.getpid()
        self.error = None
        self.done = False
        self.began, self.host_before = time.time(), 0
        self.counted = Counted(torch)
        self.asked = Asked(torch)
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
        """The device is initialised, perhaps in a child of the process that imported PyTorch: from now on everything is
        written down."""
        stacks = os.environ.get("TONNAGE_STACKS") == "1"
        self.began, self.host_before = time.time(), host_memory()
        self.process = os.getpid()
        # Whoever finds this without an answer knows that the process was ended before it could tell.
        open(os.path.join(OUT, f"{self.process}.began"), "w").close()
        memory = self.torch.cuda.memory
        memory._record_memory_history(
            enabled="all", context="alloc" if stacks else None, stacks="python", max_entries=sys.maxsize
        )
        # The script may record too: it gets this history, which has more, and none is lost.
        memory._record_memory_history = lambda *args, **kwargs: None

    def failed(self, kind, error, trace):
        self.error = {"type": kind.__name__, "message": str(error)[:4000], "line": line_of(trace)}
        self.chained(kind, error, trace)

    def leave_at_once(self, code):
        try:
            self.finish()
        finally:
            self.leave(code)

    def finish(self):
        torch = self.torch
        if self.done or os.getpid() != self.process or not torch.cuda.is_initialized():
            return
        self.done = True
        torch.cuda.synchronize()
        devices = {number: self.counted.whole(number) for number in used_devices(torch)}
        device = max(devices, key=lambda number: reserved(devices[number]), default=0)
        stats = devices.pop(device, {})
        snapshot = os.path.join(OUT, f"{self.process}.pickle")
        torch.cuda.memory._dump_snapshot(snapshot)
        answer = {
            "process": self.process,
            "torch": str(torch.__version__),
            "device": device,
            "elsewhere": [
                {"device": number, "reserved": reserved(of)} for number, of in devices.items() if reserved(of)
            ],
            "stats": {key: int(value) for key, value in stats.items()},
            "error": self.error,
            "share": share_of(torch),
            "compiled": "torch._inductor.compile_fx" in sys.modules,
            "given_out": given_out(device),
            "asked": self.asked.line,
            "host": [self.host_before, host_memory()],
            "began": self.began,
            "ended": time.time(),
            "snapshot": snapshot,
        }
        partly = os.path.join(OUT, f"{self.process}.part")
        with open(partly, "w") as file:
            json.dump(answer, file)
        os.replace(partly, os.path.join(OUT, f"{self.process}.json"))
        if "tonnage_world" in sys.modules:
            sys.modules["tonnage_world"].leave(torch)


def used_devices(torch):
    """Numbers of all devices: a rank of a job sees those of its host, and uses one."""
    return range(max(getattr(torch.cuda, "device_count", lambda: 1)(), 1))


def stats_of(torch, number):
    """PyTorch's figures of a device."""
    return torch.cuda.memory_stats(number) if len(used_devices(torch)) > 1 else torch.cuda.memory_stats()


def reserved(stats):
    return int(stats.get("reserved_bytes.all.peak", 0))


class Asked:
    """Whether the script asks how much memory there is: it may then take a share of it, which differs from card to card."""

    def __init__(self, torch):
        self.line = None
        for module in (torch.cuda, getattr(torch.cuda, "memory", None)):
            for name in ("mem_get_info", "get_device_properties"):
                if hasattr(module, name):
                    setattr(module, name, self.noted(getattr(module, name), name))

    def noted(self, function, name):
        @functools.wraps(function)
        def noted(*args, **kwargs):
            if self.line is None:
                self.line = asking_line(sys._getframe(1), name)
            return function(*args, **kwargs)

        return noted


def asking_line(frame, function):
    """The line that asks; nothing where PyTorch, or what compiles for it, asks for itself, or asks for something else."""
    own = frame.f_globals.get("__name__", "").split(".")[0]
    if own in ("torch", "triton") or (function != "mem_get_info" and "total_memory" not in frame.f_code.co_names):
        return None
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


class Counted:
    """Figures of the whole run, of a script that sets some of them back on its way."""

    PEAKS = ("_cuda_resetPeakMemoryStats", "_accelerator_resetPeakStats")
    SUMS = ("_cuda_resetAccumulatedMemoryStats", "_accelerator_resetAccumulatedStats")

    def __init__(self, torch):
        self.torch = torch
        # By device.
        self.peaks, self.sums = {}, {}
        inside = getattr(torch, "_C", None)
        for names, keep in ((self.PEAKS, self.keep_peaks), (self.SUMS, self.keep_sums)):
            for name in names:
                if hasattr(inside, name):
                    setattr(inside, name, self.kept_before(getattr(inside, name), keep))

    def kept_before(self, reset, keep):
        def kept(*args):
            if self.torch.cuda.is_initialized():
                number = args[0] if args and isinstance(args[0], int) else self.torch.cuda.current_device()
                keep(number, stats_of(self.torch, number))
            return reset(*args)

        return kept

    def keep_peaks(self, number, stats):
        peaks = self.peaks.setdefault(number, {})
        for name, value in stats.items():
            if name.endswith(".peak"):
                peaks[name] = max(value, peaks.get(name, 0))

    def keep_sums(self, number, stats):
        sums = self.sums.setdefault(number, {})
        for name, value in stats.items():
            if name.endswith((".allocated", ".freed")) or name in ("num_alloc_retries", "num_ooms"):
                sums[name] = value + sums.get(name, 0)

    def whole(self, number):
        peaks, sums = self.peaks.get(number, {}), self.sums.get(number, {})
        stats = stats_of(self.torch, number)
        return {name: max(value, peaks.get(name, value)) + sums.get(name, 0) for name, value in stats.items()}


def host_memory():
    """Most bytes of the host's memory that this process had so far."""
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def given_out(device):
    """Most bytes of the device that were given out at once: to PyTorch, and to whoever asks beside it."""
    core = os.environ.get("TONNAGE_CORE")
    if not core:
        return 0
    most = ctypes.CDLL(core).tonnage_fake_most
    most.argtypes, most.restype = [ctypes.c_int], ctypes.c_uint64
    return most(device)


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
    own = [line for line in lines if "site-packages" not in line[0] and not line[0].startswith(("<", FOLDER))]
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


def with_torch(torch):
    tonnage_files.watch_torch(torch)
    Watch(torch)
    if os.environ.get("TONNAGE_WORLD") == "1":
        import tonnage_world

        tonnage_world.install(torch)


if OUT:
    from tonnage_after_import import AfterImport

    tonnage_files.install()
    AfterImport("torch", with_torch).install()
    AfterImport("safetensors", tonnage_files.watch_safetensors).install()
run_the_next()
