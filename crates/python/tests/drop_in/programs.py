"""Programs that PyTorch's own allocator has no counterpart of, or of several processes, under the drop-in on the fake CUDA libraries.

A program is a function of a folder to work in; it raises if something is not as it should be. ``compare.py`` runs each in a fork.
"""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import time

PROGRAMS = {}


def program(run):
    PROGRAMS[run.__name__] = run
    return run


def run(folder, text, *before, name="program.py", **variables):
    """What a script prints in a Python of its own; with these words before the script's name."""
    path = os.path.join(folder, name)
    with open(path, "w") as file:
        file.write(text)
    words = [*(before or [sys.executable]), path]
    done = subprocess.run(
        words, cwd=folder, env={**os.environ, **variables}, capture_output=True, text=True, timeout=1200, check=False
    )
    assert done.returncode == 0, f"{done.returncode}: {done.stdout[-2000:]} {done.stderr[-4000:]}"
    return done.stdout


EXEC = (sys.executable, "-m", "tonnage", "exec", "--policy", "pytorch", "--", sys.executable)

STARTED = """
import sys
import torch, tonnage.torch
import torch.multiprocessing as processes
{install}

def work(number, how):
    kept = torch.empty(1000, device="cuda")
    status = tonnage.torch.status()
    assert (status.way, status.policy) == ("shim", "pytorch"), status
    assert torch.cuda.memory_allocated() == 4096
    assert "Tonnage" not in torch.cuda.memory_summary()

if __name__ == "__main__":
    for how in ("fork", "spawn"):
        processes.start_processes(work, (how,), 2, start_method=how)
    work(0, "self")
    print("ended")
"""


@program
def forked_and_spawned_under_the_command(folder):
    assert run(folder, STARTED.format(install=""), *EXEC) == "ended\n"


@program
def forked_and_spawned_with_install(folder):
    # Whoever is spawned runs the top of the script again.
    text = STARTED.format(install='tonnage.torch.install(policy="pytorch", publish=False, fallback=False)')
    assert run(folder, text) == "ended\n"


@program
def ranks_of_torchrun(folder):
    text = """
import torch, torch.distributed, tonnage.torch
torch.distributed.init_process_group("gloo")
kept = torch.empty(1 << 20, device="cuda")
told = [None, None]
status = tonnage.torch.status()
torch.distributed.all_gather_object(told, [status.way, status.policy, torch.cuda.memory_allocated()])
if torch.distributed.get_rank() == 0:
    print(told)
torch.distributed.destroy_process_group()
"""
    out = run(folder, text, *EXEC, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", OMP_NUM_THREADS="1")
    # Earlier releases tell of their connections here.
    assert out.endswith(f"{[['shim', 'pytorch', 4 << 20]] * 2}\n"), out


@program
def without_a_compiler_a_program_trains_and_what_cannot_be_served_raises(folder):
    text = """
import torch, tonnage.torch
status = tonnage.torch.install(policy={policy!r}, limit="1GiB", publish=False)
assert status.way == "pluggable", status
model = torch.nn.Linear(1000, 1000, device="cuda")
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(2):
    model(torch.randn(64, 1000, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
kept = torch.empty(300 << 20, dtype=torch.uint8, device="cuda")
for _ in range(2):
    try:
        torch.empty(900 << 20, dtype=torch.uint8, device="cuda")
    except RuntimeError as error:
        assert "CUDA out of memory" in str(error), error
    else:
        raise AssertionError("it was served")
del kept
# What was cached makes room.
assert torch.empty(900 << 20, dtype=torch.uint8, device="cuda").data_ptr() != 0
print("trained")
"""
    for policy in ("pytorch", "pages"):
        inside = os.path.join(folder, policy)
        os.mkdir(inside)
        out = run(inside, text.format(policy=policy), CXX="/nowhere/a-compiler", TONNAGE_CACHE_DIR=inside)
        assert out == "trained\n", out


@program
def top_shows_the_process(folder):
    text = """
import sys, torch, tonnage.torch
tonnage.torch.install(policy="pages", fallback=False)
kept = torch.empty(100 << 20, dtype=torch.uint8, device="cuda")
print("ready", flush=True)
sys.stdin.read()
"""
    path = os.path.join(folder, "holder.py")
    with open(path, "w") as file:
        file.write(text)
    variables = {**os.environ, "TONNAGE_MONITOR_DIR": folder}
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, path], env=variables, stdin=pipe, stdout=pipe, text=True) as holder:
        try:
            assert holder.stdout.readline() == "ready\n"
            words = [sys.executable, "-m", "tonnage", "top", "--json"]
            until, seen = time.monotonic() + 600, 0
            # Figures are renewed every now and then.
            while seen < 100 << 20 and time.monotonic() < until:
                shown = json.loads(subprocess.run(words, env=variables, capture_output=True, text=True, check=True).stdout)
                (found,) = shown["processes"]
                assert found["pid"] == holder.pid, found
                seen = found["devices"][0]["allocated"]
            assert seen == 100 << 20, found
        finally:
            holder.stdin.close()


