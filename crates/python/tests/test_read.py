"""Reading, and the questions that are asked of a snapshot."""

from __future__ import annotations

import gzip
import io
import json
import os
import pathlib
import pickle
import signal
import subprocess
import sys
import threading
import time

import pyarrow
import pytest

import tonnage
from conftest import ROOT, recording

NAMES = ["mlp_seed.default.stacks", "mlp_seed.tight", "mlp_seed.expandable"]


def equal(a: tonnage.Table, b: tonnage.Table) -> bool:
    """Whether both have the same values: texts may have other numbers."""
    both = pyarrow.concat_tables([a.to_arrow(), b.to_arrow()]).unify_dictionaries()
    return len(a) == len(b) and both.slice(0, len(a)) == both.slice(len(a))


def same(a: tonnage.Snapshot, b: tonnage.Snapshot) -> None:
    """Both say the same, but for their names."""
    assert equal(a.events(levels=True), b.events(levels=True))
    assert equal(a.blocks(), b.blocks())
    assert equal(a.segments(), b.segments())
    assert a.settings == b.settings
    assert [it.to_dict() for it in a.devices] == [it.to_dict() for it in b.devices]


def test_every_way_in_gives_the_same_snapshot(plain):
    for name in NAMES:
        path = plain(name)
        data = path.read_bytes()
        first = tonnage.read(recording(name))
        for source in [
            path,
            str(path),
            data,
            bytearray(data),
            memoryview(data),
            io.BytesIO(data),
            io.BytesIO(gzip.compress(data)),
            path.open("rb"),
            pickle.loads(data),
        ]:
            same(first, tonnage.read(source))


def test_a_snapshot_goes_by_its_path_or_by_the_name_it_is_given(plain, tmp_path):
    path = plain("mlp_seed.default.stacks")
    assert tonnage.read(path).name == str(path)
    for source in [path, str(path), path.read_bytes(), path.open("rb"), pickle.loads(path.read_bytes())]:
        assert tonnage.read(source, name="mine").name == "mine"
    # One that is no text, as file systems allow.
    odd = os.fsdecode(os.path.join(os.fsencode(tmp_path), b"\xff.pickle"))
    os.symlink(path, odd)
    assert tonnage.read(odd).name == str(tmp_path / "\ufffd.pickle")
    missing = os.path.join(os.fsencode(tmp_path), b"\xfe.pickle")
    with pytest.raises(tonnage.MissingFileError, match="\ufffd.pickle"):
        tonnage.read(pathlib.Path(os.fsdecode(missing)))


def test_every_recording_reads_the_same_from_its_objects(plain):
    for path in sorted((ROOT / "testdata" / "traces").glob("*.pickle.zst")):
        name = path.name.removesuffix(".pickle.zst")
        again = plain(name)
        if again.stat().st_size < 30_000_000:
            same(tonnage.read(path), tonnage.read(pickle.loads(again.read_bytes())))


def test_small_files_of_all_releases_read_the_same_from_their_objects():
    paths = sorted((ROOT / "testdata" / "snapshots").glob("*.pickle"))
    assert len(paths) > 5
    read = 0
    for path in paths:
        data = pickle.loads(path.read_bytes())
        if isinstance(data, dict):
            same(tonnage.read(path), tonnage.read(data))
            read += 1
    assert read > 3


def test_what_is_wrong_with_a_dictionary_is_said_by_its_path():
    with pytest.raises(tonnage.SnapshotError, match=r"^mine: device_traces\[0\]\[0\]\.size: expected an integer"):
        tonnage.read({"device_traces": [[{"action": "alloc", "addr": 1, "size": "x", "stream": 0}]]}, name="mine")
    with pytest.raises(tonnage.SnapshotError, match="the key `segments`"):
        tonnage.read({})
    nested: list = []
    for _ in range(1000):
        nested = [nested]
    with pytest.raises(tonnage.SnapshotError, match="inside each other"):
        tonnage.read({"segments": nested})
    nested.append(nested)
    with pytest.raises(tonnage.SnapshotError, match="inside each other"):
        tonnage.read({"segments": nested})


