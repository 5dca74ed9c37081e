"""Writes small snapshots in the forms that PyTorch has given them over time, beside this script.
Run from anywhere, with any Python from 3.8 on:

    python3 testdata/snapshots/make.py

Each form at every protocol that PyTorch's users have: `FORM.pPROTOCOL.pickle`. What the keys mean is
in `crates/snapshot`; what each form holds is checked in its `tests/suite/forms.rs`.
"""

import gzip
import lzma
import os
import pickle

HERE = os.path.dirname(os.path.abspath(__file__))
BASE = 0x7F0000000000
MIB = 1 << 20


def frame(name, line):
    return {"name": name, "filename": f"/src/{name}.py", "line": line}


STACK = [frame("inner", 3), frame("outer", 40)]
# As C++ symbolises it, with the frames of Python below.
NATIVE = [frame("c10::Allocator::allocate", 0), {"name": "at::empty_cuda", "filename": "??", "line": 2**64 - 1}, STACK[0]]


def before_2_0():
    """`torch.cuda.memory_snapshot()` until 1.13: a bare list, blocks by size and state alone."""
    return [
        {
            "device": 0,
            "address": BASE,
            "total_size": 2 * MIB,
            "allocated_size": 1536,
            "active_size": 2048,
            "segment_type": "small",
            "blocks": [
                {"size": 1536, "state": "active_allocated"},
                {"size": 512, "state": "active_awaiting_free"},
                {"size": 2 * MIB - 2048, "state": "inactive"},
            ],
        }
    ]


def release_2_0():
    """`_snapshot()` of 2.0: what was requested, and where, in a list of all that a block ever served;
    no settings, no times."""
    served = [{"addr": BASE, "real_size": 1000, "frames": STACK}, {"addr": BASE + 512, "real_size": 7, "frames": STACK[:1]}]
    return {
        "segments": [
            {
                "device": 0,
                "address": BASE,
                "total_size": 20 * MIB,
                "allocated_size": 1024,
                "active_size": 3072,
                "stream": 0,
                "segment_type": "large",
                "blocks": [
                    {"size": 1024, "state": "active_allocated", "history": served},
                    {"size": 2048, "state": "active_pending_free", "history": [{"addr": BASE + 1024, "real_size": 2000}]},
                    {"size": 20 * MIB - 3072, "state": "inactive"},
                ],
            }
        ],
        "device_traces": [
            [
                {"action": "segment_alloc", "addr": BASE, "size": 20 * MIB, "stream": 0, "frames": STACK},
                {"action": "alloc", "addr": BASE, "size": 1000, "stream": 0, "frames": STACK},
                {"action": "oom", "device_free": 5 * MIB, "size": 1 << 40, "stream": 0, "frames": []},
            ]
        ],
    }


def segment(device, address, **more):
    """A segment of 2.1 and later."""
    return {
        "device": device,
        "address": address,
        "total_size": 2 * MIB,
        "allocated_size": 1024,
        "active_size": 1024,
        "requested_size": 1000,
        "stream": 0,
        "segment_type": "small",
        "segment_pool_id": (0, 0),
        "is_expandable": False,
        "frames": STACK,
        "blocks": [
            {"address": address, "size": 1024, "requested_size": 1000, "state": "active_allocated", "frames": STACK},
            {"address": address + 1024, "size": 2 * MIB - 1024, "requested_size": 0, "state": "inactive", "frames": []},
        ],
        **more,
    }


def release_2_1():
    """`_snapshot()` of 2.1, of two devices: addresses and frames on blocks, settings, still no times."""
    first, second = segment(0, BASE), segment(2, BASE + 64 * MIB, stream=0x55AA, segment_type="large")
    for old in (first, second):
        del old["segment_pool_id"], old["is_expandable"]
    trace = [
        {"action": "segment_alloc", "addr": BASE, "size": 2 * MIB, "stream": 0, "frames": STACK},
        {"action": "alloc", "addr": BASE, "size": 1000, "stream": 0, "frames": STACK},
    ]
    other = [dict(entry, addr=entry["addr"] + 64 * MIB, stream=0x55AA) for entry in trace]
    settings = {
        "PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64",
        "max_split_size": 64 * MIB,
        "garbage_collection_threshold": 0.0,
        "expandable_segments": False,
        "pinned_num_register_threads": 1,
        "release_lock_on_cudamalloc": False,
        "pinned_use_cuda_host_register": False,
        "roundup_power2_divisions": {str(1 << power): 0 for power in range(16)},
    }
    return {"segments": [first, second], "device_traces": [trace, [], other], "allocator_settings": settings}