def install(policy, **options):
    import tonnage.torch

    return tonnage.torch.install(policy=policy, publish=False, fallback=False, **options)


def with_two_devices(folder):
    """Where a process is told that it has two."""
    path = os.path.join(folder, "profile")
    with open(os.environ["TONNAGE_FAKE_PROFILE"]) as file, open(path, "w") as changed:
        changed.writelines([*(line for line in file if line.split()[0] != "devices"), "devices 2\n"])
    return {"TONNAGE_FAKE_PROFILE": path}


@program
def gpus_that_are_seen_later(folder):
    text = """
import os, torch, tonnage.torch
os.environ["CUDA_VISIBLE_DEVICES"] = "0,1"
kept = torch.empty(1 << 20, dtype=torch.uint8, device="cuda:1")
assert tonnage.torch.status().way == "shim"
assert [torch.cuda.memory_allocated(device) for device in range(2)] == [0, 1 << 20]
"""
    run(folder, text, *EXEC, CUDA_VISIBLE_DEVICES="0", **with_two_devices(folder))


@program
def devices_reach_each_others_pages(folder):
    text = """
import torch, tonnage.torch
from cases import who_reaches
tonnage.torch.install(policy="pages", publish=False, fallback=False)
first = torch.empty(30 << 20, dtype=torch.uint8, device="cuda:0")
assert who_reaches(first) == [[1, 0]]
there = first.to("cuda:1")
back = there.to("cuda:0")
more = [torch.empty(50 << 20, dtype=torch.uint8, device=f"cuda:{device}") for device in range(2)]
assert who_reaches(first, there, back, *more) == [[1, 1]] * 5, who_reaches(first, there, back, *more)
"""
    here = os.path.dirname(os.path.abspath(__file__))
    run(folder, text, PYTHONPATH=f"{here}{os.pathsep}{os.environ['PYTHONPATH']}", **with_two_devices(folder))


def tags(torch, tonnage):
    def free():
        return torch.cuda.mem_get_info()[0]

    def refused(call, *words):
        try:
            call(*words)
        except (RuntimeError, ValueError) as error:
            return str(error)
        raise AssertionError("it was not refused")

    outside = torch.empty(30 << 20, dtype=torch.uint8, device="cuda")
    with tonnage.torch.tag("weights"):
        weights = torch.empty(50 << 20, dtype=torch.uint8, device="cuda")
        with tonnage.torch.tag("cache"):
            cache = torch.empty(40 << 20, dtype=torch.uint8, device="cuda")
            with tonnage.torch.tag("weights"):
                more = torch.empty(20 << 20, dtype=torch.uint8, device="cuda")
    torch.cuda.empty_cache()
    addresses, before = [weights.data_ptr(), more.data_ptr()], free()
    gone = tonnage.torch.pause("weights", keep=False)
    assert gone >= 70 << 20 and free() == before + gone, (gone, free() - before)
    assert tonnage.torch.status().paused_tags == ("weights",)
    assert "paused" in refused(tonnage.torch.pause, "weights")
    with tonnage.torch.tag("weights"):
        assert 'the tag "weights"' in refused(lambda: torch.empty(10 << 20, device="cuda"))
    # Everything else goes on.
    with tonnage.torch.tag("cache"):
        other = torch.empty(10 << 20, dtype=torch.uint8, device="cuda")
    del other
    beside = torch.empty(25 << 20, dtype=torch.uint8, device="cuda")
    tonnage.torch.pause("cache")
    assert tonnage.torch.status().paused_tags == ("weights", "cache")
    tonnage.torch.resume("weights")
    assert tonnage.torch.status().paused_tags == ("cache",)
    assert [weights.data_ptr(), more.data_ptr()] == addresses
    tonnage.torch.resume()
    assert tonnage.torch.status().paused_tags == ()
    del weights, more
    before = free()
    assert tonnage.torch.release(tag="weights") >= 70 << 20 and free() > before
    assert "the tag 'gradients'" in refused(tonnage.torch.pause, "gradients")
    assert "leave the size out" in refused(lambda: tonnage.torch.release("1GiB", tag="cache"))
    # A tag is paused when its tensors go.
    tonnage.torch.pause("cache")
    del cache, outside, beside
    gc.collect()
    torch.cuda.empty_cache()
    tonnage.torch.resume()
    tonnage.torch.release(tag="cache")
    assert torch.cuda.memory_allocated() == 0


