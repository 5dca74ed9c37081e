"""A stand-in for PyTorch: a module with what recording asks of it, whose memory is a recording of the real one."""

from __future__ import annotations

import pathlib

SOURCE = '''
"""What recording asks of PyTorch, and nothing else."""
import os, pickle, types

class OutOfMemoryError(RuntimeError):
    pass

calls = []
_recording = False
_has_allocator = False
_initializing = False
_initialized = False
_queued = []

class _Scope:
    def __init__(self, name):
        calls.append(("scope", name))
    def __enter__(self):
        return self
    def __exit__(self, *raised):
        pass

def _record_memory_history(enabled="all", **options):
    global _recording, _has_allocator
    # The real one makes an allocator, though PyTorch does not count as initialized then.
    _has_allocator = True
    _recording = enabled is not None
    calls.append(("record", enabled, options))

def _snapshot():
    calls.append(("snapshot",))
    with open(os.environ["STAND_IN_SNAPSHOT"], "rb") as file:
        return pickle.load(file)

def _init():
    """What the first use of a GPU does."""
    global _initialized, _initializing, _has_allocator
    if not _initialized and not _initializing:
        _has_allocator = _initializing = True
        for call in _queued:
            call()
        _initialized = True

def _lazy_call(call):
    call() if _initialized else _queued.append(call)

def empty(*sizes, device="cpu"):
    if device == "cuda":
        _init()
    if sizes and sizes[0] > 1 << 40:
        raise OutOfMemoryError("CUDA out of memory.")

cuda = types.SimpleNamespace(
    is_available=lambda: os.environ.get("STAND_IN_GPU", "1") == "1",
    is_initialized=lambda: _initialized,
    init=_init,
    _lazy_call=_lazy_call,
    memory=types.SimpleNamespace(_record_memory_history=_record_memory_history, _snapshot=_snapshot),
    synchronize=lambda: None,
    empty_cache=lambda: None,
    reset_peak_memory_stats=lambda: None,
)
profiler = types.SimpleNamespace(record_function=_Scope)

def _is_history_enabled():
    # The real one ends the process.
    assert _has_allocator, "PyTorch has no allocator yet"
    return _recording

_C = types.SimpleNamespace(_cuda_isHistoryEnabled=_is_history_enabled)
'''


def install(folder: pathlib.Path) -> None:
    """Puts it where a program of that folder finds it."""
    (folder / "torch.py").write_text(SOURCE)
