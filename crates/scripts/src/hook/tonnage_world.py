"""One rank of a job whose other ranks are not there.

Each of them is taken to do and to hold what this one does and holds: a store answers what they would have put there,
collectives of the host return what comes of that, those of the device are the fake NCCL's. What could only come from
another rank is a guess, and told.
"""

import os
import sys

import tonnage_collectives
import tonnage_values

UNIQUE_ID = 128
"""Bytes that ranks find each other by in NCCL."""


def size():
    return int(os.environ.get("WORLD_SIZE", "1"))


GUESSES = tonnage_values.Guesses(os.environ.get("TONNAGE_GUESSES"))
"""Each is told once, with the line of the script."""


def install(torch):
    dist = getattr(torch, "distributed", None)
    if dist is None or not dist.is_available():
        return
    inside = dist.distributed_c10d
    # Whoever makes a store of his own gets the same values.
    store = make_store(dist)
    dist.rendezvous.__globals__["_create_c10d_store"] = lambda *args, **kwargs: store()
    for module in (sys.modules[dist.rendezvous.__module__], inside, dist):
        for name in ("TCPStore", "FileStore"):
            if hasattr(module, name):
                setattr(module, name, store)
    without_gloo(dist, inside)
    tonnage_collectives.install(torch, dist, inside, GUESSES)
    for name, made in make_objects(inside).items():
        setattr(inside, name, made)
        setattr(dist, name, made)
    instead_of_launching()


def leave(torch):
    """Groups end with the process: threads of theirs would look for a store that Python has taken away already."""
    dist = torch.distributed
    try:
        if dist.is_available() and dist.is_initialized():
            dist.destroy_process_group()
    except Exception:
        # The process ends anyway, and everything is told.
        pass


STORES = []
"""They live on: C++ does not keep what is Python's of them."""


def as_bytes(value):
    return value.encode() if isinstance(value, str) else bytes(value)


def module_of(frame):
    return frame.f_globals.get("__name__") or ""


def make_store(dist):
    class Store(dist.Store):
        """Holds what this rank puts there; others are taken to have put the like."""

        values = {}
        host = os.environ.get("MASTER_ADDR", "localhost")
        port = int(os.environ.get("MASTER_PORT", "29500"))

        def __init__(self, *args, **kwargs):
            super().__init__()
            STORES.append(self)

        def set(self, key, value):
            self.values[key] = as_bytes(value)

        def get(self, key):
            # Threads of PyTorch's own ask without any Python behind them.
            asks = sys._getframe().f_back
            if key not in self.values and asks is not None and module_of(asks).split(".")[0] != "torch":
                GUESSES.add(f"{key!r} is taken from the store, where another rank would put it: taken to be zero bytes")
            return self.values.get(key, bytes(UNIQUE_ID))

        def add(self, key, amount):
            # Whoever counts ranks finds all of them there.
            so_far = int(self.values.get(key, 0)) + amount * size()
            self.values[key] = str(so_far).encode()
            return so_far

        def compare_set(self, key, expected, desired):
            now = self.values.get(key, b"")
            if now == as_bytes(expected):
                now = self.values[key] = as_bytes(desired)
            return now or as_bytes(expected)

        def multi_get(self, keys):
            return [self.get(key) for key in keys]

        def multi_set(self, keys, values):
            self.values.update(zip(keys, map(as_bytes, values)))

        def append(self, key, value):
            self.values[key] = self.values.get(key, b"") + as_bytes(value)

        def check(self, keys):
            return all(key in self.values for key in keys)

        def wait(self, keys, timeout=None):
            pass

        def delete_key(self, key):
            return self.values.pop(key, None) is not None

        def num_keys(self):
            return len(self.values)

        def set_timeout(self, timeout):
            pass

        def has_extended_api(self):
            return True

        def clone(self):
            return self

    return Store


def without_gloo(dist, inside):
    """Collectives between hosts move nothing: PyTorch's own fake group is in the place of Gloo's."""
    import torch.testing._internal.distributed.fake_pg  # noqa: F401

    dist.Backend.default_device_backend_map["cpu"] = "fake"
    make = inside._new_process_group_helper

    def made(group_size, group_rank, global_ranks, backend, *args, **kwargs):
        backend = dist.Backend(str(backend).replace("gloo", "fake"))
        return make(group_size, group_rank, global_ranks, backend, *args, **kwargs)

    inside._new_process_group_helper = made


def make_objects(inside):
    """Collectives of Python objects: each rank has what this one has."""

    def members(group):
        return inside.get_world_size(group)

    def all_gather_object(object_list, obj, group=None):
        object_list[:] = [obj] * members(group)

    def gather_object(obj, object_gather_list=None, dst=None, group=None, group_dst=None):
        if object_gather_list is not None:
            object_gather_list[:] = [obj] * members(group)

    def broadcast_object_list(object_list, src=None, group=None, device=None, group_src=None):
        # Of 0 unless someone is named.
        if (src or group_src or 0) != (inside.get_rank() if src is not None else inside.get_rank(group)):
            GUESSES.add("objects are taken from another rank, which is not there: they stay what they are")

    def scatter_object_list(output_list, input_list=None, src=None, group=None, group_src=None):
        if input_list:
            output_list[0] = input_list[inside.get_rank(group)]
        else:
            GUESSES.add("an object is taken from another rank, which is not there: it stays what it is")

    def send_object_list(object_list, dst=None, group=None, device=None, group_dst=None, use_batch=False):
        pass

    def recv_object_list(object_list, src=None, group=None, device=None, group_src=None, use_batch=False):
        raise RuntimeError(
            f"rank {inside.get_rank()} waits for objects of rank {src}, which is not there: tonnage predict runs one rank. A "
            "pipeline's stage can be told its shapes instead: PipelineStage(..., input_args=..., output_args=...)"
        )

    made = locals()
    names = [name for name in made if name.endswith(("_object", "_object_list")) and hasattr(inside, name)]
    return {name: made[name] for name in names}


def instead_of_launching():
    """`torchrun`, and what is built on it, runs its script here, as the one rank."""
    import torch.distributed.launcher.api as api

    class Launch:
        def __init__(self, config, entrypoint):
            self.entrypoint = entrypoint

        def __call__(self, *args):
            if callable(self.entrypoint):
                return {int(os.environ["RANK"]): self.entrypoint(*args)}
            run_here(self.entrypoint, [str(word) for word in args])
            return {}

    api.elastic_launch = Launch


def run_here(program, words):
    """Runs what a launcher would start: a Python with a script or a module; or another program."""
    import runpy

    if "python" not in os.path.basename(str(program)):
        os.execvp(program, [program, *words])
    while words and words[0].startswith("-") and words[0] != "-m":
        words = words[1:]
    if words[0] == "-m":
        sys.argv = words[1:]
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = words
        sys.path.insert(0, os.path.dirname(os.path.abspath(words[0])))
        runpy.run_path(words[0], run_name="__main__")
