"""PyTorch on Tonnage's allocator: ``tonnage.torch.install()`` before the first use of a GPU.

>>> import tonnage.torch
>>> tonnage.torch.install(policy="pages", limit="20GiB")

From then on PyTorch's own calls answer as before: statistics, snapshots, history, pools, graphs, ``OutOfMemoryError``. A shim
in C++ stands in the place of PyTorch's allocator class; it is built when it is first needed. Where there is no compiler,
PyTorch's pluggable interface serves, with the limits that ``Status.limits`` tells.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import threading
import time
import warnings
from dataclasses import dataclass, field

from .. import _record, _sizes, _tonnage
from .._errors import Error, UsageError
from . import _shim
from ._shim import NoCompiler

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

#: Releases of PyTorch whose allocator class is known, oldest and newest.
OLDEST, NEWEST = (2, 9), (2, 15)

#: Placement rules.
POLICIES = ("pages", "pytorch")

#: What PyTorch's pluggable interface has no room for.
PLUGGABLE_LIMITS = (
    "torch.cuda.memory_stats() and what is derived from it, memory_snapshot() and the history raise",
    "CUDA graphs, torch.compile(mode=\"reduce-overhead\") and MemPool have no pools of their own: do not use them",
    "running out of memory raises RuntimeError with PyTorch's words, not torch.OutOfMemoryError",
    "streams that are not PyTorch's own must live as long as the program",
    "with pages (the policy \"pages\", or expandable segments) GPUs of one process do not reach each other's memory",
)


class InstallError(Error, RuntimeError):
    """The allocator cannot be installed; the sentence says what to do."""


class CallbackError(Error, RuntimeError):
    """A function of the program's, such as the allocator behind a ``MemPool``, failed while memory was changed."""


@dataclass(frozen=True)
class Status:
    """How PyTorch's memory is managed."""

    #: Whether Tonnage does it.
    installed: bool
    #: ``shim`` or ``pluggable``; empty if it does not.
    way: str = ""
    #: The placement rules.
    policy: str = ""
    #: Most bytes to obtain from each device, if there is a limit.
    limit: int | None = None
    #: PyTorch's version.
    torch: str = ""
    #: The shim's file.
    library: str = ""
    #: What does not work, and why.
    limits: tuple[str, ...] = ()
    #: Devices whose memory is given back now.
    paused: tuple[int, ...] = ()
    #: Tags whose memory is.
    paused_tags: tuple[str, ...] = ()


@dataclass
class _State:
    """What this process has installed."""

    status: Status = field(default_factory=lambda: Status(installed=False))
    options: tuple[Any, ...] = ()
    recording: Any = None
    #: GPUs that PyTorch sees.
    gpus: int = 0
    #: The shim, if that is the way.
    shim: Any = None
    # Whatever C++ keeps pointers to.
    kept: list[Any] = field(default_factory=list)
    tags: _Tags = field(default_factory=lambda: _Tags())


class _Tags:
    """PyTorch's pools that hold what is allocated under tags. A pool takes the requests of one ``with`` at a time, so that a tag
    has as many as were needed at once."""

    def __init__(self) -> None:
        # The collector of garbage may end a `with` of a tag at any moment, also while its own thread has the lock. So that may be
        # taken again, and whoever has it finds more in these lists than a moment before.
        self.lock = threading.RLock()
        # Held while pools are made, paused or resumed: a tag is paused with all its pools, and with those that it gets meanwhile.
        self._changing = threading.RLock()
        self.pools: dict[tuple[str, int], list[Any]] = {}
        self.idle: dict[tuple[str, int], list[Any]] = {}

    def take(self, torch: Any, name: str, number: int) -> Any:
        with self.lock:
            with contextlib.suppress(IndexError):
                return self.idle.setdefault((name, number), []).pop()
        with self.changing():
            with torch.cuda.device(number):
                pool = torch.cuda.MemPool()
            # What goes there is no part of a graph capture, which PyTorch up to 2.12 takes every pool in use for. While the tag is
            # paused, nothing goes there.
            _tonnage.tag_pool(number, tuple(pool.id), name)
            with self.lock:
                self.pools.setdefault((name, number), []).append(pool)
        return pool

    @contextlib.contextmanager
    def changing(self) -> Iterator[None]:
        # The allocator of a MemPool must not wait for whoever waits for it: this is refused there.
        _tonnage.paused_pools()
        with self._changing:
            yield

    def put_back(self, name: str, number: int, pool: Any) -> None:
        with self.lock:
            self.idle[name, number].append(pool)

    def ids(self, name: str, number: int) -> list[tuple[int, int]]:
        with self.lock:
            found = list(self.pools.get((name, number), []))
            known = sorted({name for name, on in list(self.pools) if on == number})
        if not found:
            there = f"there is {', '.join(map(repr, known))}" if known else "there is none"
            raise UsageError(f"nothing was allocated on GPU {number} under the tag {name!r}: {there}")
        return [(int(first), int(second)) for first, second in (pool.id for pool in found)]

    def paused(self) -> tuple[str, ...]:
        paused = set(_tonnage.paused_pools())
        with self.lock:
            names = [
                name
                for (name, number), pools in list(self.pools.items())
                if any((number, tuple(pool.id)) in paused for pool in list(pools))
            ]
        return tuple(dict.fromkeys(names))


