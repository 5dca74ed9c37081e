"""Takes what the oracle needs out of a released PyTorch wheel: `fetch.py VERSION FOLDER`.

The wheel is found by pip, as pip is set up on this machine. Of its half gigabyte only the members that are
needed are read, where the server answers requests for ranges; otherwise pip downloads it whole. What fails is
tried again a few times: a registry that is asked too often says so, and answers later. Every member is compared
with the wheel's own list of hashes (RECORD), which lies beside them afterwards.
"""

import base64
import hashlib
import io
import pathlib
import subprocess
import sys
import tempfile
import time
import zipfile

LIBRARIES = ("torch/lib/libc10.so", "torch/lib/libc10_cuda.so")
FOLDERS = ("torch/include/c10/", "torch/include/torch/headeronly/")
# The wheel of one Python on one platform: the libraries are the same in all.
WHICH = [
    "--no-deps", "--only-binary=:all:", "--implementation", "cp", "--python-version", "3.12", "--abi", "cp312",
    "--platform", "manylinux_2_28_x86_64", "--platform", "manylinux2014_x86_64", "--platform", "manylinux1_x86_64",
]
BLOCK = 4 << 20
# Seconds to wait before another attempt.
WAITS = (5, 20, 60)


class NoRanges(Exception):
    """The server sends files whole."""


class Ranges(io.RawIOBase):
    """A file on a server, read in blocks that are kept."""

    def __init__(self, session, url):
        self.session, self.url, self.at, self.blocks = session, url, 0, {}
        answer = session.head(url, allow_redirects=True, headers={"Accept-Encoding": "identity"})
        answer.raise_for_status()
        self.length = int(answer.headers["Content-Length"])
        if self.read_range(0, 4) != b"PK\x03\x04":
            raise NoRanges("the server sends no ranges of this file")

    def read_range(self, start, end):
        headers = {"Accept-Encoding": "identity", "Range": f"bytes={start}-{end - 1}"}
        answer = self.session.get(self.url, headers=headers, stream=True)
        if answer.status_code != 206:
            answer.close()
            error = NoRanges if answer.ok else OSError
            raise error(f"a range was asked for, the server answered {answer.status_code}")
        content = answer.content
        if len(content) != end - start:
            raise OSError(f"{end - start} bytes were asked for, {len(content)} came")
        return content

    def block(self, number):
        if number not in self.blocks:
            start = number * BLOCK
            self.blocks[number] = self.read_range(start, min(start + BLOCK, self.length))
        return self.blocks[number]

    def readable(self):
        return True

    def seekable(self):
        return True

    def tell(self):
        return self.at

    def seek(self, offset, whence=io.SEEK_SET):
        self.at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self.at, io.SEEK_END: self.length}[whence]
        return self.at

    def readinto(self, buffer):
        inside = self.at % BLOCK
        part = self.block(self.at // BLOCK)[inside : inside + len(buffer)] if self.at < self.length else b""
        buffer[: len(part)] = part
        self.at += len(part)
        return len(part)


def by_ranges(version):
    """The wheel as a file on its server. Uses pip's own modules, which promise nothing: whoever calls this
    has another way."""
    from pip._internal.cli.cmdoptions import make_target_python
    from pip._internal.commands import create_command
    from pip._vendor.packaging.specifiers import SpecifierSet

    command = create_command("download")
    options, _ = command.parse_args([*WHICH, f"torch=={version}"])
    context = command.main_context()
    context.__enter__()
    session = command.get_default_session(options)
    finder = command._build_package_finder(options, session, target_python=make_target_python(options))
    best = finder.find_best_candidate("torch", SpecifierSet(f"=={version}")).best_candidate
    if best is None:
        raise LookupError(f"pip knows no torch {version} for this platform")
    if best.link.is_file:
        return open(best.link.file_path, "rb")
    return io.BufferedReader(Ranges(session, best.link.url_without_fragment), 1 << 16)


def whole(version, folder):
    """The wheel, downloaded by pip, which checks its hash."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--dest", folder, *WHICH, f"torch=={version}"]
    subprocess.run(command, check=True)
    (wheel,) = pathlib.Path(folder).glob("torch-*.whl")
    return open(wheel, "rb")


def hashes(wheel):
    """Name to hash, from the wheel's RECORD, and its text."""
    (name,) = [name for name in wheel.namelist() if name.endswith(".dist-info/RECORD") and name.count("/") == 1]
    text = wheel.read(name).decode()
    rows = (line.rsplit(",", 2) for line in text.splitlines())
    return {row[0].strip('"'): row[1] for row in rows}, text


def take(file, target):
    with zipfile.ZipFile(file) as wheel:
        known, record = hashes(wheel)
        for name in wheel.namelist():
            if name not in LIBRARIES and not (name.startswith(FOLDERS) and name.endswith(".h")):
                continue
            content = wheel.read(name)
            digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode().rstrip("=")
            if known.get(name) != f"sha256={digest}":
                raise ValueError(f"{name} of the wheel is not what the wheel's RECORD says")
            path = target / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        missing = [name for name in LIBRARIES if not (target / name).is_file()]
        if missing:
            raise ValueError(f"the wheel has no {' and no '.join(missing)}")
        (target / "RECORD").write_text(record)


def attempt(version, target, last):
    """Takes the parts out of the wheel; says whether that worked. The last time by any means."""
    try:
        take(by_ranges(version), target)
        return True
    except (ImportError, AttributeError, TypeError, NoRanges) as error:
        # The server has no ranges, or this pip other modules: that will not change.
        print(f"reading parts of the wheel failed ({error}); pip downloads it whole", file=sys.stderr)
    except Exception as error:
        print(f"reading parts of the wheel failed: {error}", file=sys.stderr)
        if not last:
            return False
    try:
        with tempfile.TemporaryDirectory(dir=target) as folder:
            take(whole(version, folder), target)
        return True
    except Exception as error:
        print(f"downloading the wheel failed: {error}", file=sys.stderr)
        return False


def main():
    version, target = sys.argv[1], pathlib.Path(sys.argv[2])
    for wait in (*WAITS, None):
        if attempt(version, target, last=wait is None):
            return
        if wait is not None:
            print(f"trying again in {wait} s", file=sys.stderr)
            time.sleep(wait)
    sys.exit(
        f"torch {version} for Linux on x86_64 could not be had. If this machine is offline, run this where it is not and "
        f"carry target/oracle over; otherwise see whether `pip download torch=={version}` works."
    )


main()
