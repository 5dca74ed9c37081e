"""The way of the allocator into PyTorch, on a stand-in: what is refused and why, what is built and kept, the command.

What it then does is compared with PyTorch's own by ``cargo xtask drop-in``.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
import types

import pytest

import tonnage
import tonnage.torch

TORCH = '''
"""What the installation asks of PyTorch."""
import os, types
__version__ = os.environ.get("STAND_IN_VERSION", "2.11.0+cu130")
asked = []
version = types.SimpleNamespace(cuda=os.environ.get("STAND_IN_CUDA", "13.0") or None)
cuda = types.SimpleNamespace(
    is_initialized=lambda: os.environ.get("STAND_IN_USED") == "1",
    device_count=lambda: asked.append("driver") or int(os.environ.get("STAND_IN_GPUS", "1")),
    _lazy_call=lambda call: None,
)
_C = types.SimpleNamespace(_GLIBCXX_USE_CXX11_ABI=True)
'''

#: Stands for the compiler: counts its calls, and makes a library that takes everything.
COMPILER = r"""#!/bin/sh
if [ "$1" = --version ]; then echo "stand-in 1"; exit 0; fi
echo "$@" >> "{folder}/calls"
while [ "$1" != -o ]; do shift; done
exec {cc} -shared -fPIC -x c -o "$2" - <<'C'
const char* tonnage_install(const void* interface, const void* options) {{ return {answer}; }}
const char* tonnage_thrown(void) {{ return 0; }}
C
"""


@pytest.fixture
def program(tmp_path, python):
    """Runs a Python program with the stand-in; its compiler answers so."""
    cc = shutil.which("gcc") or shutil.which("cc")
    if cc is None:
        pytest.fail("these tests need a C compiler")
    stand_in = tmp_path / "stand_in"
    stand_in.mkdir()
    (stand_in / "torch.py").write_text(TORCH)

    def run(text, *before, answer="0", **variables):
        compiler = tmp_path / "compiler"
        compiler.write_text(COMPILER.format(folder=tmp_path, cc=cc, answer=answer))
        compiler.chmod(0o755)
        (tmp_path / "train.py").write_text(textwrap.dedent(text))
        path = os.pathsep.join([str(stand_in), os.environ.get("PYTHONPATH", "")])
        known = {"PYTHONPATH": path, "CXX": str(compiler), "TONNAGE_CACHE_DIR": str(tmp_path / "cache")}
        return python(*before, str(tmp_path / "train.py"), **{**known, **variables})

    run.folder = tmp_path
    return run


INSTALL = "import tonnage.torch\nprint(tonnage.torch.install())\n"


def test_a_fork_that_does_not_end_is_given_up(program):
    text = """
    import os, time, tonnage.torch
    patience, tonnage.torch.SECONDS_TO_COUNT = tonnage.torch.SECONDS_TO_COUNT, 0.2
    me = os.getpid()
    def ask():
        while os.getpid() != me:
            time.sleep(1)
        return 3
    given_up = tonnage.torch._told_by_a_fork(ask)
    tonnage.torch.SECONDS_TO_COUNT = patience
    print(given_up, tonnage.torch._told_by_a_fork(lambda: 3))
    try:
        os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        print("none is left")
    """
    assert program(text).stdout == "-1 3\nnone is left\n"


def test_a_tag_may_end_while_its_thread_looks_at_tags(program):
    # As the collector of garbage ends one: at any moment, in any thread.
    text = """
    import faulthandler, types, tonnage, tonnage.torch
    faulthandler.dump_traceback_later(300, exit=True)
    tags = tonnage.torch._Tags()
    class Pool:
        ended = 0
        @property
        def id(self):
            Pool.ended += 1
            name = f"tag {Pool.ended}"
            tags.idle[name, 0] = []
            with tags.lock:
                tags.pools.setdefault((name, 0), []).append(Pool())
                tags.pools["weights", 0].append(types.SimpleNamespace(id=(0, 9)))
            tags.put_back(name, 0, self)
            return 0, 7
    tags.pools["weights", 0] = [Pool()]
    print(tags.paused(), tags.ids("weights", 0)[:2], Pool.ended > 1)
    """
    assert program(text).stdout == "() [(0, 7), (0, 9)] True\n"


@pytest.fixture
def failed_meanwhile(monkeypatch):
    """As if a function of the program's had thrown."""
    shim = types.SimpleNamespace(tonnage_thrown=lambda: b"out of order")
    monkeypatch.setattr(tonnage.torch._state, "shim", shim)


