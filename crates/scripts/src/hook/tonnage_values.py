"""Values of small tensors, computed on the host beside the device that computes nothing.

A program that looks at numbers (`.item()`, `if mask.all()`, a stop criterion, the count of a mask) then goes the way it
would go. Shadows belong to storages, so that views and writes in place share them. What is not known is guessed, and
each guess that the program looked at is written down with its line.

Note [What is still known]. A shadow is good as long as its storage lives and each write there is seen. A storage that is
gone takes its shadow along: whoever gets its address later is another one. Writes that pass the mode by, in the backward,
in other threads, inside operators of others, raise the version that PyTorch counts of a tensor; then the shadow is
dropped. Where no version tells, values are doubted: those given to an operator that is not PyTorch's, everything older than
a kernel that PyTorch did not launch, and after a CUDA graph what was written while it was captured. A value in doubt is
used all the same, and that is said. What the backward or another thread writes through `.data` is not seen.

The mode that this needs changes what autograd allocates; so the figures of this run do not count. What it is for is the
list of reads, which a second run without it is given.
"""

import atexit
import contextlib
import ctypes
import json
import os
import sys
import weakref

PACKAGES = ("site-packages", "dist-packages")
"""Folders of these names have no lines of the program's own."""

HOOK = os.path.dirname(os.path.abspath(__file__))
"""Where nothing is the program's own."""

LIMIT = 1 << 16
"""Bytes of a storage that may have a shadow."""

DENSITY = float(os.environ.get("TONNAGE_DENSITY", "0.5"))
"""The share of entries that are taken to be true where a mask is not known."""

MASK = "mask"
"""The kind of a guess that sizes depend on, and that can be made otherwise."""

ZEROS = "values taken to be zeros"
DRAWN = "random numbers, which a GPU draws otherwise"
FINITE = "numbers taken to be finite"
FOREIGN = "values that an operator which is not PyTorch's may have changed"
LAUNCHED = "values that a kernel which PyTorch did not launch may have changed"
REPLAYED = "values that a CUDA graph writes, which are those of its capture"
REASONS = (ZEROS, DRAWN, FINITE, FOREIGN, LAUNCHED, REPLAYED)
"""What guessed values follow from; of several the first is told."""

RANDOM = {
    "bernoulli", "bernoulli_", "exponential_", "multinomial", "native_dropout", "normal", "normal_", "rand",
    "rand_like", "randint", "randint_like", "randn", "randn_like", "random_", "randperm", "uniform_",
}
EMPTY = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"}
COUNTED = {"_index_put_impl_", "index", "index_put", "index_put_", "masked_select", "nonzero"}
READS = {"_local_scalar_dense", "_to_copy", "copy_", "equal", "is_nonzero"}
KEPT = {"_amp_foreach_non_finite_check_and_unscale_", "record_stream"}
"""Writes that leave small values as they are in a run in which nothing is infinite."""

UNDECLARED = {"running_mean", "running_var"}
"""Arguments that batch norms write without saying so, as long as they train."""

COLLECTIVES = {"c10d", "_c10d_functional"}
"""Operators whose results `tonnage_collectives` puts there, of a rank whose others are not there."""

ALIKE = {
    "all", "any", "bitwise_and", "bitwise_not", "bitwise_or", "logical_and", "logical_not", "logical_or", "mul",
}
"""What can be told of large tensors whose entries are all the same."""

PER_LINE = 8
MORE = "more of the like is looked at here"
"""Guesses that are told of one line of the program, and what is said of the others: chosen, since sizes that change at each
step would fill files."""


class Guesses:
    """Lines of the program at which a guess was looked at, with what was guessed."""

    def __init__(self, path):
        self.path, self.told, self.silent = path, {}, 0

    def add(self, what, kind=None):
        if self.silent:
            return
        line = self.line()
        told = self.told.setdefault(line, set())
        if (what, kind) not in told and len(told) >= PER_LINE:
            # Once for each kind: that a mask is guessed decides what is run.
            what = MORE
        if (what, kind) not in told:
            told.add((what, kind))
            self.say(line, what, kind)

    def say(self, line, what, kind=None):
        if self.path:
            said = json.dumps({"line": line, "what": what, "kind": kind}, ensure_ascii=False) + "\n"
            with open(self.path, "ab") as file:
                file.write(said.encode("utf-8", "replace"))

    @staticmethod
    def line():
        frame, found = sys._getframe(2), None
        while frame is not None:
            name = frame.f_code.co_filename
            if not any(it in name for it in PACKAGES) and not name.startswith(("<", HOOK)):
                return f"{name}:{frame.f_lineno}"
            if found is None and "torch" not in name and not name.startswith(("<", HOOK)):
                found = f"{name}:{frame.f_lineno}"
            frame = frame.f_back
        return found or ""