_state = _State()


class _Options(ctypes.Structure):
    """As ``shim/tonnage.h`` has it."""

    _fields_ = (
        ("device", ctypes.c_char_p),
        ("devices", ctypes.c_uint32),
        ("capacity", ctypes.c_uint64),
        ("policy", ctypes.c_char_p),
        ("settings", ctypes.c_char_p),
        ("release", ctypes.c_char_p),
        ("limit", ctypes.c_uint64),
        ("publish", ctypes.c_uint8),
    )


def install(
    policy: str = "pages",
    conf: str | None = None,
    limit: int | str | None = None,
    history: bool | int | str | os.PathLike[str] | None = None,
    *,
    fallback: bool = True,
    publish: bool = True,
) -> Status:
    """Lets Tonnage manage the GPU memory of this process, before the first use of a GPU.

    ``policy`` has the placement rules: ``pages`` gives waste back by moving pages of memory, ``pytorch`` does what PyTorch
    does. ``conf`` are PyTorch's settings, as in ``PYTORCH_ALLOC_CONF``; ``limit`` the most to obtain from each device, such as
    ``20GiB``. ``history`` records one, as ``tonnage.record`` does: True, a number of entries, or a path for the snapshot; it is
    saved when memory runs out. Without ``fallback``, a missing compiler is an error. ``publish`` shows the process in
    ``tonnage top``.
    """
    options = (policy, conf, limit, None if history is None else str(history), fallback, publish)
    if _state.status.installed:
        if options == _state.options:
            return status()
        raise InstallError("Tonnage's allocator is installed already, with other options: install it once in a process")
    bytes_limit = _sizes.in_bytes(limit) if limit is not None else None
    if policy.split(",")[0] not in POLICIES:
        raise UsageError(f"there is no policy {policy!r}: take one of {', '.join(POLICIES)}")
    torch = _checked_torch()
    try:
        path = _shim.library(torch)
    except NoCompiler as error:
        if not fallback:
            raise
        # What cannot be had with it is no reason to fail, but must be known.
        print(f"tonnage: {error}\ntonnage: PyTorch's pluggable interface is used instead; its limits:", file=sys.stderr)
        for text in PLUGGABLE_LIMITS:
            print(f"tonnage:   {text}", file=sys.stderr)
        if history is not None and history is not False:
            print("tonnage:   no history is recorded, whatever `history` says", file=sys.stderr)
        return _install_pluggable(torch, policy, conf, bytes_limit, options, publish)
    _install_shim(torch, path, policy, conf, bytes_limit, publish)
    _state.options = options
    _state.status = Status(
        True, "shim", policy, bytes_limit, torch.__version__, path, _limits(policy, torch.__version__)
    )
    if history is not None and history is not False:
        _begin_history(torch, history)
    return status()


def status() -> Status:
    """How PyTorch's memory is managed now."""
    from dataclasses import replace

    if not _state.status.installed:
        return _state.status
    return replace(_state.status, paused=tuple(_tonnage.paused_devices()), paused_tags=_state.tags.paused())


def _limits(policy: str, version: str) -> tuple[str, ...]:
    limits = [
        "a torch.cuda.ExternalStream that a graph is captured on, or whose last tensor goes while one is, must live as long as the "
        "program",
        "memory of expandable segments of another process cannot be opened: let it share memory without them",
    ]
    if policy.startswith("pages"):
        limits += [
            'MemPool(allocator=…) is refused under the policy "pages": take "pytorch"',
            'tensors cannot be shared with other processes under the policy "pages": take "pytorch"',
        ]
    else:
        limits += [
            "an allocator behind a MemPool must not ask PyTorch for memory or figures: that is refused",
            "with expandable_segments:True tensors cannot be shared with other processes: leave it out",
        ]
    if _release(version) >= (2, 14):
        limits.append("what torch.cuda.memory._annotate_memory() says is not recorded, and not missed either: no error tells")
    return tuple(limits)


