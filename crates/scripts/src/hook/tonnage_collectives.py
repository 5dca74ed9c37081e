"""Collectives of one rank whose others are not there: what comes out if each of them holds what this one holds.

PyTorch's fake group moves nothing between hosts; here the results follow it. What only another rank could tell is a guess,
and told: that of host memory, and small integers of the device, which programs look at. Large tensors of the device hold
nothing anyway.
"""

import functools
import inspect
import os

SMALL = 1 << 16
"""Bytes of a tensor on the device whose values may be known."""

VALUES = os.environ.get("TONNAGE_VALUES") == "1"


def install(torch, dist, inside, guesses):
    for name, after in make(torch, dist, inside, guesses).items():
        if hasattr(inside, name):
            made = with_result(torch, getattr(inside, name), after)
            setattr(inside, name, made)
            setattr(dist, name, made)


def with_result(torch, original, after):
    """The function, with what it should have done."""
    takes = inspect.signature(original)

    @functools.wraps(original)
    def done(*args, **kwargs):
        result = original(*args, **kwargs)
        given = takes.bind(*args, **kwargs)
        given.apply_defaults()
        with torch.no_grad():
            after(**given.arguments)
        return result

    return done


def make(torch, dist, inside, guesses):
    """What follows each function of `torch.distributed`, by its name; arguments are called as there."""

    def ranks(group):
        return max(inside.get_world_size(group), 1)

    def me(group):
        return max(inside.get_rank(group), 0)

    def is_me(named, of_group, group):
        if named is not None:
            return named == inside.get_rank()
        return (of_group or 0) == me(group)

    def looked_at(tensor):
        """Whether a program may look at the values, which then must be what they would be."""
        if not tensor.is_cuda:
            return True
        return VALUES and tensor.nbytes <= SMALL and not (tensor.is_floating_point() or tensor.is_complex())

    def has_values(tensor):
        return not tensor.is_cuda or (VALUES and tensor.nbytes <= SMALL)

    def reduced(tensor, op, group):
        if not has_values(tensor):
            return
        if op == dist.ReduceOp.SUM and tensor.dtype != torch.bool:
            tensor.mul_(ranks(group))
        elif op == dist.ReduceOp.PRODUCT and tensor.dtype != torch.bool:
            tensor.pow_(ranks(group))

    def unknown(tensor, whose):
        if looked_at(tensor):
            tensor.zero_()
            guesses.add(f"a tensor of {tuple(tensor.shape)} comes from {whose}, which is not there: taken to be zeros")

    def rank(named, of_group):
        number = named if named is not None else of_group
        return "another rank" if number is None else f"rank {number}"

    def put(target, source, whose):
        if not has_values(target):
            return
        if source is not None and target.shape == source.shape:
            target.copy_(source)
        else:
            unknown(target, whose)

    def all_reduce(tensor, op, group, **rest):
        reduced(tensor, op, group)

    def reduce(tensor, dst, op, group, group_dst=None, **rest):
        if is_me(dst, group_dst, group):
            reduced(tensor, op, group)

    def broadcast(tensor, src, group, group_src=None, **rest):
        if looked_at(tensor) and not is_me(src, group_src, group):
            guesses.add(
                f"a tensor of {tuple(tensor.shape)} comes from {rank(src, group_src)}, which is not there: it stays what it is"
            )

    def recv(tensor, src, group, group_src=None, **rest):
        unknown(tensor, rank(src, group_src))

    def scatter(tensor, scatter_list, src, group, group_src=None, **rest):
        put(tensor, scatter_list[me(group)] if scatter_list else None, rank(src, group_src))

    def gather(tensor, gather_list, **rest):
        for target in gather_list or ():
            put(target, tensor, "another rank")

    def all_gather(tensor_list, tensor, **rest):
        for target in tensor_list:
            put(target, tensor, "another rank")

    def all_gather_into_tensor(output_tensor, input_tensor, group, **rest):
        if has_values(output_tensor):
            for target in output_tensor.reshape(ranks(group), -1):
                put(target, input_tensor.reshape(-1), "another rank")

    def reduce_scatter(output, input_list, op, group, **rest):
        if has_values(output):
            put(output, input_list[me(group)], "other ranks")
            reduced(output, op, group)

    def reduce_scatter_tensor(output, input, op, group, **rest):
        if has_values(output):
            part = input.reshape(ranks(group), -1)[me(group)]
            put(output, part.reshape(output.shape), "other ranks")
            reduced(output, op, group)

    def all_to_all(output_tensor_list, input_tensor_list, group, **rest):
        for target in output_tensor_list:
            put(target, input_tensor_list[me(group)], "another rank")

    def all_to_all_single(output, input, output_split_sizes, input_split_sizes, group, **rest):
        if not has_values(output) or not output.numel():
            return
        parts = input.split(input_split_sizes) if input_split_sizes else input.chunk(ranks(group))
        targets = output.split(output_split_sizes) if output_split_sizes else output.chunk(ranks(group))
        mine = parts[me(group)] if me(group) < len(parts) else None
        for target in targets:
            put(target, mine, "another rank")

    made = locals()
    names = (
        "all_gather", "all_gather_into_tensor", "all_reduce", "all_to_all", "all_to_all_single", "broadcast", "gather", "recv",
        "reduce", "reduce_scatter", "reduce_scatter_tensor", "scatter",
    )
    return {name: made[name] for name in names} | {"irecv": recv}