def test_figures_are_those_of_the_command(snapshot, python):
    asked = python("-m", "tonnage", "inspect", "--json", str(recording("mlp_seed.default.stacks")))
    device = json.loads(asked.stdout)["devices"][0]
    assert snapshot.devices[0].reserved == device["reserved"]
    assert snapshot.peak.allocated == device["allocated_peak"] == 195_529_216
    assert snapshot.peak.reserved == device["reserved_peak"]
    assert snapshot.peak.requested == device["requested_peak"]
    assert snapshot.peak.requested <= snapshot.peak.allocated <= snapshot.peak.active <= snapshot.peak.reserved
    assert snapshot.settings.expandable_segments is False


@pytest.mark.parametrize(
    ("words", "ask"),
    [
        (["report", "--limit", "1GiB"], lambda it: it.report(limit="1GiB")),
        (["report"], lambda it: it.report()),
        (["tune"], lambda it: it.tune()),
        (["tune", "--limit", "201326592"], lambda it: it.tune(limit=201326592)),
        (["replay", "--conf", "expandable_segments:True"], lambda it: it.replay(conf="expandable_segments:True")),
        (["replay", "--as", "2.12"], lambda it: it.replay(as_release="2.12")),
    ],
)
def test_answers_are_the_commands(snapshot, python, words, ask):
    path = str(recording("mlp_seed.default.stacks"))
    text = python("-m", "tonnage", *words, path)
    data = python("-m", "tonnage", *words, "--json", path)
    answer = ask(snapshot)
    assert str(answer) == text.stdout
    assert answer.to_dict() == json.loads(data.stdout)
    assert bool(answer) == (text.returncode == 0)
    assert "<" in answer._repr_html_()


def test_attributes_are_the_fields_of_the_json(snapshot):
    report = snapshot.report(limit="1GiB")
    assert report.limit == 1 << 30
    assert report.verdict.bytes == report.to_dict()["files"][0]["report"]["verdict"]["bytes"]
    assert report.advice[0].change
    with pytest.raises(AttributeError, match="no `nonsense` here: there are"):
        report.nonsense
    replay = snapshot.replay()
    assert replay.exact and replay.kind == "replay" and bool(replay)


def test_a_difference_is_told_and_guarded(snapshot):
    other = tonnage.read(recording("mlp_seed.expandable"))
    diff = snapshot.diff(other, fail_if_reserved_grows="0")
    assert diff.a == snapshot.name and diff.b == other.name
    assert any(it.setting == "expandable_segments" for it in diff.settings)
    assert bool(diff) == (not diff.grown)
    grown = other.diff(snapshot, fail_if_reserved_grows=0)
    assert bool(diff) != bool(grown)
    with pytest.raises(tonnage.UsageError, match="compared with a snapshot"):
        snapshot.diff("other.pickle")


def test_recipes_are_those_of_the_command(python):
    outcome = tonnage.predict("gpt2", batch=2, amp="bf16")
    asked = python("-m", "tonnage", "predict", "gpt2", "--batch", "2", "--amp", "bf16", "--json")
    assert outcome.to_dict() == json.loads(asked.stdout)
    assert not tonnage.predict("gpt2", limit="100MiB")
    small = tonnage.run("mlp", width=16, batch=2, layers=2, steps=2, device="dry")
    assert small.allocated_peak == tonnage.predict("mlp", width=16, batch=2, layers=2).allocated_peak


def test_a_page_is_served_until_it_is_closed(snapshot):
    from urllib.error import URLError
    from urllib.request import urlopen

    with snapshot.view(limit="1GiB") as page:
        assert b"<html" in urlopen(page.url).read()
        assert page.url in page._repr_html_()
    with pytest.raises(URLError):
        urlopen(page.url)


def test_a_snapshot_that_was_saved_reads_the_same(snapshot, tmp_path):
    for name in ["again.pickle", "again.pickle.zst"]:
        snapshot.save(tmp_path / name)
        same(snapshot, tonnage.read(tmp_path / name))


def test_ctrl_c_is_answered_while_reading(python):
    program = (
        "import tonnage, os, signal\n"
        "class Endless:\n"
        "    reads = 0\n"
        "    def read(self, size):\n"
        "        self.reads += 1\n"
        "        if self.reads == 5: os.kill(os.getpid(), signal.SIGINT)\n"
        "        return ((b'\\x80\\x04' if self.reads == 1 else b'') + b'N0' * 1000)[:size]\n"
        "try:\n"
        "    tonnage.read(Endless())\n"
        "except KeyboardInterrupt:\n"
        "    print('stopped')\n"
    )
    done = python("-c", program)
    assert done.stdout == "stopped\n", done.stderr


