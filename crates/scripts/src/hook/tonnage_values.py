"""Values of small tensors, computed on the host beside the device that computes nothing.

A program that looks at numbers (`.item()`, `if mask.all()`, a stop criterion, the count of a mask) then goes the way it
would go. Shadows belong to storages, so that views and writes in place share them. What is not known is guessed, and
each guess that the program looked at is written down with its line.

The mode that this needs changes what autograd allocates; so the figures of this run do not count. What it is for is the
list of reads, which a second run without it is given.
"""

import atexit
import contextlib
import ctypes
import json
import os
import sys

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
"""What guessed values follow from."""

RANDOM = {
    "bernoulli", "bernoulli_", "exponential_", "multinomial", "native_dropout", "normal", "normal_", "rand",
    "rand_like", "randint", "randint_like", "randn", "randn_like", "random_", "randperm", "uniform_",
}
EMPTY = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"}
COUNTED = {"_index_put_impl_", "index", "index_put", "index_put_", "masked_select", "nonzero"}
READS = {"_local_scalar_dense", "_to_copy", "copy_", "equal", "is_nonzero"}
KEPT = {"_amp_foreach_non_finite_check_and_unscale_"}
"""Writes that leave small values as they are in a run in which nothing is infinite."""


class Guesses:
    """Lines of the program at which a guess was looked at, with what was guessed."""

    def __init__(self, path):
        self.path, self.told, self.silent = path, set(), 0

    def add(self, what, kind=None):
        if self.silent:
            return
        key = (self.line(), what)
        if key not in self.told:
            self.told.add(key)
            self.say(*key, kind)

    def say(self, line, what, kind=None):
        if self.path:
            with open(self.path, "a") as file:
                file.write(json.dumps({"line": line, "what": what, "kind": kind}) + "\n")

    @staticmethod
    def line():
        frame, found = sys._getframe(2), None
        while frame is not None:
            name = frame.f_code.co_filename
            if "site-packages" not in name and not name.startswith(("<", HOOK)):
                return f"{name}:{frame.f_lineno}"
            if found is None and "torch" not in name and not name.startswith(("<", HOOK)):
                found = f"{name}:{frame.f_lineno}"
            frame = frame.f_back
        return found or ""