@pytest.mark.usefixtures("failed_meanwhile")
def test_what_failed_is_told_before_what_failed_meanwhile():
    with pytest.raises(tonnage.NoMemoryError, match="others hold it") as told, tonnage.torch._reporting():
        raise tonnage.NoMemoryError("others hold it")
    if sys.version_info >= (3, 11):
        (note,) = told.value.__notes__
        assert "out of order" in note


@pytest.mark.usefixtures("failed_meanwhile")
def test_what_failed_meanwhile_is_told_if_nothing_else_did():
    with pytest.raises(tonnage.torch.CallbackError, match="out of order"), tonnage.torch._reporting():
        pass


@pytest.mark.parametrize(
    ("variables", "sentence"),
    [
        ({"STAND_IN_VERSION": "2.8.1"}, "PyTorch 2.8.1 is not supported"),
        ({"STAND_IN_VERSION": "2.16.0"}, "Releases 2.9 to 2.15 are"),
        ({"STAND_IN_VERSION": "3.0.0"}, "PyTorch 3.0.0 is not supported"),
        ({"STAND_IN_VERSION": "2.12.0a0+git1234"}, "is not one of the releases that are known"),
        ({"STAND_IN_VERSION": "2.12.0.dev20260101+cu130"}, "is not one of the releases that are known"),
        ({"STAND_IN_CUDA": ""}, "is not built for CUDA"),
        ({"STAND_IN_USED": "1"}, "before the first tensor on a GPU"),
        ({"STAND_IN_GPUS": "0"}, "PyTorch sees no GPU"),
    ],
)
def test_what_cannot_be_is_refused_with_what_to_do(program, variables, sentence):
    done = program(INSTALL, **variables)
    assert done.returncode == 1
    assert "InstallError" in done.stderr and sentence in done.stderr, done.stderr
    assert not (program.folder / "calls").exists(), "nothing is built for what is refused"


def test_options_that_are_wrong_are_refused(program):
    done = program(
        """
        import tonnage, tonnage.torch
        for options in [dict(policy="page"), dict(limit="many")]:
            try:
                tonnage.torch.install(**options)
            except tonnage.UsageError as error:
                print(error)
        """
    )
    first, second = done.stdout.splitlines()
    assert first == "there is no policy 'page': take one of pages, pytorch"
    assert "many" in second


def test_before_it_is_installed_there_is_nothing_to_give_back():
    assert not tonnage.torch.status().installed
    for call in (tonnage.torch.release, tonnage.torch.pause, tonnage.torch.resume):
        with pytest.raises(tonnage.UsageError, match="install"):
            call()


def test_the_shim_is_built_once_and_anew_for_another_release(program):
    for version, builds in [("2.11.0+cu130", 1), ("2.11.0+cu130", 1), ("2.10.0", 2), ("2.11.0+cu130", 2)]:
        done = program(INSTALL, STAND_IN_VERSION=version)
        assert done.returncode == 0, done.stderr
        assert "way='shim'" in done.stdout and f"torch='{version}'" in done.stdout
        calls = (program.folder / "calls").read_text().splitlines()
        assert len(calls) == builds
        assert ("building the shim" in done.stderr) == (len(calls) != getattr(program, "before", 0))
        program.before = len(calls)
    kept = sorted(it.name for it in (program.folder / "cache" / "shim").iterdir())
    assert [name for name in kept if not name.endswith((".so", ".lock"))] == [], "nothing unfinished stays"
    assert sum(name.endswith(".so") for name in kept) == 2