@program
def tags_of_pages(folder):
    import tonnage.torch
    import torch

    install("pages")
    tags(torch, tonnage)


@program
def tags_of_expandable_segments(folder):
    import tonnage.torch
    import torch

    install("pytorch", conf="expandable_segments:True")
    tags(torch, tonnage)


def tags_that_are_no_captures(torch, tonnage):
    side = torch.cuda.Stream()
    kept = torch.empty(30 << 20, dtype=torch.uint8, device="cuda")
    with tonnage.torch.tag("first"):
        first = torch.empty(20 << 20, dtype=torch.uint8, device="cuda")
    with tonnage.torch.tag("second"):
        # What another stream used comes back as soon as that is done with it.
        kept.record_stream(side)
        del kept
        torch.cuda.synchronize()
        torch.empty(100, device="cuda")
        active = torch.cuda.memory_stats()["active_bytes.all.current"]
        assert active <= (22 << 20), active
        # What is cached makes room.
        large = torch.empty(150 << 20, dtype=torch.uint8, device="cuda")
        del large
        assert tonnage.torch.release(tag="second") > 0
        assert tonnage.torch.pause("first") >= 20 << 20
        tonnage.torch.resume("first")
    assert first.numel() == 20 << 20


@program
def tags_are_no_captures_of_pages(folder):
    import tonnage.torch
    import torch

    install("pages", limit="200MiB")
    cached = torch.empty(120 << 20, dtype=torch.uint8, device="cuda")
    del cached
    tags_that_are_no_captures(torch, tonnage)


@program
def tags_are_no_captures_of_expandable_segments(folder):
    import tonnage.torch
    import torch

    install("pytorch", conf="expandable_segments:True", limit="200MiB")
    cached = torch.empty(120 << 20, dtype=torch.uint8, device="cuda")
    del cached
    tags_that_are_no_captures(torch, tonnage)


@program
def a_pause_in_a_capture_is_refused_and_the_capture_goes_on(folder):
    import tonnage.torch
    import torch

    install("pages")
    with tonnage.torch.tag("weights"):
        weights = torch.empty(20 << 20, dtype=torch.uint8, device="cuda")
    waits, graph, refused = [], torch.cuda.CUDAGraph(), []
    waiting, torch.cuda.synchronize = torch.cuda.synchronize, lambda device=None: waits.append(device)
    with torch.cuda.graph(graph):
        # The capture itself waits before it begins.
        waits.clear()
        for name in ("weights", None):
            try:
                tonnage.torch.pause(name)
            except (RuntimeError, ValueError) as error:
                refused.append(str(error))
    torch.cuda.synchronize = waiting
    assert len(refused) == 2 and all("capture" in text for text in refused), refused
    assert waits == [], waits
    assert tonnage.torch.pause("weights") >= weights.numel()
    # Nor does anything come back in one.
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for name in ("weights", None):
            try:
                tonnage.torch.resume(name)
            except (RuntimeError, ValueError) as error:
                refused.append(str(error))
    assert len(refused) == 4 and all("capture" in text for text in refused), refused
    assert tonnage.torch.status().paused_tags == ("weights",)
    tonnage.torch.resume()
    assert tonnage.torch.status().paused_tags == ()