def make(torch):
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.multiprocessing.reductions import StorageWeakRef
    from torch.utils._pytree import tree_flatten, tree_unflatten

    device = ctypes.CDLL(os.environ["TONNAGE_CORE"])
    device.tonnage_fake_answer.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    device.tonnage_fake_peek.argtypes = [ctypes.c_void_p, ctypes.c_uint64, ctypes.c_size_t]
    device.tonnage_fake_forget.argtypes = [ctypes.c_uint64, ctypes.c_size_t]
    device.tonnage_fake_unanswered.argtypes = [ctypes.c_int]
    device.tonnage_fake_unanswered.restype = ctypes.c_uint64
    for count in (device.tonnage_fake_launches, device.tonnage_fake_replays):
        count.argtypes, count.restype = [], ctypes.c_uint64

    def tensors_in(tree):
        return [item for item in tree_flatten(tree)[0] if isinstance(item, torch.Tensor)]

    def plain(tensor):
        """Whether it is a tensor with a storage, and no other kind."""
        return tensor.layout == torch.strided

    def counts_as_number(dtype):
        return dtype.is_floating_point or dtype.is_complex

    def version_of(tensor):
        """How often it was written; nothing where PyTorch does not count."""
        try:
            return None if tensor is None else tensor._version
        except RuntimeError:
            return None

    class Shadow:
        """What is known of a storage. Note [What is still known]."""

        def __init__(self, storage, values, alike=False):
            self.alive, self.place, self.size = StorageWeakRef(storage), storage.data_ptr(), storage.nbytes()
            # Bytes; or one value, if all are alike.
            self.values, self.alike = values, alike
            self.guess = None
            self.launches = self.replays = 0
            # Whose version is looked at, and which it must be.
            self.tensor, self.version = None, None

        def follow(self, tensor, version):
            self.tensor, self.version = weakref.ref(tensor), version

        def is_stale(self, storage):
            if (self.place, self.size) != (storage.data_ptr(), storage.nbytes()):
                return True
            return self.version is not None and version_of(self.tensor()) not in (None, self.version)

    class Values(TorchDispatchMode):
        def __init__(self):
            super().__init__()
            # By storage, as PyTorch numbers them; those that were written just now, before their version is counted.
            self.shadows, self.most, self.unsettled = {}, 1024, []
            # Storages that were written while a graph was captured.
            self.captured = {}
            # Launches that were part of operators which are seen; those that were not, before this operator.
            self.launches_seen = self.launches = 0
            self.generator = torch.Generator().manual_seed(0)
            self.guesses = Guesses(os.environ.get("TONNAGE_GUESSES"))

        # Shadows.

        @staticmethod
        def storage_of(tensor):
            """Its storage, if it has one with bytes."""
            try:
                storage = tensor.untyped_storage()
                return storage if storage.nbytes() and storage.data_ptr() else None
            except (RuntimeError, NotImplementedError):
                return None

        @staticmethod
        def bytes_of(tensor):
            try:
                return tensor.untyped_storage().nbytes()
            except (RuntimeError, NotImplementedError):
                return sys.maxsize

        def settle(self):
            """What was written by the call before has its version by now."""
            for shadow in self.unsettled:
                shadow.version = version_of(shadow.tensor())
            self.unsettled.clear()

        def shadow_of(self, tensor):
            """What is known of its storage, unless something was written there that was not seen."""
            storage = self.storage_of(tensor)
            shadow = None if storage is None else self.shadows.get(storage._cdata)
            if shadow is None:
                return None
            if shadow.is_stale(storage):
                self.drop(tensor)
                return None
            if shadow.tensor is None or shadow.tensor() is None:
                shadow.follow(tensor, version_of(tensor))
            return shadow

        def get(self, tensor):
            """The tensor's values, on the host; nothing if they are not known."""
            if tensor.numel() == 0:
                return torch.empty(tensor.shape, dtype=tensor.dtype)
            shadow = self.shadow_of(tensor)
            if shadow is None:
                return None
            try:
                if shadow.alike:
                    return shadow.values.expand(tensor.shape) if shadow.values.dtype == tensor.dtype else None
                view = torch.empty(0, dtype=tensor.dtype)
                return view.set_(shadow.values, tensor.storage_offset(), tensor.shape, tensor.stride())
            except RuntimeError:
                return None

        def put(self, tensor, values, guessed=None, written=False):
            """Notes values, and what they follow from if they are guessed; of a new tensor, or of one that is written."""
            storage = self.storage_of(tensor)
            if storage is None:
                return
            if values is None or storage.nbytes() > LIMIT:
                self.drop(tensor)
                return
            self.keep(tensor, Shadow(storage, torch.UntypedStorage(storage.nbytes())), guessed, written)
            self.get(tensor).copy_(values)

        def put_alike(self, tensor, value, guessed):
            """Notes that all entries are this one."""
            if self.bytes_of(tensor) <= LIMIT:
                self.put(tensor, value.expand(tensor.shape), guessed)
            elif (storage := self.storage_of(tensor)) is not None:
                self.keep(tensor, Shadow(storage, value.reshape(()), alike=True), guessed)

        def keep(self, tensor, shadow, guessed, written=False):
            if len(self.shadows) > self.most:
                for known in (self.shadows, self.captured):
                    for key in [key for key, it in known.items() if getattr(it, "alive", it).expired()]:
                        del known[key]
                self.most = max(1024, 2 * len(self.shadows))
            before = self.shadows.get(shadow.alive.cdata)
            # A view that is written may be gone at once; whoever was followed shares its version.
            shadow.tensor = before and before.tensor
            self.shadows[shadow.alive.cdata] = shadow
            shadow.guess = guessed
            self.written_now(tensor, shadow)
            if not written:
                self.unsettled.pop().version = version_of(shadow.tensor())

        def written_now(self, tensor, shadow):
            """It is as new as anything; its version is counted once the call that wrote it is over."""
            shadow.launches, shadow.replays = self.launches, device.tonnage_fake_replays()
            followed = shadow.tensor and shadow.tensor()
            shadow.follow(tensor if followed is None else followed, None)
            self.unsettled.append(shadow)

        def drop(self, tensor):
            storage = self.storage_of(tensor)
            if storage is not None:
                self.shadows.pop(storage._cdata, None)
                device.tonnage_fake_forget(storage.data_ptr(), storage.nbytes())

        def doubt(self, tensor, why):
            """What is known of it may not be so."""
            shadow = self.shadow_of(tensor)
            if shadow is not None and shadow.guess is None:
                shadow.guess = why

        def guess_of(self, tensor):
            """What the values follow from if they are guessed; else nothing."""
            shadow = self.shadow_of(tensor)
            if shadow is None or shadow.guess:
                return shadow and shadow.guess
            if shadow.launches != self.launches:
                return LAUNCHED
            if shadow.alive.cdata in self.captured and shadow.replays != device.tonnage_fake_replays():
                return REPLAYED
            return None

        def known_or_guessed(self, tensor):
            """Values; for integers that nobody knows what the device's memory reads as."""
            values = self.get(tensor)
            if values is None and not counts_as_number(tensor.dtype) and self.peek(tensor, ZEROS):
                values = self.get(tensor)
            return values

        def peek(self, tensor, guessed=None):
            """Takes what the device's memory reads as for what is known; whether that is little enough."""
            storage = self.storage_of(tensor)
            if storage is None or storage.nbytes() > LIMIT:
                return False
            values = torch.UntypedStorage(storage.nbytes())
            device.tonnage_fake_peek(values.data_ptr(), storage.data_ptr(), storage.nbytes())
            self.keep(tensor, Shadow(storage, values), guessed)
            return True

        # Reads.

        def answered(self, values, call):
            """Calls with the bytes that the next read is to answer."""
            if values is not None:
                values = values.contiguous()
                device.tonnage_fake_answer(values.data_ptr(), values.numel() * values.element_size())
            result = call()
            device.tonnage_fake_answers_end()
            # Whether it is known is said by whoever asked.
            device.tonnage_fake_unanswered(0)
            return result

        def read(self, tensor, call):
            """Values that the program is about to see, and what the device answers then."""
            values = self.get(tensor)
            kind = str(tensor.dtype).removeprefix("torch.")
            what = f"a {kind}" if tensor.numel() == 1 else f"a tensor of {tuple(tensor.shape)} {kind}"
            if values is None and tensor.numel() == 1 and counts_as_number(tensor.dtype):
                # Something that can be divided by, and whose logarithm there is.
                values = torch.ones(tensor.shape, dtype=tensor.dtype)
                self.guesses.add(f"{what} is read, and taken to be 1")
            elif values is None:
                self.guesses.add(f"{what} is read, and taken to be zeros")
            elif self.guess_of(tensor):
                self.guesses.add(f"{what} is read that follows from {self.guess_of(tensor)}")
            return values, self.answered(values, call)

        def of_reads(self, name, func, args, kwargs, tensors):
            """The result, if the call reads from the device; else nothing."""
            def call():
                return func(*args, **kwargs)

            if name in ("_local_scalar_dense", "is_nonzero"):
                values, result = self.read(tensors[0], call)
                return (result if values is None else func(values),)
            if name == "equal":
                values = [self.get(it) if it.is_cuda else it for it in tensors]
                result = self.answered(None, call)
                if any(it is None for it in values):
                    self.guesses.add("two tensors are compared whose values are not known")
                    return (result,)
                return (func(*values),)
            if name == "copy_" and not tensors[0].is_cuda:
                values, result = self.read(tensors[1], call)
                if values is not None:
                    tensors[0].copy_(values)
                return (result,)
            if name == "_to_copy" and torch.device(kwargs.get("device") or "cuda").type == "cpu":
                values, result = self.read(tensors[0], call)
                if values is not None:
                    result.copy_(values)
                return (result,)
            return None

        def of_counts(self, name, call, tensors):
            """Calls an operation whose result is as long as a mask has entries that are true."""
            masks = [
                it for it in tensors if it.is_cuda and (name == "nonzero" or it.dtype in (torch.bool, torch.uint8))
            ]
            for mask in masks[-1:] if name == "masked_select" else masks:
                guess = self.guess_of(mask)
                values = None if guess == ZEROS else self.get(mask)
                count = int(mask.numel() * DENSITY) if values is None else int(values.count_nonzero())
                if values is None:
                    self.guesses.add(f"of a mask of {tuple(mask.shape)} {count:,} are taken to be true", MASK)
                elif guess:
                    self.guesses.add(f"of a mask of {tuple(mask.shape)} {count:,} are true, which follows from {guess}")
                answer = ctypes.c_int64(count)
                device.tonnage_fake_answer(ctypes.addressof(answer), 8)
            result = call()
            device.tonnage_fake_answers_end()
            device.tonnage_fake_unanswered(0)
            return masks, result

        # Everything else.

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            self.settle()
            self.launches = device.tonnage_fake_launches() - self.launches_seen
            result = self.dispatched(func, args, kwargs or {})
            # What an operator launches writes what the operator does.
            self.launches_seen = device.tonnage_fake_launches() - self.launches
            if device.tonnage_fake_unanswered(0):
                self.guesses.add(f"{func} reads what is not known, and is told zeros")
            return result

        def note_backward(self):
            """What hooks of a backward read, in which no value is computed, and other threads meanwhile."""
            if device.tonnage_fake_unanswered(1):
                self.guesses.add("something is read during the backward, and taken to be zeros")

        def note_rest(self):
            if device.tonnage_fake_unanswered(1):
                self.guesses.say("", "something is read by another thread, and taken to be zeros")

        def dispatched(self, func, args, kwargs):
            if func.namespace not in ("aten", "prims"):
                return self.of_others(func, args, kwargs)
            flat, spec = tree_flatten((args, kwargs))
            tensors = [item for item in flat if isinstance(item, torch.Tensor)]
            on_device = [it for it in tensors if it.is_cuda]
            place = kwargs.get("device")
            if not on_device and not (place is not None and torch.device(place).type == "cuda"):
                return func(*args, **kwargs)
            if not all(plain(it) for it in tensors):
                return func(*args, **kwargs)
            name = func._schema.name.split("::")[1]
            if on_device and name in READS:
                read = self.of_reads(name, func, args, kwargs, tensors)
                if read is not None:
                    return read[0]
            inputs = None
            if name not in RANDOM and name not in EMPTY and all(it.nbytes <= LIMIT for it in tensors):
                inputs = [
                    self.known_or_guessed(it) if isinstance(it, torch.Tensor) and it.is_cuda else it for it in flat
                ]
                if any(isinstance(a, torch.Tensor) and b is None for a, b in zip(flat, inputs)):
                    inputs = None

            def call():
                return func(*args, **kwargs)

            masks, alike = [], self.alike(name, func, args, kwargs, on_device)
            if name in COUNTED:
                # What is indexed may be of bytes too.
                chosen_by = tensors if name in ("masked_select", "nonzero") else tensors_in(args[1])
                masks, result = self.of_counts(name, call, chosen_by)
            else:
                result = call()
            if masks and name in ("index", "masked_select", "nonzero"):
                self.note_selection(name, masks, inputs, result)
            elif alike is not None and isinstance(result, torch.Tensor):
                self.put_alike(result, *alike)
            else:
                self.note(name, func, args, kwargs, tensors, on_device, inputs, spec, result)
            self.note_captured(func, args, kwargs, result)
            return result

        def of_others(self, func, args, kwargs):
            """An operator that is not PyTorch's own: what it says to write is not known any more, and what else it was given
            is doubted."""
            result = func(*args, **kwargs)
            if func.namespace in COLLECTIVES and os.environ.get("TONNAGE_WORLD") == "1":
                return result
            schema = getattr(func, "_schema", None)
            given = [it for it in tensors_in((args, kwargs)) if it.is_cuda and plain(it)]
            for it in given:
                self.doubt(it, FOREIGN)
            written = given if schema is None else self.written(schema, args, kwargs)
            for it in (*written, *(it for it in tensors_in(result) if it.is_cuda and plain(it))):
                self.drop(it)
            self.note_captured(func, args, kwargs, result)
            return result

        def alike(self, name, func, args, kwargs, on_device):
            """The one value that all entries of the result have, with the guess that it follows from; else nothing."""
            if name in ("eq", "isinf", "isnan", "ne") and args and isinstance(args[0], torch.Tensor):
                other = args[1] if len(args) > 1 else None
                itself, infinite = other is args[0], isinstance(other, float) and abs(other) == float("inf")
                if (itself or infinite or other is None) and counts_as_number(args[0].dtype) and self.get(args[0]) is None:
                    return torch.tensor(name == "eq" if itself else name == "ne"), FINITE
            shadows = [self.shadow_of(it) for it in on_device] if name in ALIKE else []
            if not any(shadow is not None and shadow.alike for shadow in shadows):
                return None
            if not all(shadow is not None and shadow.alike for shadow in shadows) or len(kwargs) > 0:
                return None
            ones = [self.get(it).as_strided((1,) * it.dim(), (1,) * it.dim()) if isinstance(it, torch.Tensor) else it for it in args]
            try:
                return func(*ones).reshape(-1)[0], next(shadow.guess for shadow in shadows)
            except Exception:
                return None

        def note_captured(self, func, args, kwargs, result):
            """What is written while a graph is captured has happened only once the graph is launched, and then each time."""
            if not device.tonnage_fake_capturing():
                return
            schema = getattr(func, "_schema", None)
            written = [] if schema is None else self.written(schema, args, kwargs)
            for it in (*written, *(it for it in tensors_in(result) if it.is_cuda and plain(it))):
                storage = self.storage_of(it)
                if storage is not None:
                    self.captured[storage._cdata] = StorageWeakRef(storage)
                    self.doubt(it, REPLAYED)

        def note_selection(self, name, masks, inputs, result):
            guess = self.guess_of(masks[0])
            if name == "nonzero" and inputs is not None and guess != ZEROS:
                self.put(result, torch.nonzero(self.get(masks[0])), guess)
            else:
                self.drop(result)

        def note(self, name, func, args, kwargs, tensors, on_device, inputs, spec, result):
            """What is known after the call."""
            schema = func._schema
            results = [it for it in tensors_in(result) if it.is_cuda and plain(it)]
            if name == "lift_fresh":
                self.note_arrival(tensors[0])
                return
            if name in EMPTY:
                for it in results:
                    self.drop(it)
                return
            if any(it.alias_info is not None and not it.alias_info.is_write for it in schema.returns):
                return
            written = self.written(schema, args, kwargs)
            if name in KEPT:
                for it in written:
                    if (shadow := self.shadow_of(it)) is not None:
                        self.written_now(it, shadow)
                written = [it for it in written if it.numel() > 1 and name != "record_stream"]
            if self.filled(name, args, tensors, written):
                return
            guesses = {self.guess_of(it) for it in on_device}
            guessed = next((it for it in REASONS if it in guesses), None)
            if inputs is not None and all(self.bytes_of(it) <= LIMIT for it in results):
                if self.computed(func, inputs, spec, results, written, guessed):
                    return
            for it in written:
                self.drop(it)
            self.note_made(name, args, tensors, results)

        def written(self, schema, args, kwargs):
            given = {argument.name: value for argument, value in zip(schema.arguments, args)} | kwargs
            writes = []
            for argument in schema.arguments:
                declared = argument.alias_info is not None and argument.alias_info.is_write
                trains = argument.name in UNDECLARED and given.get("training", given.get("train", True))
                if declared or trains:
                    writes.append(given.get(argument.name))
            return [it for it in tensors_in(writes) if it.is_cuda and plain(it)]

        def computed(self, func, inputs, spec, results, written, guessed):
            """Computes on the host; whether that worked."""
            host = torch.device("cpu")
            inputs = [host if isinstance(it, torch.device) and it.type == "cuda" else it for it in inputs]
            args, kwargs = tree_unflatten(inputs, spec)
            kwargs = {key: value for key, value in kwargs.items() if key not in ("pin_memory", "layout")}
            try:
                values = func(*args, **kwargs)
            except Exception:
                return False
            if written:
                for it in written:
                    if (shadow := self.shadow_of(it)) is not None:
                        shadow.guess = guessed
                        self.written_now(it, shadow)
                return True
            values = tensors_in(values)
            if len(values) != len(results):
                return False
            for it, value in zip(results, values):
                self.put(it, value if value.shape == it.shape else None, guessed)
            return True

        def filled(self, name, args, tensors, written):
            """Whether a whole storage was written with something that is known."""
            if name not in ("copy_", "fill_", "zero_") or len(written) != 1:
                return False
            target, guess = written[0], None
            if self.bytes_of(target) > LIMIT or target.nbytes != self.bytes_of(target):
                return False
            if name == "zero_":
                values = torch.zeros((), dtype=target.dtype)
            else:
                values = tensors[1] if len(tensors) > 1 else torch.as_tensor(args[1])
                if values.is_cuda:
                    guess, values = self.guess_of(values), self.get(values)
            if values is None:
                return False
            self.put(target, values.expand(target.shape), guess, written=True)
            return True

        def note_arrival(self, tensor):
            """The host's bytes have come: the device knows them."""
            if tensor.is_cuda:
                self.peek(tensor)

        def note_made(self, name, args, tensors, results):
            if name == "_to_copy" and len(tensors) == 1 and not tensors[0].is_cuda and results:
                if self.bytes_of(results[0]) <= LIMIT:
                    self.put(results[0], tensors[0])
                return
            for it in results:
                self.drop(it)
            if not results or self.bytes_of(results[0]) > LIMIT:
                return
            shape = results[0].shape
            if name in ("rand", "randn"):
                self.put(results[0], getattr(torch, name)(shape, generator=self.generator), DRAWN)
            elif name == "randint":
                low, high = (0, args[0]) if isinstance(args[1], (list, tuple)) else args[:2]
                self.put(results[0], torch.randint(low, high, shape, generator=self.generator), DRAWN)

    return Values()


MODE = None


def install(torch):
    """Switches values on, but not in the backward: autograd adds gradients up in other memory while any mode is on."""
    global MODE
    import torch.autograd
    import torch.autograd.graph
    from torch.utils._python_dispatch import _disable_current_modes

    MODE = make(torch)
    MODE.__enter__()
    backward = torch.autograd.graph._engine_run_backward

    def without_modes(*args, **kwargs):
        MODE.settle()
        try:
            with _disable_current_modes():
                return backward(*args, **kwargs)
        finally:
            MODE.note_backward()

    atexit.register(MODE.note_rest)

    torch.autograd.graph._engine_run_backward = without_modes
    torch.autograd._engine_run_backward = without_modes


@contextlib.contextmanager
def unlisted():
    """While this is entered, what is read is no guess: nothing depends on it."""
    if MODE is None:
        yield
        return
    MODE.guesses.silent += 1
    try:
        yield
    finally:
        MODE.guesses.silent -= 1


def install_or_say(torch):
    """Switches values on; where this PyTorch has other insides, no value is known, which is said."""
    try:
        install(torch)
    except Exception as error:
        Guesses(os.environ.get("TONNAGE_GUESSES")).say("", f"no value is computed with this PyTorch: {error}")