def make(torch):
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_flatten, tree_unflatten

    device = ctypes.CDLL(os.environ["TONNAGE_CORE"])
    device.tonnage_fake_answer.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    device.tonnage_fake_peek.argtypes = [ctypes.c_void_p, ctypes.c_uint64, ctypes.c_size_t]
    device.tonnage_fake_forget.argtypes = [ctypes.c_uint64, ctypes.c_size_t]
    device.tonnage_fake_unanswered.argtypes = [ctypes.c_int]
    device.tonnage_fake_unanswered.restype = ctypes.c_uint64

    def tensors_in(tree):
        return [item for item in tree_flatten(tree)[0] if isinstance(item, torch.Tensor)]

    def plain(tensor):
        """Whether it is a tensor with a storage, and no other kind."""
        return tensor.layout == torch.strided

    def counts_as_number(dtype):
        return dtype.is_floating_point or dtype.is_complex

    class Values(TorchDispatchMode):
        def __init__(self):
            super().__init__()
            self.shadows = {}
            self.guessed = {}
            self.generator = torch.Generator().manual_seed(0)
            self.guesses = Guesses(os.environ.get("TONNAGE_GUESSES"))

        # Shadows.

        @staticmethod
        def key(tensor):
            try:
                storage = tensor.untyped_storage()
                return storage.data_ptr() if storage.nbytes() else 0
            except (RuntimeError, NotImplementedError):
                return 0

        @staticmethod
        def bytes_of(tensor):
            try:
                return tensor.untyped_storage().nbytes()
            except (RuntimeError, NotImplementedError):
                return sys.maxsize

        def get(self, tensor):
            """The tensor's values, on the host; nothing if they are not known."""
            if tensor.numel() == 0:
                return torch.empty(tensor.shape, dtype=tensor.dtype)
            shadow = self.shadows.get(self.key(tensor))
            if shadow is None:
                return None
            try:
                view = torch.empty(0, dtype=tensor.dtype)
                return view.set_(shadow, tensor.storage_offset(), tensor.shape, tensor.stride())
            except RuntimeError:
                return None

        def put(self, tensor, values, guessed=None):
            """Notes values, and what they follow from if they are guessed."""
            key, size = self.key(tensor), self.bytes_of(tensor)
            if not key:
                return
            if values is None or size > LIMIT:
                self.drop(tensor)
                return
            self.shadows[key] = torch.UntypedStorage(size)
            self.get(tensor).copy_(values)
            self.note_guess(key, guessed)

        def note_guess(self, key, guessed):
            if guessed:
                self.guessed[key] = guessed
            else:
                self.guessed.pop(key, None)

        def drop(self, tensor):
            key = self.key(tensor)
            if key:
                self.shadows.pop(key, None)
                device.tonnage_fake_forget(key, self.bytes_of(tensor))

        def guess_of(self, tensor):
            """What the values follow from if they are guessed; else nothing."""
            return self.guessed.get(self.key(tensor))

        def known_or_guessed(self, tensor):
            """Values; for integers that nobody knows what the device's memory reads as."""
            values = self.get(tensor)
            key, size = self.key(tensor), self.bytes_of(tensor)
            if values is None and key and size <= LIMIT and not counts_as_number(tensor.dtype):
                shadow = torch.UntypedStorage(size)
                device.tonnage_fake_peek(shadow.data_ptr(), key, size)
                self.shadows[key] = shadow
                self.guessed[key] = ZEROS
                values = self.get(tensor)
            return values

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
            result = self.dispatched(func, args, kwargs or {})
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
                return func(*args, **kwargs)
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

            masks = []
            if name in COUNTED:
                masks, result = self.of_counts(name, call, tensors)
            else:
                result = call()
            if masks and name in ("index", "masked_select", "nonzero"):
                self.note_selection(name, masks, inputs, result)
                return result
            self.note(name, func, args, kwargs, tensors, on_device, inputs, spec, result)
            return result

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
                written = [it for it in written if it.numel() > 1]
            guesses = {self.guess_of(it) for it in on_device}
            guessed = ZEROS if ZEROS in guesses else DRAWN if DRAWN in guesses else None
            if inputs is not None and all(self.bytes_of(it) <= LIMIT for it in results):
                if self.computed(func, inputs, spec, results, written, guessed):
                    return
            if self.filled(name, args, tensors, written):
                return
            for it in written:
                self.drop(it)
            self.note_made(name, args, tensors, results)

        def written(self, schema, args, kwargs):
            writes = []
            for number, argument in enumerate(schema.arguments):
                if argument.alias_info is None or not argument.alias_info.is_write:
                    continue
                if number < len(args):
                    writes.append(args[number])
                elif argument.name in kwargs:
                    writes.append(kwargs[argument.name])
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
                if guessed:
                    self.guessed.update((self.key(it), guessed) for it in written)
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
            self.put(target, values.expand(target.shape), guess)
            return True

        def note_arrival(self, tensor):
            """The host's bytes have come: the device knows them."""
            key, size = self.key(tensor), self.bytes_of(tensor)
            if key and size <= LIMIT and tensor.is_cuda:
                shadow = torch.UntypedStorage(size)
                device.tonnage_fake_peek(shadow.data_ptr(), key, size)
                self.shadows[key] = shadow
                self.guessed.pop(key, None)

        def note_made(self, name, args, tensors, results):
            if name == "_to_copy" and len(tensors) == 1 and not tensors[0].is_cuda and results:
                self.shadows.pop(self.key(results[0]), None)
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
