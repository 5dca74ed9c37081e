"""The shim: PyTorch's allocator class over the engine, built against the installed PyTorch's headers when it is first needed.

In:  the sources beside this package, PyTorch's headers, a C++ compiler. Out: a shared library in the user's cache.

A library is named by everything that goes into it: PyTorch's version, the sources, the compiler and its flags. It appears whole
or not at all, so that processes that start at once do no harm to each other.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import shlex
import shutil
import stat
import subprocess
import sys
import tempfile

from .._errors import Error

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

#: Where the sources are.
SOURCES = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "shim")

#: Compilers that are looked for, after the one that ``CXX`` names.
COMPILERS = ("g++", "c++", "clang++")

#: What the name of a folder begins with that lasts no longer than its process needs it.
TEMPORARY = "tonnage-shim-"


class NoCompiler(Error, RuntimeError):
    """The shim cannot be built: there is no C++ compiler, or it does not compile."""


class _NoRoom(Exception):
    """A folder without room for a shim."""


def library(torch: Any) -> str:
    """The path of the shim for this PyTorch, which is built if it is not there."""
    folders = [folder for folder in cache_folders() if folder is not None]
    command = _command(torch)
    if command is None:
        found = _built_before(torch, folders)
        if found is not None:
            return found
        raise NoCompiler(
            "the shim for PyTorch has to be built once, and no C++ compiler was found: install one (`apt install g++`, "
            "`dnf install gcc-c++`, `conda install cxx-compiler`), or name one by CXX"
        )
    name = _name(torch, command)
    for folder in folders:
        path = os.path.join(folder, name)
        if _is_ours(path):
            return path
    for folder in folders:
        path = os.path.join(folder, name)
        try:
            os.makedirs(folder, exist_ok=True)
            if not _made_own(folder):
                print(f"tonnage: the shim is not kept in {folder}, where others may write", file=sys.stderr)
                continue
            with _alone(path + ".lock"):
                if not _is_ours(path):
                    _build(torch, command, path)
                return path
        except (OSError, _NoRoom):
            # A folder that cannot be written to; the next one may be.
            continue
    path = os.path.join(tempfile.mkdtemp(prefix=TEMPORARY), name)
    try:
        _build(torch, command, path)
    except _NoRoom as error:
        raise NoCompiler(str(error)) from error
    finally:
        if not os.path.exists(path):
            os.rmdir(os.path.dirname(path))
    return path


def forget_if_temporary(path: str) -> None:
    """Removes a shim that was built for this process alone: once it is loaded, no one needs the file."""
    folder = os.path.dirname(path)
    if os.path.basename(folder).startswith(TEMPORARY):
        shutil.rmtree(folder, ignore_errors=True)


def _is_own(place: str) -> bool:
    """Whether nobody but this user and root can have written there."""
    found = os.stat(place)
    return found.st_uid in (0, os.geteuid()) and not found.st_mode & 0o022


def _is_ours(path: str) -> bool:
    """Whether there is a library, and nobody else can have put it there: it will be run."""
    return os.path.isfile(path) and _is_own(path) and _is_own(os.path.dirname(path))


def _made_own(folder: str) -> bool:
    """Whether nobody else can write to a folder, from now on if need be."""
    found = os.stat(folder)
    if found.st_uid == os.geteuid() and found.st_mode & 0o022:
        os.chmod(folder, stat.S_IMODE(found.st_mode) & ~0o022)
    return _is_own(folder)


def cache_folders() -> list[str | None]:
    """Where shims are kept: the folder that ``TONNAGE_CACHE_DIR`` names, else the user's cache."""
    named = os.environ.get("TONNAGE_CACHE_DIR")
    if named:
        return [os.path.join(named, "shim")]
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    # A user without a home has no cache: what lies in the folder of the moment may be anyone's.
    return [os.path.join(cache, "tonnage", "shim")] if os.path.isabs(cache) else []


def _compiler() -> list[str] | None:
    """The compiler, as words of a command."""
    named = shlex.split(os.environ.get("CXX", ""))
    if named:
        if shutil.which(named[0]) is None:
            raise NoCompiler(f"CXX names {named[0]}, which is not there")
        return named
    found = next((path for path in map(shutil.which, COMPILERS) if path is not None), None)
    return None if found is None else [found]


