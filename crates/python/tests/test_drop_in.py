"""The drop-in's table of C functions, called by ctypes as the shim calls it, on `host`: layouts, threads, pools, failures."""

from __future__ import annotations

import re

import pytest

#: Everything happens in a process of its own: a process has one allocator.
BEGIN = """
import ctypes, pathlib, re, threading
import tonnage
from tonnage import _tonnage

header = (pathlib.Path(tonnage.__file__).parent / "shim" / "tonnage.h").read_text()
names = re.findall(r"\\(\\*(\\w+)\\)\\(", header.split("struct Interface {")[1])
table = ctypes.cast(_tonnage.drop_in_interface(), ctypes.POINTER(ctypes.c_void_p))
u64, u32, u8 = ctypes.c_uint64, ctypes.c_uint32, ctypes.c_uint8
OK, NOT_CACHED, OUT_OF_MEMORY, FAILED = range(4)
NO_STACK, MIB = u32(2**32 - 1), 1 << 20

class Options(ctypes.Structure):
    _fields_ = [("device", ctypes.c_char_p), ("devices", u32), ("capacity", u64), ("policy", ctypes.c_char_p),
                ("settings", ctypes.c_char_p), ("release", ctypes.c_char_p), ("limit", u64), ("publish", u8)]

class Failure(ctypes.Structure):
    _fields_ = [("text", ctypes.c_char_p), ("asked", u64), ("total", u64), ("free", u64), ("allocated", u64), ("reserved", u64),
                ("rounded", u64), ("rejected", u8)]

class Pool(ctypes.Structure):
    _fields_ = [("first", u64), ("second", u64)]

class Quantity(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int64) for name in ("current", "peak", "allocated", "freed")]

def call(name, *arguments, answer=ctypes.c_int):
    return ctypes.CFUNCTYPE(answer)(table[1 + names.index(name)])(*arguments)

def failure():
    return call("failure", answer=Failure)

class Block(ctypes.Structure):
    _fields_ = [("size", u64), ("requested", u64), ("stack", u32), ("allocated", u8), ("active", u8)]

class Entry(ctypes.Structure):
    _fields_ = [("address", u64), ("size", u64), ("stream", u64), ("pool", Pool), ("time_us", u64), ("stack", u32),
                ("action", u32)]

class Moment(ctypes.Structure):
    _fields_ = [("segments", ctypes.c_void_p), ("segment_count", u64), ("blocks", ctypes.POINTER(Block)),
                ("block_count", u64), ("entries", ctypes.POINTER(Entry)), ("entry_count", u64),
                ("owner", ctypes.c_void_p)]

def open_host(capacity, policy=b"policy:pytorch", settings=b"", device=b"host", limit=0):
    options = Options(device, 1, capacity, policy, settings, b"2.11.0", limit, 0)
    return call("open", ctypes.byref(options))

def moment():
    it = Moment()
    assert call("moment", u32(0), Pool(0, 0), u8(1), ctypes.byref(it)) == OK
    blocks = [(it.blocks[number].stack, it.blocks[number].allocated) for number in range(it.block_count)]
    entries = [(it.entries[number].action, it.entries[number].stack) for number in range(it.entry_count)]
    assert call("forget_moment", ctypes.byref(it)) == OK
    return blocks, entries

def fraction():
    share = ctypes.c_double()
    assert call("fraction", u32(0), ctypes.byref(share)) == OK
    return share.value

def allocate(size, stream=0):
    address = u64()
    status = call("allocate_cached", u32(0), u64(size), u64(stream), NO_STACK, ctypes.byref(address))
    if status == NOT_CACHED:
        status = call("allocate_uncached", u32(0), u64(size), u64(stream), NO_STACK, u8(0), ctypes.byref(address))
    return status, address.value

def free(address):
    return call("free", u32(0), u64(address), NO_STACK, None, None)

def allocated():
    quantities, counts = (Quantity * 29)(), (ctypes.c_int64 * 7)()
    assert call("stats", u32(0), quantities, counts) == OK
    return quantities[12].current
"""


@pytest.fixture
def program(python):
    def run(text):
        done = python("-c", BEGIN + text)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


@pytest.mark.parametrize("policy", ["pytorch", "pages"])
def test_threads_ask_and_give_back(program, policy):
    out = program(f"""
assert open_host(256 * MIB, policy=b"policy:{policy}") == OK, failure().text
wrong = []
def work(number):
    for turn in range(200):
        status, address = allocate(1 + (number * 7919 + turn * 104729) % (2 * MIB))
        if status != OK or address == 0 or free(address) != OK:
            wrong.append(failure().text)
threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
[thread.start() for thread in threads], [thread.join() for thread in threads]
print(wrong, allocated())
""")
    assert out == "[] 0\n"