def _checked_torch() -> Any:
    """PyTorch, if the allocator can be installed into it."""
    if not sys.platform.startswith("linux"):
        raise InstallError("the allocator is for Linux")
    try:
        import torch
    except ImportError as error:
        raise InstallError(f"PyTorch cannot be imported: {error}") from error
    if torch.version.cuda is None:
        raise InstallError(
            f"this PyTorch, {torch.__version__}, is not built for CUDA: install one that is, from pytorch.org"
        )
    _check_version(torch.__version__)
    if torch.cuda.is_initialized():
        raise InstallError(
            "PyTorch uses the GPU already: call tonnage.torch.install() before the first tensor on a GPU, best right after "
            "`import torch`, or start the program with `tonnage exec -- python …`"
        )
    _state.gpus = _gpus(torch)
    if _state.gpus == 0:
        raise InstallError(
            "PyTorch sees no GPU, so there is no memory to manage: look at `nvidia-smi` and CUDA_VISIBLE_DEVICES"
        )
    return torch


def _gpus(torch: Any) -> int:
    """How many GPUs PyTorch sees.

    Where the management library does not tell, PyTorch asks the driver, and forks of a process that did cannot use a GPU: a fork
    asks then.
    """
    by_management = getattr(torch.cuda, "_device_count_nvml", None)
    count = -1 if by_management is None else int(by_management())
    if count < 0 and getattr(torch.cuda, "_cached_device_count", None) is None:
        count = _told_by_a_fork(torch.cuda.device_count)
    # A fork is told of none if this process has asked the driver before.
    return count if count > 0 else int(torch.cuda.device_count())


#: What a fork is given to count the GPUs in. A driver that is slow to start takes some seconds; a fork that got a lock with nobody to
#: let go of it never ends.
SECONDS_TO_COUNT = 60.0


def _told_by_a_fork(ask: Any) -> int:
    """A small number, or -1 if it cannot be told so."""
    with warnings.catch_warnings():
        # Threads of this process are no matter: the fork only asks.
        warnings.simplefilter("ignore", DeprecationWarning)
        try:
            child = os.fork()
        except OSError:
            return -1
    if child == 0:
        told = 0
        try:
            told = min(int(ask()), 255)
        finally:
            os._exit(told)
    until = time.monotonic() + SECONDS_TO_COUNT
    pause = 0.001
    try:
        while True:
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended == child:
                return os.waitstatus_to_exitcode(status)
            if time.monotonic() > until:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
                return -1
            time.sleep(pause)
            pause = min(2 * pause, 0.1)
    except ChildProcessError:
        # The program does not wait for its children.
        return -1


def _check_version(version: str) -> None:
    known = f"{_show(OLDEST)} to {_show(NEWEST)}"
    parts = version.split("+")[0].split(".")
    if len(parts) != 3 or not all(part.isdigit() for part in parts):
        raise InstallError(
            f"PyTorch {version} is not one of the releases that are known, {known}: whether its allocator has their interface "
            "nobody can tell from that. Install one of these"
        )
    if not OLDEST <= _release(version) <= NEWEST:
        raise InstallError(
            f"PyTorch {version} is not supported: its allocator's interface is not known. Releases {known} are"
        )


def _release(version: str) -> tuple[int, int]:
    """The two numbers of one that was checked."""
    first, second = version.split(".")[:2]
    return int(first), int(second)


def _show(release: tuple[int, int]) -> str:
    return ".".join(map(str, release))


#: GPUs that a process can have, as far as PyTorch's own lists reach. Each is opened when it is first used: which there are may change until
#: then, by CUDA_VISIBLE_DEVICES.
MOST_GPUS = 64


def _options(torch: Any, policy: str, conf: str | None, limit: int | None, publish: bool) -> _Options:
    name = policy if policy.startswith("policy:") else f"policy:{policy}"
    options = _Options(
        device=b"cuda",
        devices=MOST_GPUS,
        capacity=0,
        policy=name.encode(),
        settings=None if conf is None else conf.encode(),
        release=torch.__version__.split("+")[0].encode(),
        limit=limit or 0,
        publish=publish,
    )
    _state.kept.append(options)
    return options