def release_2_6():
    """With times, annotations, and stacks of C++ and Python together."""
    entry = {"action": "alloc", "addr": BASE, "size": 1000, "stream": 0, "time_us": 1_700_000_000_000_001, "frames": NATIVE}
    notes = [
        {"stage": stage, "name": "Optimizer.step#Adam.step", "device": 0, "time_us": 1_700_000_000_000_000 + time}
        for stage, time in [("START", 2), ("END", 9)]
    ]
    return {
        "segments": [segment(0, BASE, frames=NATIVE)],
        "device_traces": [[dict(entry, action="segment_alloc", size=2 * MIB), entry]],
        "allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": "", "max_split_size": -1},
        "external_annotations": notes,
    }


def state_only():
    """`_snapshot()` without `_record_memory_history`."""
    return {"segments": [segment(0, BASE, frames=[])], "device_traces": [[]], "allocator_settings": {}, "external_annotations": []}


def later():
    """What a later release could write: keys and actions that nobody knows yet, categories, an `oom`
    with both of the keys that it has had."""
    entry = {"action": "alloc", "addr": BASE, "size": 1000, "stream": 0, "time_us": 5, "compile_context": "0/0", "user_metadata": "layer.3"}
    return {
        "schema": {"version": 9, "blocks": ["not", "a", "block"]},
        "segments": [segment(0, BASE, numa_node=1)],
        "device_traces": [
            [
                dict(entry, category="parameters", forward_frames=["a.py:1 f"]),
                dict(entry, action="segment_migrated", to=(1, 2, 3)),
                dict(entry, action="oom", addr=0, device_free=77, size=1 << 40),
            ]
        ],
        "allocator_settings": {"PYTORCH_ALLOC_CONF": "expandable_segments:True", "expandable_segments": True, "tier": None},
        "external_annotations": [{"stage": "MARK", "name": "epoch", "device": 0, "time_us": 6, "color": "red"}],
    }


def profile():
    """What `_memory_viz` makes of a profile to plot it: one segment for each device, categories."""
    entry = {"action": "alloc", "addr": BASE, "size": 4 * MIB, "stream": 0, "frames": STACK, "category": "gradient"}
    blocks = [
        {"size": 4 * MIB, "state": "active_allocated", "requested_size": 4 * MIB, "frames": STACK},
        {"size": MIB, "state": "inactive"},
    ]
    made_up = {"device": 1, "address": BASE, "total_size": 5 * MIB, "stream": 0, "blocks": blocks}
    return {"device_traces": [[], [entry]], "segments": [made_up]}