def test_processes_that_begin_at_once_share_one_build(program):
    program(INSTALL, STAND_IN_GPUS="0")
    path = os.pathsep.join([str(program.folder / "stand_in"), os.environ.get("PYTHONPATH", "")])
    variables = {
        **os.environ,
        "PYTHONPATH": path,
        "CXX": str(program.folder / "compiler"),
        "TONNAGE_CACHE_DIR": str(program.folder / "cache"),
    }
    command = [sys.executable, "-c", INSTALL]
    running = [subprocess.Popen(command, env=variables, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    assert all("way='shim'" in process.communicate(timeout=600)[0] for process in running)
    assert len((program.folder / "calls").read_text().splitlines()) == 1


def test_a_compiler_that_is_not_there_or_fails_is_named(program):
    without = "import tonnage.torch\ntonnage.torch.install(fallback=False)\n"
    done = program(without, CXX="/no/such/compiler")
    assert done.returncode == 1 and "CXX names /no/such/compiler, which is not there" in done.stderr
    done = program(without, CXX="", PATH="/nowhere")
    assert done.returncode == 1 and "no C++ compiler was found" in done.stderr and "apt install g++" in done.stderr
    done = program(without, CXX="false")
    assert done.returncode == 1 and "cannot be built in " in done.stderr and ": false says" in done.stderr
    assert not any(it.suffix == ".so" for it in (program.folder / "cache" / "shim").iterdir())


def test_where_nothing_is_kept_it_is_built_for_the_process(program):
    (program.folder / "cache").write_text("no folder")
    done = program(INSTALL)
    assert done.returncode == 0 and "way='shim'" in done.stdout, done.stderr


def test_what_the_shim_says_is_raised(program):
    done = program(INSTALL, answer='"CUDA is in use already"')
    assert done.returncode == 1 and "InstallError: CUDA is in use already" in done.stderr


@pytest.mark.parametrize("release", ["2.9.1", "2.13.0", "2.14.0", "2.15.0"])
@pytest.mark.parametrize("policy", ["pages", "pytorch"])
def test_the_status_tells_what_this_release_and_policy_have_not(program, policy, release):
    text = f"""
    import tonnage.torch
    print(*tonnage.torch.install({policy!r}).limits, sep="\\n")
    """
    told = program(text, STAND_IN_VERSION=release).stdout
    assert "torch.cuda.ExternalStream" in told
    assert ("_annotate_memory" in told) == (release in ("2.14.0", "2.15.0"))
    assert ("must not ask PyTorch for memory" in told) == (policy == "pytorch")
    assert ("MemPool(allocator=…) is refused" in told) == (policy == "pages")


def test_it_is_installed_once(program):
    done = program(
        """
        import tonnage.torch
        first = tonnage.torch.install(policy="pytorch", limit="2GiB")
        assert tonnage.torch.install(policy="pytorch", limit="2GiB") == first == tonnage.torch.status()
        assert first.limit == 2 << 30
        tonnage.torch.install(policy="pages")
        """
    )
    assert done.returncode == 1 and "installed already, with other options" in done.stderr, done.stderr


def test_forks_of_the_program_can_use_the_gpu(program):
    """PyTorch forbids it to forks of a process that has asked the driver how many there are."""
    done = program("import torch, tonnage.torch\nprint(tonnage.torch.install().way, torch.asked)")
    assert done.stdout == "shim []\n", done.stderr
    told = "import torch, tonnage.torch\ntorch.cuda._device_count_nvml = lambda: 1\n" "print(tonnage.torch.install().way, torch.asked)"
    assert program(told).stdout == "shim []\n"


EXEC = ("-m", "tonnage", "exec")


def test_the_command_installs_it_and_passes_the_exit_status(program):
    done = program(
        """
        import sys, torch, tonnage.torch
        assert not any("tonnage-hook" in it for it in sys.path)
        status = tonnage.torch.status()
        print(status.way, status.policy, status.limit, sys.argv[1:])
        sys.exit(3)
        """,
        *EXEC, "--policy", "pytorch", "--limit", "1GiB", "--", sys.executable,
    )
    assert done.returncode == 3, done.stderr
    assert done.stdout == "shim pytorch 1073741824 []\n"


def test_programs_of_the_program_have_it_too(program):
    done = program(
        """
        import subprocess, sys
        if len(sys.argv) == 1:
            sys.exit(subprocess.run([sys.executable, __file__, "again"]).returncode)
        import torch, tonnage.torch
        print(tonnage.torch.status().policy)
        """,
        *EXEC, "--", sys.executable,
    )
    assert (done.returncode, done.stdout) == (0, "pages\n"), done.stderr


def test_the_command_says_why_it_cannot(program):
    done = program("import torch\nprint('began')", *EXEC, "--", sys.executable, STAND_IN_VERSION="2.3.0")
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.startswith("error: PyTorch 2.3.0 is not supported"), done.stderr
    # A process that sees no GPU, or has no PyTorch, is left alone.
    done = program("import torch\nprint('began')", *EXEC, "--", sys.executable, STAND_IN_GPUS="0")
    assert (done.returncode, done.stdout) == (0, "began\n"), done.stderr
    done = program("print('began')", *EXEC, "--", sys.executable)
    assert (done.returncode, done.stdout) == (0, "began\n"), done.stderr
    missing = program("", *EXEC, "--", "/no/such/program")
    assert missing.returncode == 2 and "cannot run /no/such/program" in missing.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_signals_go_on_to_the_program(tmp_path, number):
    ready = tmp_path / "ready"
    process = subprocess.Popen(
        [sys.executable, *EXEC, "--", sys.executable, "-c", f"import time; open({str(ready)!r}, 'w').close(); time.sleep(1000)"],
        stdin=subprocess.DEVNULL,
    )
    began = time.monotonic()
    while not ready.exists():
        assert time.monotonic() - began < 600
        time.sleep(0.05)
    process.send_signal(number)
    assert process.wait(timeout=600) == -number


def test_without_a_compiler_what_an_earlier_one_has_built_serves(program):
    assert "way='shim'" in program(INSTALL).stdout
    done = program(INSTALL, CXX="", PATH="/nowhere")
    assert done.returncode == 0 and "way='shim'" in done.stdout, done.stderr


def test_hooks_stand_behind_each_other_and_the_programs_own_knows_its_file(tmp_path):
    package = os.path.dirname(tonnage.__file__)
    for name in ("one", "two"):
        folder = tmp_path / name
        folder.mkdir()
        shutil.copy(os.path.join(package, "_exec_hook.py"), folder / "sitecustomize.py")
        shutil.copy(os.path.join(package, "_after_import.py"), folder / "tonnage_after_import.py")
    own = tmp_path / "own" / "sitecustomize.py"
    own.parent.mkdir()
    own.write_text("print('own', __file__)\n")
    path = os.pathsep.join(str(tmp_path / name) for name in ("one", "two", "own"))
    count = "import sys; print(sum(type(it).__name__ == 'AfterImport' for it in sys.meta_path))"
    done = subprocess.run(
        [sys.executable, "-c", count], env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False
    )
    assert done.stderr == ""
    assert done.stdout.splitlines() == [f"own {own}", "2"]


def test_a_library_that_others_could_have_written_is_not_run(program):
    assert "way='shim'" in program(INSTALL).stdout
    folder = program.folder / "cache" / "shim"
    (library,) = (it for it in folder.iterdir() if it.suffix == ".so")
    library.chmod(0o777)
    assert "building the shim" in program(INSTALL).stderr, "it is built anew"
    assert library.stat().st_mode & 0o022 == 0
    # A folder of one's own is closed to others, and what lies there is one's own as before.
    folder.chmod(0o777)
    assert program(INSTALL).stderr == ""
    assert folder.stat().st_mode & 0o022 == 0


def test_what_was_built_for_one_process_does_not_stay(program):
    (program.folder / "cache").write_text("no folder")
    temporary = program.folder / "temporary"
    temporary.mkdir()
    done = program(INSTALL, TMPDIR=str(temporary))
    assert "way='shim'" in done.stdout, done.stderr
    assert list(temporary.iterdir()) == []


def test_the_command_says_if_no_python_came_by(program):
    done = program("print('ran')", *EXEC, "--", sys.executable, "-E")
    assert (done.returncode, done.stdout) == (0, "ran\n")
    assert "no Python of this program ran Tonnage's hook" in done.stderr
    done = program("print('ran')", *EXEC, "--", sys.executable)
    assert done.stderr == ""


def test_the_hook_lies_where_nobody_else_can_write(program):
    home = program.folder / "home"
    home.mkdir()
    out = "import os, sys\nprint(os.environ['PYTHONPATH'].split(os.pathsep)[0])\n"
    done = program(out, *EXEC, "--", sys.executable, HOME=str(home), XDG_CACHE_HOME="", XDG_RUNTIME_DIR="")
    assert done.stdout.startswith(str(home / ".cache" / "tonnage" / "tonnage-hook-")), done.stdout + done.stderr
    assert list((home / ".cache" / "tonnage").iterdir()) == [], "gone with the program"


def test_options_that_cannot_be_read_are_a_sentence(program):
    done = program("import torch", *EXEC, "--", "env", "TONNAGE_EXEC=nonsense", sys.executable)
    assert done.returncode == 2 and done.stderr.startswith("error: "), done.stderr
    assert "Traceback" not in done.stderr


def test_an_interrupt_goes_on_once_whether_a_process_or_a_terminal_sent_it(tmp_path):
    """A terminal sends it to the program, too."""
    ready, seen = tmp_path / "ready", tmp_path / "seen"
    text = (
        "import signal, time, sys\n"
        f"signal.signal(signal.SIGINT, lambda *_: open({str(seen)!r}, 'a').write('x'))\n"
        f"signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))\n"
        f"open({str(ready)!r}, 'w').close()\n"
        "while True: time.sleep(0.05)\n"
    )

    def wait_for(condition):
        began = time.monotonic()
        while not condition():
            assert time.monotonic() - began < 600
            time.sleep(0.05)

    begin = (
        "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); "
        "os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
    )
    ours, theirs = os.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", begin, *EXEC, "--", sys.executable, "-c", text], stdin=theirs, start_new_session=True
    )
    os.close(theirs)
    wait_for(ready.exists)
    process.send_signal(signal.SIGINT)
    wait_for(lambda: seen.exists() and seen.read_text())
    assert seen.read_text() == "x"
    os.write(ours, b"\x03")
    wait_for(lambda: len(seen.read_text()) > 1)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=600) == 7
    assert seen.read_text() == "xx"
    os.close(ours)
