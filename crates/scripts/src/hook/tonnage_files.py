"""What a script changes among files, noted before it happens, so that it can be put back afterwards.

A line of the journal is a path and what was there when it was first touched: nothing, a folder, a link, or a file, which is
kept: it moves aside if it is about to be replaced, else it is linked or copied. What is not done by Python, and not by
`torch.save` or `safetensors`, is not seen.
"""

import contextlib
import json
import os
import stat
import sys
import threading
import time

JOURNAL = os.environ.get("TONNAGE_JOURNAL")
OWN = os.environ.get("TONNAGE_FOLDER", "")
ASIDE = [os.environ.get("TONNAGE_ASIDE", ""), os.environ.get("TONNAGE_ASIDE_HERE", "")]
"""Folders that files move to: the first on whose disk they lie. None if nothing is to be put back."""

LARGEST = 1 << 30
"""Files that are only changed are copied up to this size."""

IGNORED = ("/dev/", "/proc/", "/sys/")
WRITES = os.O_WRONLY | os.O_RDWR | os.O_TRUNC | os.O_CREAT


class Journal:
    def __init__(self):
        self.touched, self.linked = set(), set()
        self.busy = threading.local()
        self.count = 0

    def write(self, *line):
        file = os.open(JOURNAL, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(file, (json.dumps(line) + "\n").encode())
        finally:
            os.close(file)

    # What is about to happen.

    def opened(self, path, mode, flags):
        if isinstance(path, int) or not flags & WRITES or flags & os.O_TMPFILE == os.O_TMPFILE:
            return
        self.writes(os.fsdecode(path), bool(flags & os.O_TRUNC and flags & os.O_CREAT), bool(flags & os.O_EXCL))

    def writes(self, path, replaces, makes=False):
        """A file is about to be written, from its beginning on or in its midst."""
        path = os.path.realpath(path)
        if not self.concerns(path):
            return
        there = os.path.lexists(path)
        if there and (makes or not os.access(path, os.W_OK) or not os.path.isfile(path)):
            # It will be refused, or is a device.
            return
        self.touch(path, os.rename if replaces else None)
        if ASIDE[0]:
            self.part(path, replaces)

    def part(self, path, replaces):
        """A file that is kept by a link of it must not change through another name."""
        import shutil

        with contextlib.suppress(FileNotFoundError):
            found = os.stat(path)
            if (found.st_dev, found.st_ino) in self.linked and found.st_nlink > 1:
                beside = f"{path}.tonnage-{os.getpid()}"
                if replaces:
                    os.unlink(path)
                elif found.st_size <= LARGEST:
                    shutil.copy2(path, beside)
                    os.replace(beside, path)

    def goes(self, path):
        self.touch(path, os.link)

    def moves(self, old, new):
        self.touch(new, os.link)
        self.touch(old, os.link)
        # A folder moves with what is in it, to where nothing or an empty folder is.
        if is_folder(old) and (is_folder(new) or not os.path.lexists(new)):
            for folder, folders, files in os.walk(old):
                for name in (*folders, *files):
                    child = os.path.join(folder, name)
                    self.touch(child, os.link)
                    self.touch(os.path.join(new, os.path.relpath(child, old)), os.link)

    def links(self, old, new):
        with contextlib.suppress(OSError):
            found = os.stat(old)
            self.linked.add((found.st_dev, found.st_ino))
        self.touch(new)

    # What was there.

    def touch(self, path, way=None):
        """Notes what is at a path, the first time; a file is kept in this way if it can be, else copied."""
        if not self.concerns(path) or path in self.touched:
            return
        self.touched.add(path)
        try:
            found = os.lstat(path)
        except (FileNotFoundError, NotADirectoryError):
            self.write(path, "nothing")
            return
        if stat.S_ISDIR(found.st_mode):
            self.write(path, "folder")
        elif stat.S_ISLNK(found.st_mode):
            self.write(path, "link", os.readlink(path))
        elif stat.S_ISREG(found.st_mode) and found.st_size == 0:
            # Those that lock something stay what they are.
            self.write(path, "empty")
        elif stat.S_ISREG(found.st_mode) and not (way and self.aside(path, found, way)):
            self.copied(path, found)

    @staticmethod
    def concerns(path):
        if path.startswith(IGNORED) or (OWN and path.startswith(OWN)) or "__pycache__" in path:
            return False
        try:
            path.encode()
        except UnicodeError:
            return False
        return not any(folder and path.startswith(folder) for folder in ASIDE)

    def aside(self, path, found, way):
        """Moves or links a file to where it is kept; whether that worked."""
        for folder in filter(None, ASIDE):
            place = self.place_in(folder)
            try:
                os.makedirs(folder, exist_ok=True)
                os.link(path, place)
            except OSError:
                # Another disk, or one without links.
                continue
            self.write(path, "file", place)
            if way is os.rename:
                os.unlink(path)
            else:
                self.linked.add((found.st_dev, found.st_ino))
            return True
        return False

    def copied(self, path, found):
        import shutil

        if not ASIDE[0]:
            self.write(path, "file", "")
            return
        place = self.place_in(ASIDE[0])
        try:
            if found.st_size > LARGEST:
                raise OSError("too large")
            os.makedirs(ASIDE[0], exist_ok=True)
            shutil.copy2(path, place)
        except OSError:
            self.write(path, "lost")
        else:
            self.write(path, "file", place)

    def place_in(self, folder):
        self.count += 1
        return os.path.join(folder, f"{os.getpid()}-{time.time_ns()}-{self.count}")

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
    "os.remove": lambda it, path, folder: it.goes(whole(path, folder)),
    "os.rename": lambda it, old, new, f, t: it.moves(whole(old, f), whole(new, t)),
    "os.mkdir": lambda it, path, mode, folder: it.touch(whole(path, folder)),
    "os.rmdir": lambda it, path, folder: it.touch(whole(path, folder)),
    "os.link": lambda it, old, new, f, t: it.links(whole(old, f), whole(new, t)),
    "os.symlink": lambda it, old, new, folder: it.touch(whole(new, folder)),
    "os.truncate": lambda it, path, size: it.writes(path, False) if of_path(path) else None,
    "sqlite3.connect": lambda it, path: it.writes(path, False) if ":memory:" not in str(path) else None,
}
"""What Python tells before it does it."""

KEEPER = None


def install():
    global KEEPER
    if JOURNAL:
        KEEPER = Journal()
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