@pytest.mark.parametrize("more", ["save='run.pickle'", "view=True, no_open=True"])
def test_ctrl_c_stays_the_programs_own(python, more):
    """What the command does about signals is no business of a program that asks it something."""
    program = (
        "import os, signal, tonnage\n"
        f"tonnage.run('mlp', width=16, layers=2, batch=2, steps=1, device='host', {more})\n"
        "for name in (signal.SIGINT, signal.SIGTERM):\n"
        "    caught = []\n"
        "    signal.signal(name, lambda number, frame: caught.append(number))\n"
        "    signal.raise_signal(name)\n"
        "    assert caught == [name]\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "try:\n"
        "    tonnage.run('mlp', width=16, layers=2, batch=2, steps=1, device='host', save='other.pickle')\n"
        "    signal.raise_signal(signal.SIGINT)\n"
        "except KeyboardInterrupt:\n"
        "    print('interrupted')\n"
    )
    done = python("-c", program)
    assert (done.returncode, done.stdout) == (0, "interrupted\n"), done.stderr


def test_other_threads_run_while_a_file_is_read(plain, tmp_path):
    import os

    # A pipe that another thread of this very program fills: with the interpreter's lock held, neither would go on.
    data = plain("gpt2_varlen.default").read_bytes()
    assert len(data) > 1 << 20, "more than a pipe holds"
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    thread = threading.Thread(target=pipe.write_bytes, args=(data,))
    thread.start()
    read = tonnage.read(pipe)
    thread.join()
    assert read.peak == tonnage.read(recording("gpt2_varlen.default")).peak


@pytest.mark.parametrize(
    "live",
    [
        {"segments": [], "device_traces": [], "other": [7] * 3_000_000},
        {"segments": [], "device_traces": [], "other": tuple([7] * 3_000_000)},
        {"segments": [], "device_traces": [], "other": {str(it): it for it in range(1_000_000)}},
    ],
    ids=["list", "tuple", "dict"],
)
def test_other_threads_run_while_objects_are_walked(live):
    turns = 0
    stop = threading.Event()

    def count() -> None:
        nonlocal turns
        while not stop.is_set():
            turns += 1
            # Gives the lock back, and comes again when it is given up next.
            time.sleep(0)

    thread = threading.Thread(target=count)
    interval = sys.getswitchinterval()
    # Nobody is asked to give the lock up: who does, does so by itself.
    sys.setswitchinterval(1000)
    try:
        thread.start()
        met = 0
        # Whether the other thread is there in time when the lock is given up is the system's to say: often enough it is.
        for _ in range(200):
            before = turns
            tonnage.read(live)
            met += turns - before
            if met > 3:
                break
    finally:
        stop.set()
        sys.setswitchinterval(interval)
        thread.join()
    assert met > 3


def test_work_goes_on_in_a_fork(python):
    program = (
        "import os, tonnage\n"
        "options = dict(width=512, layers=2, batch=64, steps=1, device='host')\n"
        f"snapshot = tonnage.read({str(recording('mlp_seed.default.stacks'))!r})\n"
        "page = snapshot.view()\n"
        "before = tonnage.run('mlp', **options).losses, str(snapshot.tune())\n"
        "child = os.fork()\n"
        "again = tonnage.run('mlp', **options).losses, str(snapshot.tune())\n"
        "assert before == again\n"
        "del page\n"
        "if child:\n"
        "    assert os.waitpid(child, 0)[1] == 0\n"
        "    print('both')\n"
    )
    done = python("-c", program)
    assert (done.returncode, done.stdout) == (0, "both\n"), done.stderr


def test_a_page_may_be_in_a_frame_of_this_machine_alone(snapshot):
    from urllib.request import urlopen

    with snapshot.view() as page, urlopen(page.url) as answer:
        policy = answer.headers["Content-Security-Policy"]
    (ancestors,) = [it.split()[1:] for it in policy.split(";") if it.split()[0] == "frame-ancestors"]
    assert set(ancestors) == {f"{kind}://{host}:*" for kind in ("http", "https") for host in ("localhost", "127.0.0.1")}