def _install_shim(torch: Any, path: str, policy: str, conf: str | None, limit: int | None, publish: bool) -> None:
    try:
        shim = ctypes.CDLL(path)
    except OSError as error:
        raise InstallError(f"the shim cannot be loaded: {error}. Remove {path}: it is built anew then") from error
    finally:
        _shim.forget_if_temporary(path)
    shim.tonnage_thrown.restype = ctypes.c_char_p
    place = shim.tonnage_install
    place.restype = ctypes.c_char_p
    place.argtypes = [ctypes.c_void_p, ctypes.POINTER(_Options)]
    if conf:
        # PyTorch reads them too, for pinned memory; what it refuses is refused before anything has changed.
        read = getattr(torch._C, "_accelerator_setAllocatorSettings", None)
        read = read or torch._C._cuda_cudaCachingAllocator_set_allocator_settings
        try:
            read(conf)
        except (RuntimeError, ValueError) as error:
            raise InstallError(f"PyTorch does not take these settings, {conf!r}: {error}") from error
    options = _options(torch, policy, conf, limit, publish)
    wrong = place(_tonnage.drop_in_interface(), ctypes.byref(options))
    if wrong:
        raise InstallError(wrong.decode(errors="replace"))
    _state.shim = shim


def _install_pluggable(
    torch: Any, policy: str, conf: str | None, limit: int | None, options: tuple[Any, ...], publish: bool
) -> Status:
    """PyTorch's own way to replace the allocator, which knows requests and frees, and nothing else."""
    here = os.path.dirname(os.path.abspath(torch.__file__))
    try:
        thrower = ctypes.CDLL(os.path.join(here, "lib", "libc10.so"))._ZN3c106detail14torchCheckFailEPKcS2_jS2_
    except (OSError, AttributeError) as error:
        # A failed request must raise: a null pointer would become a tensor.
        raise InstallError(
            "without a C++ compiler, and without a function of this PyTorch that raises errors, the allocator cannot be "
            "installed: install a C++ compiler"
        ) from error
    library = ctypes.CDLL(_tonnage.__file__)
    library.tonnage_pluggable_open.restype = ctypes.c_char_p
    options_there = _options(torch, policy, conf, limit, publish)
    wrong = library.tonnage_pluggable_open(ctypes.byref(options_there), ctypes.cast(thrower, ctypes.c_void_p))
    if wrong:
        raise InstallError(wrong.decode(errors="replace"))
    allocator = torch.cuda.memory.CUDAPluggableAllocator(
        _tonnage.__file__, "tonnage_pluggable_allocate", "tonnage_pluggable_free"
    )
    for take, name in (
        ("set_record_stream_fn", "record_stream"),
        ("set_memory_fraction_fn", "set_fraction"),
        ("set_reset_fn", "empty_cache"),
    ):
        function = getattr(library, f"tonnage_pluggable_{name}")
        getattr(allocator._allocator, take)(ctypes.cast(function, ctypes.c_void_p).value)
    torch.cuda.memory.change_current_allocator(allocator)
    _state.kept.append(allocator)
    _state.options = options
    _state.status = Status(
        True, "pluggable", policy, limit, torch.__version__, "", _limits(policy, torch.__version__) + PLUGGABLE_LIMITS
    )
    return status()


def _begin_history(torch: Any, history: bool | int | str | os.PathLike[str]) -> None:
    entries = history if isinstance(history, int) and history is not True else _record.MOST_ENTRIES
    path = os.fspath(history) if isinstance(history, (str, os.PathLike)) else None
    recording = _record.Recording(int(entries), path, True)
    _state.recording = recording

    def begin() -> None:
        recording.start()
        torch._C._cuda_attach_out_of_memory_observer(_save_at_failure)

    torch.cuda._lazy_call(begin)


def _save_at_failure(device: int, asked: int, total: int, free: int) -> None:
    """Saves the history when memory runs out for the first time. It raises nothing: the failure goes on."""
    recording = _state.recording
    if recording is None or recording.path is not None:
        return
    try:
        saved = recording._save_as(None, "oom")
        print(f"tonnage: memory has run out; the history is in {saved}: tonnage report {saved}", file=sys.stderr)
    except Exception as error:
        print(f"tonnage: the history cannot be saved: {error}", file=sys.stderr)


def _need_installed() -> Any:
    if not _state.status.installed:
        raise UsageError("call tonnage.torch.install() first")
    return sys.modules["torch"]


def _device(torch: Any, device: Any) -> int:
    # Before a GPU is used there is nothing to give back.
    torch.cuda.init()
    number = torch.cuda._utils._get_device_index(device, optional=True)
    return int(number)


@contextlib.contextmanager
def _reporting() -> Iterator[None]:
    """What functions of the program's raise while memory goes is raised here, and not by whatever comes next: allocators behind
    pools, and whoever listens to PyTorch's allocator. What was asked for and failed is told first."""
    try:
        yield
    except BaseException as error:
        failed = _failed_meanwhile()
        if failed is not None:
            _record.add_note(error, f"tonnage: {failed}")
        raise
    failed = _failed_meanwhile()
    if failed is not None:
        raise CallbackError(failed)


