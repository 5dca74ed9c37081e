"""Writes the fuzzer's seeds: small pickles that take every path of the reader, and some that take
none. Run from the repository's root:

    python3 crates/snapshot/tests/make_seeds.py fuzz/corpus/pickle
"""

import gzip
import lzma
import os
import pickle
import pickletools
import subprocess
import sys

OUT = sys.argv[1]


def write(name, data):
    with open(os.path.join(OUT, name), "wb") as file:
        file.write(data)


def frame(name, line):
    return {"name": name, "filename": f"/src/{name}.py", "line": line}


def entry(i, **more):
    return {
        "action": ["alloc", "free_requested", "free_completed", "segment_alloc"][i % 4].encode().decode(),
        "addr": 0x7F0000000000 + 512 * i,
        "size": i * 3700,
        "stream": 0,
        "time_us": 1794704059916637 + i,
        "compile_context": "N/A",
        "user_metadata": "",
        **more,
    }


def segment(address, frames):
    block = {"address": address, "size": 4096, "requested_size": 4000, "state": "inactive", "frames": frames}
    return {
        "device": 0,
        "address": address,
        "total_size": 4096,
        "allocated_size": 0,
        "active_size": 0,
        "requested_size": 0,
        "stream": 0,
        "segment_type": "small",
        "segment_pool_id": (0, 1),
        "is_expandable": False,
        "frames": frames,
        "blocks": [block],
    }


STACK = [frame("inner", 1), frame("outer", 2)]
SETTINGS = {
    "PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:128",
    "max_split_size": 128 << 20,
    "garbage_collection_threshold": 0.6,
    "expandable_segments": False,
    "pinned_num_register_threads": 1,
    "release_lock_on_cudamalloc": False,
    "pinned_use_cuda_host_register": False,
    "graph_capture_record_stream_reuse": False,
    "roundup_power2_divisions": {str(1 << i): 0 for i in range(16)},
}
OOM = {"action": "oom", "device_free": 5, "size": 6, "stream": 0, "time_us": 7}
FULL = {
    "segments": [segment(0, STACK), segment(4096, [])],
    "device_traces": [[entry(0), entry(1, frames=STACK), entry(2, frames=[STACK[0]]), OOM], []],
    "allocator_settings": SETTINGS,
    "external_annotations": [{"name": "step", "stage": "START", "device": 0, "time_us": 1}],
}

PINNED = {
    **FULL,
    "device_traces": [[entry(i, pool_id=(0, i % 2), **({"internal_metadata": "tag"} if i == 2 else {})) for i in range(4)] + [entry(4, action="annotate", user_metadata="weights", pool_id=(0, 0))]],
    "allocator_settings": {**SETTINGS, "max_round_threshold": -1, "max_cached_size": 4096},
    "host_segments": [dict(segment(0, STACK), device=-1)],
    "host_traces": [entry(i, pool_id=(0, 0), compile_context="") for i in range(4)],
}

for protocol in range(2, 6):
    write(f"pinned-{protocol}", pickle.dumps(PINNED, protocol))
    write(f"full-{protocol}", pickle.dumps(FULL, protocol))
    write(f"optimized-{protocol}", pickletools.optimize(pickle.dumps(FULL, protocol)))
write("batches", pickle.dumps({"segments": [], "device_traces": [[entry(i) for i in range(1005)]]}, 4)[:40000])
write("bare-list", pickle.dumps([segment(0, [])], 4))
write("empty-list", pickle.dumps([], 4))
write("shared", pickle.dumps([[FULL, FULL], FULL["segments"], STACK, STACK], 4))
write("other-values", pickle.dumps({"segments": [], "x": [1.5, -1, 2**70, -(2**70), None, True, b"b", bytearray(b"c"), {1}, frozenset([2]), (1,), (1, 2, 3), (), {1: 2}]}, 5))
write("wrong-values", pickle.dumps({"segments": [], "device_traces": [[entry(0, size=-1), entry(1, frames=[1])]]}, 4))
write("host-once-more", pickle.dumps({**PINNED, "segments": PINNED["host_segments"]}, 4))
write("shared-pools", pickle.dumps({"device_traces": [PINNED["host_traces"]] * 3, "host_traces": PINNED["host_traces"], "host_segments": FULL["segments"]}, 4))
write("wrong-pool", pickle.dumps({"segments": [], "device_traces": [[entry(0, pool_id=(1, 2, 3))]]}, 4))
write("unknown-action", pickle.dumps({"segments": [], "device_traces": [[entry(0, action="new")]]}, 4))
write("forward-frames", pickle.dumps({"segments": [], "device_traces": [[entry(0, forward_frames=["a"])]]}, 4))
recursive = []
recursive.append(recursive)
write("contains-itself", pickle.dumps(recursive, 4))
write("runs-code", pickle.dumps({"segments": os.system}, 4))
write("gzip", gzip.compress(pickle.dumps(FULL, 4), mtime=0))
write("zstd", subprocess.run(["zstd", "-q", "-c"], input=pickle.dumps(FULL, 4), capture_output=True, check=True).stdout)
write("xz", lzma.compress(pickle.dumps(FULL, 4)))
write("xz-cut", lzma.compress(pickle.dumps(FULL, 4))[:90])
write("trailing", pickle.dumps(FULL, 4) + pickle.dumps(FULL, 2))
OLD = {"size": 512, "state": "active_allocated", "history": [{"addr": 0, "real_size": 400, "frames": STACK}] * 2}
write("history", pickle.dumps({"segments": [dict(segment(0, []), blocks=[OLD, OLD])], "device_traces": []}, 2))
write("bare-blocks", pickle.dumps([dict(segment(0, []), blocks=[{"size": 512, "state": "inactive"}] * 3)], 4))
write("oom-both", pickle.dumps({"segments": [], "device_traces": [[dict(OOM, addr=9), dict(OOM, addr=9)]]}, 4))
write("not-memoised", pickletools.optimize(pickle.dumps({"device_traces": [[entry(i) for i in range(9)]]}, 4)))
write("gzip-cut", gzip.compress(pickle.dumps(FULL, 4), mtime=0)[:60])
write("cut", pickle.dumps(FULL, 4)[:700])
write("single-items", b"\x80\x02}X\x08\x00\x00\x00segments]s.")
write("old-containers", b"\x80\x02(X\x08\x00\x00\x00segments(ld.")
write("text-integers", b"\x80\x02](I5\nI01\nI-7\ne.")
write("far-memo", b"\x80\x04]r\xff\xff\xff\xff0j\xff\xff\xff\xff.")
write("long-text", b"\x80\x04\x8d\xff\xff\xff\xff\xff\xff\xff\x7fabc")
write("deep", b"\x80\x04" + b"](" * 200 + b"e" * 200 + b".")
write("nested", b"\x80\x04" + b"]" * 200 + b"a" * 199 + b".")
write("pops", b"\x80\x04NN0(N10].")
write("json", b'{"segments": []}')
write("zip", b"PK\x03\x04archive")
