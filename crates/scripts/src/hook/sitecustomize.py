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

import tonnage_births
import tonnage_files

FOLDER = os.path.dirname(os.path.abspath(__file__))
OUT = os.environ.get("TONNAGE_OUT")
VALUES = os.environ.get("TONNAGE_VALUES") == "1"
"""Whether values are computed in this run: its figures do not count, and nobody looks at its history."""

CORE = os.environ.get("TONNAGE_CORE")
"""The library with behaviour."""

COMPILERS_END = 5.0
"""Seconds that whoever compiles for a script has to end when that does: chosen, several times what it takes if it has begun."""

CAUSES = 100
"""So many are looked at of an exception: chosen, more than any has."""


class Watch:
    """What one process did with the device."""

    ours = None
    """Of this process, once it has imported PyTorch."""

    def __init__(self, torch):
        Watch.ours = self
        self.torch = torch
        self.process = os.getpid()
        self.error = None
        # Why there are no figures: another allocator is in the place of PyTorch's, which has neither these nor a history.
        self.untold = None
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
        if VALUES:
            import tonnage_values

            tonnage_values.install_or_say(torch)

    def begin(self):
        """The device is initialised, perhaps in a child of the process that imported PyTorch: from now on everything is
        written down."""
        stacks = os.environ.get("TONNAGE_STACKS") == "1"
        self.began, self.host_before = time.time(), host_memory()
        self.process = os.getpid()
        self.asked.watch_runtime()
        # Whoever finds this without an answer knows that the process was ended before it could tell.
        open(os.path.join(OUT, f"{self.process}.began"), "w").close()
        if VALUES:
            return
        memory = self.torch.cuda.memory
        try:
            memory._record_memory_history(
                enabled="all", context="alloc" if stacks else None, stacks="python", max_entries=sys.maxsize
            )
        except RuntimeError as error:
            self.untold = first_line(error)
        # The script may record too: it gets this history, which has more, and none is lost.
        memory._record_memory_history = lambda *args, **kwargs: None

    def failed(self, kind, error, trace):
        self.note(error, trace)
        self.chained(kind, error, trace)

    def note(self, error, trace):
        """The exception that ends this process."""
        cause = memory_behind(error)
        if cause is not None:
            error, trace = cause, cause.__traceback__
        self.error = {"type": type(error).__name__, "message": str(error)[:4000], "line": line_of(trace)}

    def leave_at_once(self, code):
        try:
            self.finish()
            if self.done and os.getpid() == self.process:
                # Nothing of C's library runs any more that could tell.
                with open(self.status_file(), "w") as file:
                    file.write(f"{code}\n")
        finally:
            self.leave(code)

    def status_file(self):
        return os.path.join(OUT, f"{self.process}.status")

    def finish(self):
        torch = self.torch
        if self.done or os.getpid() != self.process or not torch.cuda.is_initialized():
            return
        self.done = True
        torch.cuda.synchronize()
        devices, snapshot = {}, None if VALUES else os.path.join(OUT, f"{self.process}.pickle")
        try:
            devices = {number: self.counted.whole(number) for number in used_devices(torch)}
            if snapshot:
                torch.cuda.memory._dump_snapshot(snapshot)
        except RuntimeError as error:
            devices, snapshot, self.untold = {}, None, first_line(error)
        device = max(devices, key=lambda number: reserved(devices[number]), default=0)
        stats = devices.pop(device, {})
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
            "compiled": has_compiled(),
            "given_out": given_out(device),
            "given": {number: given for number in used_devices(torch) if (given := given_out(number))},
            "asked": self.asked.line,
            "host": [self.host_before, host_memory()],
            "began": self.began,
            "ended": time.time(),
            "snapshot": snapshot,
            "untold": self.untold,
        }
        partly = os.path.join(OUT, f"{self.process}.part")
        with open(partly, "wb") as file:
            # Names of files need not be text: what is none is told as a question mark.
            file.write(json.dumps(answer, ensure_ascii=False).encode("utf-8", "replace"))
        os.replace(partly, os.path.join(OUT, f"{self.process}.json"))
        if CORE:
            ctypes.CDLL(CORE).tonnage_fake_status_to(self.status_file().encode())
        if "tonnage_world" in sys.modules:
            sys.modules["tonnage_world"].leave(torch)


def watch_multiprocessing(multiprocessing):
    """What ends a process that `multiprocessing` begins is caught there, and never comes to `sys.excepthook`."""
    kind = multiprocessing.process.BaseProcess
    original = kind._bootstrap

    @functools.wraps(original)
    def bootstrap(self, *args, **kwargs):
        # Of the process itself: classes of programs have one of their own.
        self.run = noting_errors(self.run)
        return original(self, *args, **kwargs)

    kind._bootstrap = bootstrap


