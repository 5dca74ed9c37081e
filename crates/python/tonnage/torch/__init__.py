"""PyTorch on Tonnage's allocator: ``tonnage.torch.install()`` before the first use of a GPU.

>>> import tonnage.torch
>>> tonnage.torch.install(policy="pages", limit="20GiB")

From then on PyTorch's own calls answer as before: statistics, snapshots, history, pools, graphs, ``OutOfMemoryError``. A shim
in C++ stands in the place of PyTorch's allocator class; it is built when it is first needed. Where there is no compiler,
PyTorch's pluggable interface serves, with the limits that ``Status.limits`` tells.
"""

from __future__ import annotations

import ctypes
import os
import sys
from dataclasses import dataclass, field

from .. import _record, _sizes, _tonnage
from .._errors import Error, UsageError
from . import _shim
from ._shim import NoCompiler

TYPE_CHECKING = False
if TYPE_CHECKING:
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
)


class InstallError(Error, RuntimeError):
    """The allocator cannot be installed; the sentence says what to do."""


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


@dataclass
class _State:
    """What this process has installed."""

    status: Status = field(default_factory=lambda: Status(installed=False))
    options: tuple[Any, ...] = ()
    recording: Any = None
    # Whatever C++ keeps pointers to.
    kept: list[Any] = field(default_factory=list)


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
    _state.status = Status(True, "shim", policy, bytes_limit, torch.__version__, path, _limits(policy))
    if history is not None and history is not False:
        _begin_history(torch, history)
    return status()


def status() -> Status:
    """How PyTorch's memory is managed now."""
    from dataclasses import replace

    paused = _tonnage.paused_devices() if _state.status.installed else []
    return replace(_state.status, paused=tuple(paused))


def _limits(policy: str) -> tuple[str, ...]:
    limits = [
        "MemPool(allocator=…) is refused: a pool has Tonnage's memory",
        "memory of expandable segments of another process cannot be opened: let it share memory without them",
    ]
    if policy.startswith("pages"):
        limits += [
            'tensors cannot be shared with other processes under the policy "pages": take "pytorch"',
            'GPUs of one process cannot reach each other\'s memory under the policy "pages", so that tensors do not go from one '
            'to another: take "pytorch", or a process for each GPU',
        ]
    else:
        limits.append(
            "with expandable_segments:True tensors cannot be shared with other processes, and GPUs of one process cannot "
            "reach each other's memory: leave it out"
        )
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
    if torch.cuda.device_count() == 0:
        raise InstallError(
            "PyTorch sees no GPU, so there is no memory to manage: look at `nvidia-smi` and CUDA_VISIBLE_DEVICES"
        )
    return torch


def _check_version(version: str) -> None:
    known = f"{_show(OLDEST)} to {_show(NEWEST)}"
    parts = version.split("+")[0].split(".")
    if len(parts) != 3 or not all(part.isdigit() for part in parts):
        raise InstallError(
            f"PyTorch {version} is not one of the releases that are known, {known}: whether its allocator has their interface "
            "nobody can tell from that. Install one of these"
        )
    if not OLDEST <= (int(parts[0]), int(parts[1])) <= NEWEST:
        raise InstallError(
            f"PyTorch {version} is not supported: its allocator's interface is not known. Releases {known} are"
        )


def _show(release: tuple[int, int]) -> str:
    return ".".join(map(str, release))


def _options(torch: Any, policy: str, conf: str | None, limit: int | None, publish: bool) -> _Options:
    name = policy if policy.startswith("policy:") else f"policy:{policy}"
    options = _Options(
        device=b"cuda",
        devices=torch.cuda.device_count(),
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
    _state.kept.append(shim)


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
        True, "pluggable", policy, limit, torch.__version__, "", _limits(policy) + PLUGGABLE_LIMITS
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


def release(size: int | str | None = None, device: Any = None) -> int:
    """Gives cached memory back to the device until so many bytes are gone, or all of it, and says how many went."""
    torch = _need_installed()
    wanted = 2**63 if size is None else _sizes.in_bytes(size)
    return int(_tonnage.release_memory(_device(torch, device), wanted))


def pause(*, keep: bool = True, device: Any = None) -> int:
    """Gives all memory of a device back while others need it, and says how many bytes.

    Tensors keep their addresses, and must not be used until ``resume``. With ``keep`` their contents are copied to the host's
    memory meanwhile; without, they are lost. Under the policy ``pages``, or with expandable segments.
    """
    torch = _need_installed()
    number = _device(torch, device)
    torch.cuda.synchronize(number)
    return int(_tonnage.pause_memory(number, keep))


def resume(*, device: Any = None) -> None:
    """Obtains the memory again, at the same addresses, with its contents if they were kept.

    If others hold it now, that is a ``tonnage.NoMemoryError``: the device stays paused, and a later call goes on.
    """
    torch = _need_installed()
    _tonnage.resume_memory(_device(torch, device))


def __getattr__(name: str) -> Any:
    # What asks no GPU is imported when it is asked for.
    if name in ("Prediction", "predict"):
        from . import _predict

        return getattr(_predict, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


if TYPE_CHECKING:
    from ._predict import Prediction, predict

__all__ = [
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
]