@pytest.mark.parametrize("policy", ["pytorch", "pages"])
def test_memory_runs_out_and_it_goes_on(program, policy):
    out = program(f"""
assert open_host(64 * MIB, policy=b"policy:{policy}") == OK, failure().text
kept = []
while True:
    status, address = allocate(10 * MIB)
    if status != OK:
        break
    kept.append(address)
said = failure()
print(status == OUT_OF_MEMORY, said.text.decode().splitlines()[0], said.total == 64 * MIB, said.rejected)
assert free(kept.pop()) == OK
print(allocate(10 * MIB)[0], free(12345) == FAILED, failure().text.decode())
""")
    first, second = out.splitlines()
    assert re.match(r"True CUDA out of memory\. Tried to allocate \d+\.\d\d MiB\. GPU 0 has a total capacity of", first)
    assert first.endswith("True 0")
    assert second.startswith("0 True no block in use begins at")


def test_streams_and_pools_have_memory_of_their_own(program):
    out = program("""
assert open_host(256 * MIB) == OK, failure().text
pool = Pool(0, 7)
takes = ctypes.CFUNCTYPE(u8, ctypes.c_void_p, u64)(lambda context, stream: stream == 0)
forgotten = []
forget = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda context: forgotten.append(1))
_, outside = allocate(3 * MIB)
assert free(outside) == OK
assert call("begin_pool", u32(0), pool, takes, None, forget) == OK
_, inside = allocate(3 * MIB)
_, other = allocate(3 * MIB, stream=5)
assert call("end_pool", u32(0), pool) == OK
_, again = allocate(3 * MIB)
uses = u64()
assert call("pool_uses", u32(0), pool, ctypes.byref(uses)) == OK
live = []
tell = ctypes.CFUNCTYPE(None, ctypes.c_void_p, u64)(lambda context, address: live.append(address))
assert call("live_in_pool", u32(0), pool, tell, None) == OK
print(inside != outside, other not in (inside, outside), again == outside, uses.value, live == [inside], forgotten)
assert call("release_pool", u32(0), pool) == OK
print(call("release_pool", u32(0), pool) == FAILED, failure().text.decode())
""")
    first, second = out.splitlines()
    assert first == "True True True 1 True [1]"
    assert second.startswith("True ")


def test_settings_and_wrong_calls_are_told(program):
    out = program("""
print(open_host(MIB, settings=b"max_split_size_mb:1") == FAILED, failure().text.decode())
print(open_host(MIB, policy=b"policy:page") == FAILED, failure().text.decode())
assert open_host(256 * MIB) == OK
print(open_host(MIB) == FAILED, failure().text.decode())
print(call("configure", b"nonsense:1") == FAILED)
print(allocate(0)[0] == FAILED, call("set_pool_state", u32(0), None, NO_STACK, None, None, None) == FAILED)
""")
    assert all(line.startswith("True") for line in out.splitlines()), out


def test_to_look_at_a_gpu_opens_none(program):
    """None is to be seen, so that opening one is an error."""
    out = program("""
import os
os.environ["CUDA_VISIBLE_DEVICES"] = ""
assert open_host(0, device=b"cuda") == OK, failure().text
largest, uses = u64(1), u64(1)
quantities, counts = (Quantity * 29)(), (ctypes.c_int64 * 7)()
said, pool = [], Pool(0, 7)
text = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)(lambda *it: said.append(it[2]))
tell = ctypes.CFUNCTYPE(None, ctypes.c_void_p, u64)(lambda *it: None)
looks = [
    call("stats", u32(0), quantities, counts), call("reset_peaks", u32(0)), call("reset_sums", u32(0)),
    call("largest_free", u32(0), ctypes.byref(largest)), call("settings", text, None),
    call("pool_uses", u32(0), pool, ctypes.byref(uses)), call("live_in_pool", u32(0), pool, tell, None),
    call("empty_cache", Pool(0, 0), NO_STACK), call("record_history", u8(1), u64(10), u32(3), u8(0), u32(0)),
]
print(looks, largest.value, uses.value, len(said), fraction(), moment(), counts[5])
print(allocate(1000)[0] == FAILED, call("stats", u32(1), quantities, counts) == FAILED, failure().text.decode())
""")
    first, second = out.splitlines()
    assert first == "[0, 0, 0, 0, 0, 0, 0, 0, 0] 0 0 9 1.0 ([], []) -1"
    assert second == "True True there is no device 1"


def test_what_a_program_allows_itself_does_not_undo_the_limit(program):
    out = program("""
assert open_host(256 * MIB, limit=64 * MIB) == OK, failure().text
def fits(size):
    status, address = allocate(size * MIB)
    return status == OK and free(address) == OK and call("empty_cache", Pool(0, 0), NO_STACK) == OK
print(fits(60), fits(70), fraction())
for share in (0.9, 0.1, 1.0):
    assert call("set_fraction", u32(0), ctypes.c_double(share)) == OK
    print(round(fraction(), 3), fits(20), fits(40), fits(70))
print(call("set_fraction", u32(0), ctypes.c_double(1.5)) == FAILED)
""")
    assert out.splitlines() == [
        "True False 1.0", "0.9 True True False", "0.1 True False False", "1.0 True True False", "True",
    ]