def _command(torch: Any) -> list[str] | None:
    """What builds the shim, but for where it goes."""
    compiler = _compiler()
    if compiler is None:
        return None
    here = os.path.dirname(os.path.abspath(torch.__file__))
    abi = int(torch._C._GLIBCXX_USE_CXX11_ABI)
    major, minor = (int(part) for part in torch.__version__.split(".")[:2])
    return [
        *compiler,
        "-std=c++20" if (major, minor) >= CXX20_FROM else "-std=c++17",
        "-O2",
        "-fPIC",
        "-shared",
        "-w",
        f"-D_GLIBCXX_USE_CXX11_ABI={abi}",
        f"-DTONNAGE_TORCH={major * 100 + minor}",
        f"-DTONNAGE_CUDA={torch.version.cuda.split('.')[0]}",
        f"-I{SOURCES}",
        f"-I{os.path.join(SOURCES, 'include')}",
        f"-I{os.path.join(here, 'include')}",
        os.path.join(SOURCES, "tonnage_shim.cpp"),
        f"-L{os.path.join(here, 'lib')}",
        "-lc10",
        "-lc10_cuda",
    ]


#: The first release whose headers need C++20.
CXX20_FROM = (2, 14)


def _stem(torch: Any) -> str:
    """What the name of a shim for this PyTorch begins with, whoever built it."""
    digest = hashlib.sha256()
    for folder, folders, files in os.walk(SOURCES):
        folders.sort()
        for file in sorted(files):
            with open(os.path.join(folder, file), "rb") as source:
                digest.update(file.encode() + b"\0" + source.read() + b"\0")
    digest.update(f"{torch.version.cuda}\0{torch._C._GLIBCXX_USE_CXX11_ABI}".encode())
    return f"torch-{torch.__version__}-{digest.hexdigest()[:16]}"


def _name(torch: Any, command: list[str]) -> str:
    # Where PyTorch lies does not change what is built from it; the compiler does.
    here = os.path.dirname(os.path.abspath(torch.__file__))
    words = [word.replace(here, "").replace(SOURCES, "") for word in command]
    digest = hashlib.sha256("\0".join([*words, _version(command)]).encode())
    return f"{_stem(torch)}-{digest.hexdigest()[:8]}.so"


def _built_before(torch: Any, folders: list[str]) -> str | None:
    """A shim for this PyTorch that some compiler has built."""
    stem = _stem(torch)
    for folder in filter(os.path.isdir, folders):
        for name in sorted(os.listdir(folder)):
            path = os.path.join(folder, name)
            if name.startswith(stem + "-") and name.endswith(".so") and _is_ours(path):
                return path
    return None


def _version(command: list[str]) -> str:
    try:
        asked = subprocess.run([command[0], "--version"], capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return asked.stdout


@contextlib.contextmanager
def _alone(path: str) -> Iterator[None]:
    """Others of this machine wait meanwhile, where the file system lets them."""
    import fcntl

    with open(path, "w") as file:
        with contextlib.suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _build(torch: Any, command: list[str], path: str) -> None:
    print(f"tonnage: building the shim for PyTorch {torch.__version__}, once: about 20 s", file=sys.stderr, flush=True)
    unfinished = f"{path}.{os.getpid()}.{os.urandom(4).hex()}"
    try:
        try:
            built = subprocess.run([*command, "-o", unfinished], capture_output=True, text=True, check=False)
        except OSError as error:
            raise NoCompiler(f"the shim for PyTorch cannot be built: {command[0]} does not run: {error}") from error
        if built.returncode != 0:
            what = f"the shim for PyTorch {torch.__version__} cannot be built in {os.path.dirname(path)}: {command[0]} says\n"
            wrong = _NoRoom if os.strerror(errno.ENOSPC) in built.stderr else NoCompiler
            raise wrong(what + _end(built.stderr))
        # Whatever the process lets others do: this is code that will be run.
        os.chmod(unfinished, 0o755)
        os.replace(unfinished, path)
    finally:
        with contextlib.suppress(OSError):
            os.unlink(unfinished)


def _end(text: str) -> str:
    lines = [line for line in text.splitlines() if "error" in line] or text.splitlines()
    return "\n".join(lines[:10])