def release(minor):
    """`_snapshot()` of 2.8 to 2.15: which keys there are tells the release (the real ones of 2.11 to 2.15 are
    beside this script; the keys of 2.8 to 2.10 are those that the `libtorch_python.so` of 2.8.0, 2.9.1 and 2.10.0
    has among its strings). A block in the default pool, one in a private pool that is freed again; from 2.14 on pinned
    memory and an annotation, in 2.15 an entry that the allocator made for itself."""
    private, other = (0, 3), BASE + 32 * MIB
    entries = [
        ("segment_alloc", BASE, 2 * MIB, (0, 0), {}),
        ("alloc", BASE, 1000, (0, 0), {"frames": STACK}),
        ("segment_alloc", other, 20 * MIB, private, {}),
        ("alloc", other, 3 * MIB, private, {"frames": STACK[:1], "user_metadata": "step 1"}),
        ("free_requested", other, 3 * MIB, private, {}),
        ("free_completed", other, 3 * MIB, private, {}),
    ]
    if minor >= 14:
        entries.append(("annotate", BASE, 1000, (0, 0), {"frames": STACK, "user_metadata": "weights"}))
    if minor >= 15:
        entries.append(("alloc", other, 512, private, {"internal_metadata": "mallocWithAddress"}))
        entries.append(("free_requested", other, 512, private, {"internal_metadata": "mallocWithAddress"}))
        entries.append(("free_completed", other, 512, private, {"internal_metadata": "mallocWithAddress"}))

    def entry(number, action, addr, size, pool, more, compile_context="N/A"):
        made = {"action": action, "addr": addr, "size": size, "stream": 0, "time_us": 1_700_000_000_000_000 + number}
        made["compile_context"] = compile_context
        if minor >= 10:
            made["user_metadata"] = ""
        if minor >= 12:
            made["pool_id"] = pool
        made.update(more)
        if minor < 10:
            made.pop("user_metadata", None)
        return made

    freed = {"address": other, "size": 20 * MIB, "requested_size": 3 * MIB, "state": "inactive", "frames": []}
    settings = {
        "PYTORCH_CUDA_ALLOC_CONF": "",
        "max_split_size": -1,
        "garbage_collection_threshold": 0.0,
        "expandable_segments": False,
        "pinned_num_register_threads": 1,
        "release_lock_on_cudamalloc": False,
        "pinned_use_cuda_host_register": False,
        "roundup_power2_divisions": {str(1 << power): 0 for power in range(16)},
    }
    if minor >= 9:
        settings["graph_capture_record_stream_reuse"] = False
    if minor >= 13:
        settings["max_round_threshold"] = -1
        settings["max_cached_size"] = 64 * MIB
    snapshot = {
        "segments": [
            segment(0, BASE),
            segment(0, other, total_size=20 * MIB, allocated_size=0, active_size=0, requested_size=0, segment_type="large", segment_pool_id=private, frames=[], blocks=[freed]),
        ],
        "device_traces": [[entry(number, *what) for number, what in enumerate(entries)]],
        "allocator_settings": settings,
        "external_annotations": [],
    }
    if minor >= 14:
        host = 0x55AA00000000

        def pinned(address, size, state, frames):
            block = {"address": address, "size": size, "requested_size": size, "state": state, "frames": frames}
            allocated, active = size * (state == "active_allocated"), size * (state != "inactive")
            return segment(-1, address, total_size=size, allocated_size=allocated, active_size=active, requested_size=size, frames=frames, blocks=[block])

        snapshot["host_segments"] = [
            pinned(host, 4 * MIB, "inactive", []),
            pinned(host + 8 * MIB, 512, "active_allocated", STACK),
            pinned(host + 9 * MIB, 1024, "active_pending_free", STACK[:1]),
        ]
        snapshot["host_traces"] = [
            entry(number, action, host + at, size, (0, 0), more, "")
            for number, (action, at, size, more) in enumerate(
                [
                    ("segment_alloc", 0, 4 * MIB, {}),
                    ("alloc", 0, 4 * MIB, {"frames": STACK}),
                    ("segment_alloc", 8 * MIB, 512, {}),
                    ("alloc", 8 * MIB, 512, {"frames": STACK}),
                    ("free_requested", 0, 4 * MIB, {}),
                    ("free_completed", 0, 4 * MIB, {}),
                    ("segment_alloc", 9 * MIB, 1024, {}),
                    ("alloc", 9 * MIB, 1024, {"frames": STACK[:1]}),
                    ("free_requested", 9 * MIB, 1024, {}),
                ]
            )
        ]
    return snapshot


def write(name, data):
    with open(os.path.join(HERE, name), "wb") as file:
        file.write(data)


FORMS = [before_2_0, release_2_0, release_2_1, release_2_6, state_only, later, profile]
for form in FORMS:
    for protocol in range(2, 6):
        write(f"{form.__name__}.p{protocol}.pickle", pickle.dumps(form(), protocol))
for minor in range(8, 16):
    for protocol in range(2, 6):
        write(f"release_2_{minor}.p{protocol}.pickle", pickle.dumps(release(minor), protocol))

plain = pickle.dumps(release_2_6(), 4)
half = len(plain) // 2
write("packed.pickle.gz", gzip.compress(plain, mtime=0))
# Python, gzip and xz all let compressed files be put one behind the other.
write("parts.pickle.gz", gzip.compress(plain[:half], mtime=0) + gzip.compress(plain[half:], mtime=0))
write("packed.pickle.xz", lzma.compress(plain))
write("parts.pickle.xz", lzma.compress(plain[:half]) + lzma.compress(plain[half:], check=lzma.CHECK_SHA256))