def test_a_share_that_the_settings_allow_is_told_before_the_device_is_opened(program):
    out = program("""
assert open_host(256 * MIB, settings=b"per_process_memory_fraction:0.25") == OK, failure().text
print(fraction(), allocate(60 * MIB)[0], fraction(), allocate(60 * MIB)[0] == OUT_OF_MEMORY)
""")
    assert out == "0.25 0 0.25 True\n"


def test_a_fork_gives_nothing_back_and_is_told_why_it_gets_nothing(program):
    out = program("""
import os
assert open_host(64 * MIB) == OK, failure().text
_, kept = allocate(MIB)
child = os.fork()
if child == 0:
    fine = free(kept) == OK and allocate(MIB)[0] == FAILED and b"forked" in failure().text
    os._exit(0 if fine else 1)
print(os.waitpid(child, 0)[1], allocated() == MIB, free(kept) == OK)
""")
    assert out == "0 True True\n"


def test_a_fork_before_the_first_use_is_a_process_like_any_other(program):
    out = program("""
import os
assert open_host(64 * MIB) == OK, failure().text
child = os.fork()
if child == 0:
    status, address = allocate(MIB)
    os._exit(0 if status == OK and free(address) == OK else 1)
print(os.waitpid(child, 0)[1])
""")
    assert out == "0\n"


def test_histories_keep_what_was_said(program):
    """Stacks of calls by number: of emptied caches, of blocks whose history is over."""
    out = program("""
assert open_host(256 * MIB) == OK, failure().text
def record(on, clear=0):
    assert call("record_history", u8(on), u64(100), u32(3), u8(clear), u32(0)) == OK
def request(size, stack):
    address = u64()
    assert call("allocate_uncached", u32(0), u64(size), u64(0), u32(stack), u8(0), ctypes.byref(address)) == OK
    return address.value
record(1, clear=1)
kept, gone = request(30 * MIB, 5), request(40 * MIB, 6)
assert free(gone) == OK
# Who wants to be told of changes takes nothing from the history.
told = []
tracker = ctypes.CFUNCTYPE(None, ctypes.c_void_p, u32, ctypes.c_void_p)(lambda *it: told.append(it[1]))
assert call("track", tracker, None) == OK
assert call("empty_cache", Pool(0, 0), u32(7)) == OK
print(moment()[1], told)
record(0)
print(moment())
assert free(kept) == OK
""")
    first, second = out.splitlines()
    # A free that says nothing has the stack of its allocation; the snapshot is told of too.
    entries = [(3, 5), (0, 5), (3, 6), (0, 6), (1, 6), (2, 6), (4, 7)]
    assert first == f"{entries} [0, 0]"
    assert second == "([(5, 1)], [])"


#: Requests of one pool and of none, with bytes in them that can be read: the device is this machine's memory.
TAGGED = """
takes = ctypes.CFUNCTYPE(u8, ctypes.c_void_p, u64)(lambda context, stream: 1)
forget = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda context: None)
pool, device = Pool(0, 7), Pool(0, 0)

def inside(size, of=pool):
    assert call("begin_pool", u32(0), of, takes, None, forget) == OK, failure().text
    answer = allocate(size)
    assert call("end_pool", u32(0), of) == OK and call("release_pool", u32(0), of) == OK
    return answer

def write(address, size, number):
    ctypes.memset(address, number, size)

def holds(address, size, number):
    return ctypes.string_at(address, size) == bytes([number]) * size

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096
"""

#: What can keep addresses.
MOVABLE = [("pages", ""), ("pytorch", "expandable_segments:True")]