@program
def an_allocator_that_comes_back_is_refused(folder):
    import tonnage.torch
    import torch

    install("pytorch")
    told, dropped = [], [torch.empty(30 << 20, dtype=torch.uint8, device="cuda")]
    aside = torch.empty(100, device="cuda")

    def meanwhile():
        for call in (
            lambda: torch.empty(100, device="cuda"),
            lambda: aside.record_stream(torch.cuda.Stream()),
            torch.cuda.empty_cache,
            torch.cuda.memory_stats,
            torch.cuda.memory_snapshot,
            tonnage.torch.status,
            tonnage.torch.release,
            tonnage.torch.pause,
        ):
            try:
                told.append(f"not refused: {call()}")
            except Exception as error:
                told.append(str(error))
        # As the garbage collector may.
        dropped.clear()

    allocator, calls = own_allocator(torch, meanwhile)
    pool = torch.cuda.MemPool(allocator)
    with torch.cuda.use_mem_pool(pool):
        inside = torch.empty(5 << 20, device="cuda")
    assert len(told) == 8 and all("the allocator of a MemPool" in text for text in told), told
    assert calls == [20 << 20] and torch.cuda.memory_allocated() == (20 << 20) + 512
    again = torch.empty(30 << 20, dtype=torch.uint8, device="cuda")
    assert torch.cuda.memory_reserved() == (20 + 30 + 2) << 20
    assert inside.numel() + again.numel() + aside.numel() > 0


FAILING = r"""
#include <stdexcept>
extern "C" void* give(long, int, void*) {
  static unsigned long next = 0x770000000000;
  return reinterpret_cast<void*>(next += 1UL << 32);
}
extern "C" void* fail(long, int, void*) {
  throw std::runtime_error("the allocator is out of order");
}
extern "C" void keep(void*, long, int, void*) {
  throw std::runtime_error("the memory is not taken back");
}
"""


def failing_allocator(torch, folder, giving):
    """One of which a function throws: ``fail`` for memory, or ``keep`` for memory that comes back."""
    import ctypes

    source, path = os.path.join(folder, "failing.cpp"), os.path.join(folder, "failing.so")
    with open(source, "w") as file:
        file.write(FAILING)
    subprocess.run([os.environ.get("CXX", "g++"), "-shared", "-fPIC", source, "-o", path], check=True)
    library = ctypes.CDLL(path)
    addresses = [ctypes.cast(getattr(library, name), ctypes.c_void_p).value for name in (giving, "keep")]
    allocator = torch._C._cuda_customAllocator(*addresses)
    calls_kept.append((library, allocator))
    return allocator


@program
def an_allocator_that_fails_ends_its_request_at_once(folder):
    import torch

    install("pytorch")
    cached = torch.empty(30 << 20, dtype=torch.uint8, device="cuda")
    del cached
    pool = torch.cuda.MemPool(failing_allocator(torch, folder, "fail"))
    try:
        with torch.cuda.use_mem_pool(pool):
            torch.empty(100, device="cuda")
    except RuntimeError as error:
        assert "out of order" in str(error), error
    else:
        raise AssertionError("it was served")
    stats = torch.cuda.memory_stats()
    assert stats["num_alloc_retries"] == 0 and torch.cuda.memory_reserved() == 30 << 20, stats
    torch.empty(100, device="cuda")


@program
def what_an_allocator_throws_is_raised_where_it_was_called(folder):
    import tonnage.torch
    import torch

    install("pytorch")
    pool = torch.cuda.MemPool(failing_allocator(torch, folder, "give"))
    with torch.cuda.use_mem_pool(pool):
        inside = torch.empty(5 << 20, device="cuda")
    del pool
    gc.collect()
    del inside
    try:
        tonnage.torch.release()
    except tonnage.torch.CallbackError as error:
        assert "not taken back" in str(error), error
    else:
        raise AssertionError("it was not told")
    # Nothing is left of it for what comes next.
    torch.empty(5 << 20, device="cuda")
    assert tonnage.torch.release() > 0


@program
def a_pause_names_memory_of_an_allocator_of_ones_own(folder):
    import tonnage.torch
    import torch

    install("pytorch", conf="expandable_segments:True")
    pool = torch.cuda.MemPool(own_allocator(torch)[0])
    with torch.cuda.use_mem_pool(pool):
        inside = torch.empty(5 << 20, device="cuda")
    try:
        tonnage.torch.pause()
    except (RuntimeError, ValueError) as error:
        assert "an allocator of their own" in str(error) and "expandable" not in str(error), error
    else:
        raise AssertionError("it was not refused")
    assert tonnage.torch.status().paused == () and inside.numel() == 5 << 20


