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
    _fields_ = [("text", ctypes.c_char_p), ("asked", u64), ("total", u64), ("free", u64), ("allocated", u64),
                ("rejected", u8)]

class Pool(ctypes.Structure):
    _fields_ = [("first", u64), ("second", u64)]

class Quantity(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int64) for name in ("current", "peak", "allocated", "freed")]

def call(name, *arguments, answer=ctypes.c_int):
    return ctypes.CFUNCTYPE(answer)(table[1 + names.index(name)])(*arguments)

def failure():
    return call("failure", answer=Failure)

def open_host(capacity, policy=b"policy:pytorch", settings=b""):
    options = Options(b"host", 1, capacity, policy, settings, b"2.11.0", 0, 0)
    return call("open", ctypes.byref(options))

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