@pytest.mark.parametrize(("policy", "settings"), MOVABLE)
def test_a_pool_is_paused_by_itself_and_its_bytes_come_back(program, policy, settings):
    out = program(TAGGED + f"""
assert open_host(512 * MIB, policy=b"policy:{policy}", settings=b"{settings}") == OK, failure().text
assert call("use_pool", u32(0), pool) == OK
(_, outside), (_, large), (_, small) = allocate(20 * MIB), inside(60 * MIB), inside(5000)
write(outside, 20 * MIB, 1), write(large, 60 * MIB, 2), write(small, 5000, 3)
for keep in (1, 0):
    before, gone = resident(), u64()
    assert call("pause", u32(0), pool, u8(keep), ctypes.byref(gone)) == OK, failure().text
    # Kept bytes are in this machine's memory as well, once more.
    print(gone.value >= 60 * MIB, keep or before - resident() >= 60 * MIB)
    print(inside(1000)[0] == FAILED, b"is paused" in failure().text, holds(outside, 20 * MIB, 1))
    status, more = allocate(30 * MIB)
    assert status == OK and free(more) == OK
    assert call("pause", u32(0), pool, u8(1), None) == FAILED and b"paused already" in failure().text
    assert call("resume", u32(0), pool) == OK, failure().text
    print(holds(large, 60 * MIB, 2) == bool(keep), holds(small, 5000, 3) == bool(keep))
    write(large, 60 * MIB, 2), write(small, 5000, 3)
assert inside(1000)[0] == OK and holds(outside, 20 * MIB, 1)
assert call("pause", u32(0), Pool(0, 9), u8(1), None) == FAILED
print(failure().text.decode())
""")
    lines = out.splitlines()
    assert lines == ["True 1", "True True True", "True True", "True True", "True True True", "True True",
                     "there is no pool (0, 9) in use to pause"], out


@pytest.mark.parametrize(("policy", "settings"), MOVABLE)
def test_what_is_resumed_without_a_pool_is_all(program, policy, settings):
    out = program(TAGGED + f"""
assert open_host(512 * MIB, policy=b"policy:{policy}", settings=b"{settings}") == OK, failure().text
assert call("use_pool", u32(0), pool) == OK
(_, outside), (_, block) = allocate(20 * MIB), inside(30 * MIB)
write(outside, 20 * MIB, 1), write(block, 30 * MIB, 2)
assert call("pause", u32(0), pool, u8(1), None) == OK and call("pause", u32(0), device, u8(1), None) == OK
assert call("resume", u32(0), device) == OK, failure().text
print(holds(outside, 20 * MIB, 1), holds(block, 30 * MIB, 2))
gone = u64()
assert free(block) == OK and call("release", u32(0), pool, u64(0), ctypes.byref(gone)) == OK
print(gone.value >= 30 * MIB, holds(outside, 20 * MIB, 1))
""")
    assert out == "True True\nTrue True\n"


def test_fixed_segments_are_not_paused_and_say_what_to_do(program):
    out = program(TAGGED + """
assert open_host(512 * MIB) == OK, failure().text
assert call("use_pool", u32(0), pool) == OK
_, block = inside(30 * MIB)
print(call("pause", u32(0), pool, u8(1), None) == FAILED, failure().text.decode())
write(block, 30 * MIB, 2)
""")
    assert out.startswith("True ") and "use the policy `pages` or `expandable_segments:True`" in out


def test_a_pool_takes_its_segments_from_functions_of_the_program(program):
    out = program(TAGGED + """
assert open_host(512 * MIB) == OK, failure().text
given, forgotten = {}, []
def give(context, size):
    if sum(map(len, given.values())) + size > 64 * MIB:
        return 0
    memory = (ctypes.c_char * size)()
    given[ctypes.addressof(memory)] = memory
    return ctypes.addressof(memory)
acquire = ctypes.CFUNCTYPE(u64, ctypes.c_void_p, u64)(give)
release = ctypes.CFUNCTYPE(None, ctypes.c_void_p, u64)(lambda context, address: given.pop(address) and None)
drop = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda context: forgotten.append(1))
assert call("use_pool_from", u32(0), pool, acquire, release, None, drop) == OK, failure().text
_, outside = allocate(3 * MIB)
_, block = inside(30 * MIB)
write(block, 30 * MIB, 4)
print(list(given) == [block], outside in given, inside(60 * MIB)[0] == OUT_OF_MEMORY, holds(block, 30 * MIB, 4))
# A pool that is there keeps what it has.
assert call("use_pool_from", u32(0), pool, acquire, release, None, drop) == OK
print(len(forgotten))
assert call("release_pool", u32(0), pool) == OK and call("release_pool", u32(0), pool) == OK and free(block) == OK
assert call("empty_cache", device, NO_STACK) == OK
print(given, len(forgotten))
""")
    assert out == "True False True True\n1\n{} 2\n"


def test_a_pool_of_the_programs_own_memory_is_refused_where_pages_move(program):
    out = program(TAGGED + """
assert open_host(512 * MIB, policy=b"policy:pages") == OK, failure().text
forgotten = []
acquire = ctypes.CFUNCTYPE(u64, ctypes.c_void_p, u64)(lambda context, size: 0)
release = ctypes.CFUNCTYPE(None, ctypes.c_void_p, u64)(lambda context, address: None)
drop = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda context: forgotten.append(1))
print(call("use_pool_from", u32(0), pool, acquire, release, None, drop) == FAILED, forgotten, failure().text.decode())
""")
    assert out.startswith("True [1] pool (0, 7) cannot have memory of an allocator of its own under the policy `pages`"), out