def _failed_meanwhile() -> str | None:
    """What a function of the program's has thrown that nobody was told yet."""
    thrown = None if _state.shim is None else _state.shim.tonnage_thrown()
    if thrown is None:
        return None
    return f"memory was changed, and a function of the program's failed by that: {thrown.decode(errors='replace')}"


@contextlib.contextmanager
def tag(name: str, *, device: Any = None) -> Iterator[None]:
    """What this thread allocates inside has memory of its own, that ``pause``, ``resume`` and ``release`` can name.

    >>> with tonnage.torch.tag("weights"):
    ...     model = Model().cuda()
    >>> tonnage.torch.pause("weights", keep=False)

    A tensor belongs to the tag that it was allocated under, whoever uses it later.
    """
    torch = _need_installed()
    if _state.status.way != "shim":
        raise UsageError("tags need pools of memory, which PyTorch's pluggable interface does not have: install a C++ compiler")
    number = _device(torch, device)
    pool = _state.tags.take(torch, name, number)
    try:
        with torch.cuda.use_mem_pool(pool, number):
            yield
    finally:
        _state.tags.put_back(name, number, pool)


def release(size: int | str | None = None, *, tag: str | None = None, device: Any = None) -> int:
    """Gives cached memory back to the device until so many bytes are gone, or all of it, and says how many went.

    With a tag all that it caches, and nothing else. Graphs that were captured under the tag must not be replayed afterwards. During a
    graph capture nothing goes, and up to PyTorch 2.12 inside of any ``use_mem_pool`` either, which is taken for one: then it says 0.
    """
    torch = _need_installed()
    number = _device(torch, device)
    with _reporting():
        if tag is None:
            return int(_tonnage.release_memory(number, 2**63 if size is None else _sizes.in_bytes(size)))
        if size is not None:
            raise UsageError("a tag gives back all that it caches: leave the size out")
        return sum(int(_tonnage.release_memory(number, 0, pool)) for pool in _state.tags.ids(tag, number))


def pause(tag: str | None = None, *, keep: bool = True, device: Any = None) -> int:
    """Gives all memory of a device back while others need it, or that of a tag, and says how many bytes.

    Tensors keep their addresses, and must not be used until ``resume``. With ``keep`` their contents are copied to the host's
    memory meanwhile; without, they are lost. While a tag is paused nothing is allocated under it, and everything else goes on; the
    figures, and a limit, count it as before. Under the policy ``pages``, or with expandable segments.
    """
    torch = _need_installed()
    number = _device(torch, device)
    # What must be refused waits for nothing: during a capture, to wait would end that.
    for pool in _to_pause(tag, number):
        _tonnage.check_pause(number, pool)
    torch.cuda.synchronize(number)
    with _reporting(), _state.tags.changing():
        return sum(int(_tonnage.pause_memory(number, keep, pool)) for pool in _to_pause(tag, number))


def _to_pause(tag: str | None, number: int) -> list[tuple[int, int] | None]:
    """The pools of a tag, or none for all memory; without those that are paused by themselves, if others are left."""
    if tag is None:
        return [None]
    pools = _state.tags.ids(tag, number)
    paused = set(_tonnage.paused_pools())
    return [pool for pool in pools if (number, pool) not in paused] or [*pools]


def resume(tag: str | None = None, *, device: Any = None) -> None:
    """Obtains the memory again, at the same addresses, with its contents if they were kept; without a tag also that of all tags.

    When it returns, the contents are there for every stream. If others hold the memory now, that is a ``tonnage.NoMemoryError``: what
    has none yet stays paused, and a later call goes on. During a graph capture it is refused, as ``pause`` is.
    """
    torch = _need_installed()
    number = _device(torch, device)
    with _reporting(), _state.tags.changing():
        for pool in [None] if tag is None else _state.tags.ids(tag, number):
            _tonnage.resume_memory(number, pool)


def __getattr__(name: str) -> Any:
    # What asks no GPU is imported when it is asked for.
    if name in ("Prediction", "predict"):
        from . import _predict

        return getattr(_predict, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


if TYPE_CHECKING:
    from ._predict import Prediction, predict

__all__ = [
    "CallbackError",
    "InstallError",
    "NoCompiler",
    "Prediction",
    "Status",
    "install",
    "pause",
    "predict",
    "release",
    "resume",
    "status",
    "tag",
]