def watch_compilers(subproc_pool):
    """Those that compile for `torch.compile` may never end where a script is done before they have begun, as scripts are here: they are
    waited for five minutes then. Nothing comes of them any more."""
    pool = getattr(subproc_pool, "SubprocPool", None)
    shutdown = getattr(pool, "shutdown", None)
    if shutdown is None:
        return

    @functools.wraps(shutdown)
    def hastened(self):
        process = getattr(self, "process", None)
        if hasattr(process, "wait") and hasattr(process, "kill"):
            process.wait = soon_or_killed(process, process.wait)
        return shutdown(self)

    pool.shutdown = hastened


def soon_or_killed(process, wait):
    def waited(timeout=None):
        from subprocess import TimeoutExpired

        try:
            return wait(COMPILERS_END)
        except TimeoutExpired:
            process.kill()
            return wait()

    return waited


def noting_errors(run):
    @functools.wraps(run)
    def noted():
        try:
            run()
        except BaseException as error:
            ending = error
            if isinstance(error, SystemExit):
                # `torch.multiprocessing.spawn` catches what its function raises, and leaves with a status because of it.
                ending = error.__context__ if error.code else None
            if Watch.ours is not None and ending is not None:
                Watch.ours.note(ending, ending.__traceback__)
            raise

    return noted


def memory_behind(error):
    """Want of memory, of which the program says that it raised the exception because of it; nothing if it says no such thing."""
    # Causes may go in circles.
    for _ in range(CAUSES):
        if error is None or type(error).__name__ == "OutOfMemoryError":
            return error
        error = error.__cause__
    return None


def has_compiled():
    """Whether `torch.compile` compiled something: libraries import it that need not use it."""
    counters = getattr(sys.modules.get("torch._dynamo.utils"), "counters", None)
    return "torch._inductor.compile_fx" in sys.modules and (counters is None or any(counters.values()))


def first_line(error):
    return str(error).strip().split("\n")[0][:400]


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

    MEMORY = ("mem_get_info", "get_memory_info", "cudaMemGetInfo")
    """What tells of nothing but memory."""

    def __init__(self, torch):
        self.line, self.torch = None, torch
        accelerator = getattr(torch, "accelerator", None)
        for module in (torch.cuda, getattr(torch.cuda, "memory", None), accelerator, getattr(accelerator, "memory", None)):
            for name in (*self.MEMORY, "get_device_properties"):
                if hasattr(module, name):
                    setattr(module, name, self.noted(getattr(module, name), name))

    def watch_runtime(self):
        """Functions of the runtime that PyTorch passes on, which are there once the device is."""
        runtime = getattr(getattr(self.torch, "_C", None), "_cudart", None)
        if hasattr(runtime, "cudaMemGetInfo"):
            runtime.cudaMemGetInfo = self.noted(runtime.cudaMemGetInfo, "cudaMemGetInfo")

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
    if own in ("torch", "triton") or (function not in Asked.MEMORY and "total_memory" not in frame.f_code.co_names):
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
    """Most bytes of the host's memory that this process had so far; `getrusage` would tell of whoever began it, too."""
    try:
        with open("/proc/self/status", "rb") as file:
            return 1024 * next(int(line.split()[1]) for line in file if line.startswith(b"VmHWM:"))
    except (OSError, StopIteration):
        return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def given_out(device):
    """Most bytes of the device that were given out at once: to PyTorch, and to whoever asks beside it."""
    if not CORE:
        return 0
    most = ctypes.CDLL(CORE).tonnage_fake_most
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
        # Code that was made without lines has none.
        lines.append((code.co_filename, trace.tb_lineno or 0, code.co_name))
        trace = trace.tb_next
    packages = ("site-packages", "dist-packages")
    own = [it for it in lines if not any(name in it[0] for name in packages) and not it[0].startswith(("<", FOLDER))]
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
    finally:
        # One that fails is told by Python, which goes on: what is imported later is still found.
        sys.path.append(FOLDER)


def with_torch(torch):
    tonnage_files.watch_torch(torch)
    Watch(torch)
    if os.environ.get("TONNAGE_WORLD") == "1":
        import tonnage_world

        tonnage_world.install(torch)


if OUT:
    from tonnage_after_import import AfterImport

    tonnage_births.install()
    tonnage_files.install()
    AfterImport("torch", with_torch).install()
    AfterImport("multiprocessing", watch_multiprocessing).install()
    AfterImport("torch._inductor.compile_worker.subproc_pool", watch_compilers).install()
    AfterImport("safetensors", tonnage_files.watch_safetensors).install()
run_the_next()
