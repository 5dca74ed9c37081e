"""What a script writes among files, noted before it happens. Nothing is changed, and nothing is kept.

A line of the journal is a path and what was there when it was first touched: nothing, a file with its size and time, or something
else; or that a file was read which an earlier run of the script wrote, and which line did that. What is not done by Python, and not
by `torch.save` or `safetensors`, is not seen.
"""

import contextlib
import json
import os
import stat
import sys
import threading

JOURNAL = os.environ.get("TONNAGE_JOURNAL")
WROTE_BEFORE = os.environ.get("TONNAGE_WROTE_BEFORE")
"""A list of files that an earlier run of the script wrote."""

LIBRARIES = (os.path.dirname(os.path.abspath(__file__)), os.path.dirname(os.__file__))
"""Files here are no program's own."""

PACKAGES = ("site-packages", "dist-packages")
"""Nor are those below folders of these names."""

OWN = os.path.realpath(os.environ["TONNAGE_FOLDER"]) if os.environ.get("TONNAGE_FOLDER") else ""

IGNORED = ("/dev/", "/proc/", "/sys/")
WRITES = os.O_WRONLY | os.O_RDWR | os.O_TRUNC | os.O_CREAT


class Journal:
    def __init__(self):
        self.touched = set()
        # Of an earlier run, and not seen again yet; and their names, by which most others are told at once.
        self.earlier, self.names = set(), set()
        self.busy = threading.local()

    def wrote_before(self, list_of_paths):
        with open(list_of_paths, encoding="utf-8") as file:
            self.earlier = set(json.load(file))
        self.names = {os.path.basename(path) for path in self.earlier}

    def write(self, *line):
        file = os.open(JOURNAL, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(file, (json.dumps(line) + "\n").encode())
        finally:
            os.close(file)

    # What is about to happen.

    def opened(self, path, mode, flags):
        if isinstance(path, int) or flags & os.O_TMPFILE == os.O_TMPFILE:
            return
        if flags & WRITES:
            self.touch(os.path.realpath(os.fsdecode(path)))
        elif self.earlier and os.path.basename(os.fsdecode(path)) in self.names:
            self.read(os.path.realpath(os.fsdecode(path)))

    def read(self, path):
        """Notes that a file of an earlier run is read, the first time."""
        if path in self.earlier:
            self.earlier.discard(path)
            self.write(path, "met", asking_line())

    def moves(self, old, new):
        self.touch(new)
        self.touch(old)
        # A folder moves with what is in it.
        if is_folder(old):
            for folder, _, files in os.walk(old):
                for name in files:
                    child = os.path.join(folder, name)
                    self.touch(child)
                    self.touch(os.path.join(new, os.path.relpath(child, old)))

    # What was there.

    def touch(self, path):
        """Notes what is at a path, the first time."""
        if path in self.touched or not self.concerns(path):
            return
        self.touched.add(path)
        self.earlier.discard(path)
        try:
            found = os.stat(path)
        except OSError:
            self.write(path, "nothing")
            return
        if stat.S_ISREG(found.st_mode):
            seconds, rest = divmod(found.st_mtime_ns, 1_000_000_000)
            self.write(path, "file", f"{found.st_size} {seconds} {rest}")
        else:
            self.write(path, "other")

    @staticmethod
    def concerns(path):
        return not (path.startswith(IGNORED) or (OWN and path.startswith(OWN)) or "__pycache__" in path)

    # Python's own reports.

    def heard(self, event, args):
        see = SEEN.get(event)
        if see is None or getattr(self.busy, "now", False):
            return
        self.busy.now = True
        try:
            see(self, *args)
        except Exception:
            # The script goes on as it would; what it does then is not noted.
            pass
        finally:
            self.busy.now = False


def asking_line():
    """The innermost line of the program's own."""
    frame = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if not name.startswith((*LIBRARIES, "<frozen")) and not any(it in name for it in PACKAGES):
            return f"{name}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


def whole(path, folder=-1):
    """The path of what is named, from a folder that is open or from the current one."""
    path = os.fsdecode(path)
    if folder != -1:
        path = os.path.join(os.readlink(f"/proc/self/fd/{folder}"), path)
    head, tail = os.path.split(os.path.abspath(path))
    return os.path.join(os.path.realpath(head), tail)


def is_folder(path):
    return os.path.isdir(path) and not os.path.islink(path)


def of_path(path):
    return isinstance(path, (str, bytes, os.PathLike))


SEEN = {
    "open": Journal.opened,
    "os.mkdir": lambda it, path, mode, folder: it.touch(whole(path, folder)),
    "os.remove": lambda it, path, folder: it.touch(whole(path, folder)),
    "os.rename": lambda it, old, new, f, t: it.moves(whole(old, f), whole(new, t)),
    "os.link": lambda it, old, new, f, t: it.touch(whole(new, t)),
    "os.symlink": lambda it, old, new, folder: it.touch(whole(new, folder)),
    "os.truncate": lambda it, path, size: it.touch(os.path.realpath(os.fsdecode(path))) if of_path(path) else None,
    "sqlite3.connect": lambda it, path: it.touch(os.path.realpath(path)) if ":memory:" not in str(path) else None,
}
"""What Python tells before it does it."""

KEEPER = None


def install():
    global KEEPER
    if JOURNAL:
        KEEPER = Journal()
        if WROTE_BEFORE and os.path.exists(WROTE_BEFORE):
            KEEPER.wrote_before(WROTE_BEFORE)
        sys.addaudithook(KEEPER.heard)


def about_to_replace(path):
    """A library is about to write a file without Python's help."""
    if KEEPER is not None and of_path(path):
        KEEPER.heard("open", (path, None, os.O_WRONLY | os.O_CREAT | os.O_TRUNC))


def watch_torch(torch):
    """Notes what `torch.save` writes: it opens files by itself. What it reads from the device to do so decides nothing."""
    save = getattr(torch, "save", None)
    if save is None:
        return

    def noted(obj, f, *args, **kwargs):
        about_to_replace(f)
        values = sys.modules.get("tonnage_values")
        with values.unlisted() if values else contextlib.nullcontext():
            return save(obj, f, *args, **kwargs)

    noted.__doc__, noted.__wrapped__ = save.__doc__, save
    torch.save = torch.serialization.save = noted


def watch_safetensors(safetensors):
    write = safetensors.serialize_file

    def noted(tensors, filename, *args, **kwargs):
        about_to_replace(filename)
        return write(tensors, filename, *args, **kwargs)

    safetensors.serialize_file = noted