@program
def threads_under_one_tag(folder):
    import threading

    import tonnage.torch
    import torch

    install("pages")
    torch.cuda.init()
    both, wrong, kept = threading.Barrier(2), [], []

    def work():
        try:
            with tonnage.torch.tag("shared"):
                both.wait(600)
                kept.append(torch.empty(30 << 20, dtype=torch.uint8, device="cuda"))
                both.wait(600)
        except BaseException as error:
            wrong.append(error)
            both.abort()

    threads = [threading.Thread(target=work) for _ in range(2)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert not wrong, wrong
    assert tonnage.torch.pause("shared") >= 60 << 20
    tonnage.torch.resume("shared")


RUNS_OUT = """
import torch
{install}
def load():
    return [torch.empty(60 << 20, dtype=torch.uint8, device="cuda") for _ in range(3)]

kept = load()
for _ in range(2):
    try:
        torch.empty(4 << 40, dtype=torch.uint8, device="cuda")
    except torch.OutOfMemoryError:
        pass
print(torch.cuda.memory_allocated())
"""


def says_what_held_memory(folder, path):
    """The report of a history that was saved when memory ran out; one was, and that once."""
    assert [it for it in os.listdir(folder) if ".pickle" in it] == [os.path.basename(path)], os.listdir(folder)
    words = [sys.executable, "-m", "tonnage", "report", "--json", path]
    done = subprocess.run(words, capture_output=True, text=True, timeout=1200, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    # The failed request, and where what is held was asked for.
    assert str(4 << 40) in done.stdout and "load" in done.stdout, done.stdout[-4000:]


@program
def a_history_is_saved_at_a_failure_and_reported(folder):
    for policy in ("pages", "pytorch"):
        inside = os.path.join(folder, policy)
        os.mkdir(inside)
        path = os.path.join(inside, "history.pickle")
        begin = f"import tonnage.torch\ntonnage.torch.install({policy!r}, history={path!r}, publish=False, fallback=False)"
        assert run(inside, RUNS_OUT.format(install=begin)) == f"{180 << 20}\n"
        says_what_held_memory(inside, path)


@program
def a_history_is_saved_at_a_failure_under_the_command(folder):
    path = os.path.join(folder, "history.pickle.zst")
    words = [sys.executable, "-m", "tonnage", "exec", "--policy", "pages", "--history", path, "--", sys.executable]
    assert run(folder, RUNS_OUT.format(install=""), *words) == f"{180 << 20}\n"
    says_what_held_memory(folder, path)


@program
def what_pages_cannot_have_is_refused_with_what_to_do(folder):
    import torch

    install("pages")
    refused = []
    for call in (
        lambda: torch.empty(10, device="cuda").untyped_storage()._share_cuda_(),
        lambda: torch.cuda.MemPool(own_allocator(torch)[0]),
    ):
        try:
            call()
        except RuntimeError as error:
            refused.append(str(error))
    assert len(refused) == 2 and all('policy="pytorch"' in text for text in refused), refused


def own_allocator(torch, meanwhile=lambda: None):
    """An allocator that a program could have: the driver's memory, as it is. With what was asked of it. Does something meanwhile."""
    import ctypes

    runtime = ctypes.CDLL(f"libcudart.so.{torch.version.cuda.split('.')[0]}")
    calls = []

    def allocate(size, device, stream):
        meanwhile()
        place = ctypes.c_void_p()
        if runtime.cudaMalloc(ctypes.byref(place), ctypes.c_size_t(size)) != 0:
            return None
        calls.append(size)
        return place.value

    def free(address, size, device, stream):
        calls.append(-size)
        runtime.cudaFree(ctypes.c_void_p(address))

    word, number = ctypes.c_void_p, ctypes.c_int
    taking = ctypes.CFUNCTYPE(word, ctypes.c_ssize_t, number, word)(allocate)
    giving = ctypes.CFUNCTYPE(None, word, ctypes.c_ssize_t, number, word)(free)
    addresses = [ctypes.cast(it, ctypes.c_void_p).value for it in (taking, giving)]
    allocator = torch._C._cuda_customAllocator(*addresses)
    calls_kept.append((taking, giving, runtime, allocator))
    return allocator, calls


#: For as long as the process lives.
calls_kept = []
