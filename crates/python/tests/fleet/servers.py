"""What `cargo xtask fleet` has made, and the storage that it is put into: a plugin of pytest.

No `conftest.py`: the tests above import theirs by that name.
"""

from __future__ import annotations

import http.client
import http.server
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[4]


def pytest_configure() -> None:
    # A shell starts what runs in the background with Ctrl-C ignored, and whatever that starts has it so.
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def nothing_of_the_users(monkeypatch: pytest.MonkeyPatch) -> None:
    """No credentials but those of a test."""
    for name in os.environ:
        if name.startswith(("AWS_", "GOOGLE_", "AZURE_", "STORAGE_")):
            monkeypatch.delenv(name)


@pytest.fixture(scope="session")
def small() -> pathlib.Path:
    """Ranks with short histories, of which some differ, and one file that is none."""
    return pathlib.Path(os.environ["TONNAGE_FLEET_SMALL"])


@pytest.fixture(scope="session")
def large(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Ranks that take a while."""
    folder = tmp_path_factory.mktemp("large")
    for path in sorted(pathlib.Path(os.environ["TONNAGE_FLEET_LARGE"]).iterdir())[:48]:
        shutil.copyfile(path, folder / path.name)
    return folder


def free_port() -> int:
    with socket.socket() as it:
        it.bind(("127.0.0.1", 0))
        return it.getsockname()[1]


def wait_until(what: str, happens, seconds: float = 180) -> None:
    end = time.monotonic() + seconds
    while not happens():
        assert time.monotonic() < end, what
        time.sleep(0.05)


def listens(port: int) -> bool:
    with socket.socket() as it:
        return it.connect_ex(("127.0.0.1", port)) == 0


def start(port: int, *words: str, **environment: str):
    """A server that listens on this port; ends with the session."""
    server = subprocess.Popen(
        words, env={**os.environ, **environment}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    wait_until(f"{words[0]} listens", lambda: listens(port) or server.poll() is not None)
    assert server.poll() is None, words
    return server


@pytest.fixture(scope="session")
def s3(small: pathlib.Path):
    """An S3 with the small fleet as `s3://fleet/runs`: its address."""
    import boto3

    port = free_port()
    server = start(port, sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port))
    address = f"http://127.0.0.1:{port}"
    client = boto3.client(
        "s3", endpoint_url=address, region_name="us-east-1", aws_access_key_id="k", aws_secret_access_key="s"
    )
    client.create_bucket(Bucket="fleet", ACL="public-read")
    for path in sorted(small.iterdir()):
        # Everyone may read: what is asked in Google's protocol is not signed.
        client.upload_file(str(path), "fleet", f"runs/{path.name}", ExtraArgs={"ACL": "public-read"})
    yield address
    server.terminate()


@pytest.fixture
def in_s3(s3: str, monkeypatch: pytest.MonkeyPatch) -> str:
    for name, value in s3_variables(s3).items():
        monkeypatch.setenv(name, value)
    return "s3://fleet/runs"


def s3_variables(address: str) -> dict[str, str]:
    return {"AWS_ENDPOINT_URL": address, "AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s"}


class Unreliable(http.server.BaseHTTPRequestHandler):
    """Hands requests on, and fails at some: of a hundred one is refused with 503, and the answer to one breaks in the middle; so does
    every other listing."""

    protocol_version = "HTTP/1.1"
    to = ""
    lock = threading.Lock()
    asked = refused = listings = listings_broken = objects_broken = 0
    #: Answers that are to break, as soon as one has a body.
    owed = 0

    def fate(self) -> str:
        """What becomes of a request: it is `answered`, `refused` or `broken`."""
        cls = type(self)
        has_body, is_listing = self.command == "GET", "list-type=" in self.path
        with cls.lock:
            cls.asked += 1
            if cls.asked % 100 == 7:
                cls.refused += 1
                return "refused"
            cls.owed += cls.asked % 100 == 23
            if is_listing:
                cls.listings += 1
                cls.listings_broken += cls.listings % 2
                return "broken" if cls.listings % 2 else "answered"
            if not has_body or not cls.owed:
                return "answered"
            cls.owed -= 1
            cls.objects_broken += 1
            return "broken"

    def do_GET(self) -> None:
        cls = type(self)
        fate = self.fate()
        if fate == "refused":
            self.send_response(503)
            self.send_header("content-length", "0")
            self.end_headers()
            return
        other = http.client.HTTPConnection(cls.to)
        other.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
        for name, value in self.headers.items():
            other.putheader(name, value)
        other.endheaders()
        answer = other.getresponse()
        body = answer.read()
        self.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in ("connection", "transfer-encoding", "date", "server", "content-length"):
                self.send_header(name, value)
        length = answer.headers.get("content-length", str(len(body)))
        self.send_header("content-length", length)
        self.end_headers()
        self.wfile.write(body[: len(body) // 2] if fate == "broken" else body)
        if fate == "broken":
            self.close_connection = True

    do_HEAD = do_GET

    def log_message(self, *_) -> None:
        pass


@pytest.fixture
def unreliable(s3: str):
    """The same S3, of which some answers fail."""
    handler = type("Handler", (Unreliable,), {"to": s3.removeprefix("http://")})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", handler
    server.shutdown()


def every_way_failed(handler: type[Unreliable]) -> bool:
    """Whether requests were refused, and answers of both kinds broke."""
    return min(handler.refused, handler.listings_broken, handler.objects_broken) > 0


def command(*words: str, **environment: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "tonnage", *words],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
    )


def node_program(name: str) -> str:
    path = ROOT / "target/fleet/npm/node_modules/.bin" / name
    assert path.exists(), f"{path}: `cargo xtask fleet` installs it"
    return str(path)