def test_files_that_are_there_are_kept(snapshot, tmp_path):
    mine = tmp_path / "mine"
    for save in [snapshot.save, snapshot.report().save]:
        mine.write_text("mine")
        with pytest.raises(FileExistsError, match="force=True") as raised:
            save(mine)
        assert isinstance(raised.value, tonnage.ExistingFileError)
        assert mine.read_text() == "mine"
        save(mine, force=True)
        assert mine.stat().st_size > 1000


def test_what_a_file_object_raises_goes_on():
    class Broken:
        def read(self, size: int) -> bytes:
            raise ConnectionError("the line is dead")

    with pytest.raises(ConnectionError, match="the line is dead"):
        tonnage.read(Broken())

    class Greedy:
        def read(self, size: int) -> bytes:
            return b"\0" * (size + 1)

    with pytest.raises(tonnage.UsageError, match="more than size"):
        tonnage.read(Greedy())
    with pytest.raises(tonnage.UsageError, match="rb"):
        tonnage.read(io.StringIO("text"))


def test_the_sentences_are_those_of_the_command(python, tmp_path):
    damaged = tmp_path / "damaged.pickle"
    damaged.write_bytes(b"\x80\x04}\x94(\x8c\x08segments\x94")
    foreign = tmp_path / "foreign.pickle"
    foreign.write_bytes(pickle.dumps(print))
    for path in [damaged, foreign, tmp_path / "missing.pickle"]:
        said = python("-m", "tonnage", "inspect", str(path))
        with pytest.raises(tonnage.Error) as raised:
            tonnage.read(path)
        assert said.stderr == f"error: {raised.value}\n"
        assert said.returncode == 2
    with pytest.raises(tonnage.SnapshotError) as raised:
        tonnage.read(damaged)
    assert raised.value.offset == len(damaged.read_bytes())
    with pytest.raises(FileNotFoundError) as raised:
        tonnage.read(tmp_path / "missing.pickle")
    assert isinstance(raised.value, tonnage.Error) and raised.value.errno == 2


@pytest.mark.parametrize(
    ("kind", "words", "ask"),
    [
        (tonnage.ConfError, "not a known key", lambda it: it.replay(conf="nonsense:1")),
        (tonnage.UsageError, "`24GiB`", lambda it: it.report(limit=24)),
        (tonnage.UsageError, "not a size", lambda it: it.tune(limit="much")),
        (tonnage.UsageError, "a number of bytes or a text", lambda it: it.tune(limit=2.5)),
        (tonnage.UsageError, "no recipe", lambda it: tonnage.predict("nonsense")),
        (tonnage.UsageError, "unexpected argument '--nonsense", lambda it: tonnage.predict("mlp", nonsense=1)),
        (tonnage.UsageError, "a snapshot is read from", lambda it: tonnage.read(3)),
        (tonnage.UsageError, "a port is a number", lambda it: it.view(port=70_000)),
        (tonnage.UsageError, "a port is a number", lambda it: it.view(port="8080")),
        (tonnage.LimitError, "--max-memory", lambda it: tonnage.read(recording("mlp_seed.tight"), max_memory="1KiB")),
    ],
)
def test_errors_have_kinds(snapshot, kind, words, ask):
    with pytest.raises(kind) as raised:
        ask(snapshot)
    assert words in str(raised.value)
    assert isinstance(raised.value, tonnage.Error)


def test_nothing_that_strangers_send_ends_the_program():
    import random

    data = bytearray(pickle.dumps({"segments": [], "device_traces": [[{"action": "alloc", "addr": 1, "size": 2,
                                                                       "stream": 0}]]}))
    chance = random.Random(7)
    for _ in range(2000):
        changed = bytearray(data)
        for _ in range(chance.randint(1, 4)):
            changed[chance.randrange(len(changed))] = chance.randrange(256)
        try:
            tonnage.read(bytes(changed)).report()
        except tonnage.Error as error:
            assert not isinstance(error, tonnage.InternalError)


def test_a_signal_ends_the_command_as_any_other():
    process = subprocess.Popen(
        [sys.executable, "-m", "tonnage", "inspect", "-"], stdin=subprocess.PIPE, stderr=subprocess.PIPE
    )
    # More than a pipe holds: once it is gone, the command reads.
    process.stdin.write(b"\x80\x04" + b"N0" * 200_000)
    process.stdin.flush()
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=600) == -signal.SIGINT
