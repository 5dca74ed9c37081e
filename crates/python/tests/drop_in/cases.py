"""Programs whose memory must be the same under PyTorch's allocator and under the drop-in with its rules.

In:  PyTorch with a GPU, or with libraries that compute nothing. Out: what a program learns from PyTorch about its memory.

A case is a function of ``torch``; what it returns is compared too. ``CASES`` says what each needs.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import io
import pathlib
import runpy
import sys
import threading


class Case:
    """A program, and what it needs."""

    def __init__(self, run, conf="", heavy=False, limit=None, devices=1, named=False, frees_in_any_order=False, since=(2, 9)):
        self.run, self.conf, self.heavy, self.limit, self.devices = run, conf, heavy, limit, devices
        #: Whether it runs only when it is asked for: it needs packages beside PyTorch, or minutes.
        self.named = named
        #: Whether what is freed in a row goes in an order that is no one's, such as that of the host's addresses.
        self.frees_in_any_order = frees_in_any_order
        #: The first release that has what it does, on the fake libraries.
        self.since = since


CASES = {}


def release(torch):
    """Major and minor."""
    return tuple(int(part) for part in torch.__version__.split(".")[:2])


def case(**options):
    def add(run):
        CASES[run.__name__] = Case(run, **options)
        return run

    return add


#: Scripts with what an H200 recorded of them.
SCRIPTS = pathlib.Path(__file__).parents[4] / "testdata/scripts"

#: Those that need PyTorch alone and end in seconds.
LIGHT_SCRIPTS = ("seed_mlp", "small_cnn", "small_gpt")


def script(name):
    """One of these, unchanged; what it prints is compared, too."""

    def run(torch):
        path = str(SCRIPTS / f"{name}.py")
        sys.argv = [path]
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            runpy.run_path(path, run_name="__main__")
        return printed.getvalue()

    # The cache of autocast is freed in the order of addresses of the host.
    autocast = "autocast" in (SCRIPTS / f"{name}.py").read_text()
    CASES[f"script_{name}"] = Case(run, named=name not in LIGHT_SCRIPTS, frees_in_any_order=autocast)


for path in sorted(SCRIPTS.glob("*.py")):
    # One is a rank of a launcher's; the other two are no programs.
    if path.stem not in ("run", "workloads", "fsdp_world"):
        script(path.stem)


def model(torch, width=512, layers=4):
    blocks = []
    for _ in range(layers):
        blocks += [torch.nn.Linear(width, width), torch.nn.ReLU()]
    return torch.nn.Sequential(*blocks, torch.nn.Linear(width, 10)).cuda()


def train(torch, net, batch=64, width=512, steps=3):
    optimizer = torch.optim.Adam(net.parameters())
    for _ in range(steps):
        loss = net(torch.randn(batch, width, device="cuda")).square().mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()


@case()
def mlp(torch):
    train(torch, model(torch))


@case(conf="expandable_segments:True")
def mlp_expandable(torch):
    train(torch, model(torch, 1024), width=1024)
    torch.cuda.empty_cache()
    train(torch, model(torch, 768), width=768)


@case(conf="max_split_size_mb:40,garbage_collection_threshold:0.6,roundup_power2_divisions:4")
def mlp_settings(torch):
    torch.cuda.set_per_process_memory_fraction(0.01)
    for width in (512, 2048, 1024):
        train(torch, model(torch, width), width=width, steps=1)


@case()
def settings_change(torch):
    """Settings that are read while the program runs."""
    read = getattr(torch._C, "_accelerator_setAllocatorSettings", None)
    read = read or torch._C._cuda_cudaCachingAllocator_set_allocator_settings
    keep = [torch.empty(3 << 20, device="cuda")]
    read("max_split_size_mb:30")
    keep.append(torch.empty(30 << 20, dtype=torch.uint8, device="cuda"))
    del keep[0]
    keep.append(torch.empty(20 << 20, dtype=torch.uint8, device="cuda"))
    read("expandable_segments:True")
    keep.append(torch.empty(50 << 20, dtype=torch.uint8, device="cuda"))
    return torch.cuda.memory._snapshot()["allocator_settings"]


class Block:
    """A transformer's layer, made when there is a torch."""

    def __new__(cls, torch, width, heads):
        class Layer(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.norm, self.after = torch.nn.LayerNorm(width), torch.nn.LayerNorm(width)
                self.qkv, self.out = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)
                self.up, self.down = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)

            def forward(self, x):
                batch, length, _ = x.shape
                q, k, v = self.qkv(self.norm(x)).view(batch, length, 3, heads, -1).permute(2, 0, 3, 1, 4)
                mixed = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
                x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
                return x + self.down(torch.nn.functional.gelu(self.up(self.after(x))))

        return Layer()


@case()
def gpt(torch):
    """Autocast, checkpoints, lengths that differ."""
    from torch.utils.checkpoint import checkpoint

    width, kinds = 256, 1000
    table, head = torch.nn.Embedding(kinds, width).cuda(), torch.nn.Linear(width, kinds).cuda()
    layers = torch.nn.ModuleList(Block(torch, width, 4) for _ in range(3)).cuda()
    parameters = [*table.parameters(), *layers.parameters(), *head.parameters()]
    optimizer = torch.optim.AdamW(parameters, fused=True)
    for length in (64, 100, 37, 128):
        tokens = torch.zeros(4, length, dtype=torch.long, device="cuda")
        # Its cache is freed in the order of addresses of the host.
        with torch.autocast("cuda", torch.bfloat16, cache_enabled=False):
            x = table(tokens)
            for number, layer in enumerate(layers):
                x = checkpoint(layer, x, use_reentrant=False) if number % 2 else layer(x)
            loss = torch.nn.functional.cross_entropy(head(x).flatten(0, 1).float(), tokens.flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad()


@case()
def streams(torch):
    """Side streams, recorded and not; memory that waits for another stream."""
    side, other = torch.cuda.Stream(), torch.cuda.Stream(priority=-1)
    kept = []
    for round in range(6):
        data = torch.randn(1 << (16 + round % 4), device="cuda")
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            result = data * 2
            data.record_stream(side)
            kept.append(result)
        with torch.cuda.stream(other):
            small = torch.zeros(round + 1, device="cuda")
            result.record_stream(other)
        del data, result, small
        if round % 2:
            del kept[0]
            torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    return [tensor.numel() for tensor in kept]


@case()
def threads(torch):
    """One thread after the other, so that the order is one order."""
    kept = []
    for number in range(4):
        work = threading.Thread(target=lambda: kept.append(torch.empty((number + 1) << 18, device="cuda")))
        work.start()
        work.join()
    return [tensor.data_ptr() - kept[0].data_ptr() for tensor in kept]


@case()
def graphs(torch):
    net = model(torch, 256)
    x = torch.randn(32, 256, device="cuda")
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):
            net(x).sum().backward()
    torch.cuda.current_stream().wait_stream(side)
    graph, second = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
    net.zero_grad(set_to_none=True)
    with torch.cuda.graph(graph):
        y = net(x).sum()
        y.backward()
    with torch.cuda.graph(second, pool=graph.pool()):
        z = net(x) * 2
    for _ in range(3):
        graph.replay()
        second.replay()
    del y, z
    graph.reset()
    del graph, second
    gc.collect()
    torch.cuda.empty_cache()


@case()
def graphed_callables(torch):
    """Gradients that `autograd.grad` returned are held by the thread that computed them too, until it asks for its next task. A
    capture begins with `synchronize` and `empty_cache`: a task before these, and nothing is held that is no one's."""
    synchronize = torch.cuda.synchronize

    def after_a_task():
        torch.ones(1, device="cuda", requires_grad=True).sum().backward()
        synchronize()

    net = model(torch, 256)
    sample = torch.randn(16, 256, device="cuda", requires_grad=True)
    torch.cuda.synchronize = after_a_task
    try:
        graphed = torch.cuda.make_graphed_callables(net, (sample,))
    finally:
        torch.cuda.synchronize = synchronize
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(3):
        graphed(torch.randn(16, 256, device="cuda", requires_grad=True)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


@case()
def pools(torch):
    pool, answers = torch.cuda.MemPool(), []
    outside = torch.empty(1 << 20, device="cuda")
    with torch.cuda.use_mem_pool(pool):
        inside = torch.empty(5 << 20, device="cuda")
        small = torch.empty(100, device="cuda")
    answers.append(pool.use_count())
    answers.append(len(pool.snapshot()))
    del inside
    with torch.cuda.use_mem_pool(pool):
        again = torch.empty(4 << 20, device="cuda")
    answers.append(sorted(segment["total_size"] for segment in torch.cuda.memory_snapshot()))
    del small, again, pool
    gc.collect()
    torch.cuda.empty_cache()
    answers.append(outside.numel())
    return answers


@case(limit=2 << 30)
def out_of_memory(torch):
    """Memory runs out, is caught, and training goes on."""
    seen = []
    torch.cuda.init()
    torch._C._cuda_attach_out_of_memory_observer(lambda *what: seen.append(what))
    keep = [torch.empty(64 << 20, dtype=torch.uint8, device="cuda") for _ in range(10)]
    sizes = 1 << 20
    try:
        while True:
            keep.append(torch.empty(sizes, dtype=torch.uint8, device="cuda"))
            sizes *= 2
    except torch.cuda.OutOfMemoryError as error:
        message = str(error)
    del keep[::2]
    keep.append(torch.empty(sizes // 2, dtype=torch.uint8, device="cuda"))
    train(torch, model(torch))
    first = message.split(" GPU 0 ")[0]
    return [first, message.startswith(first), len(seen), seen, torch.cuda.memory_stats()["num_ooms"]]


@case(limit=1 << 30)
def batch_size_finder(torch):
    batch, tried = 4096, []
    while True:
        try:
            torch.empty(batch << 18, dtype=torch.uint8, device="cuda").fill_(0)
            return tried
        except RuntimeError as error:
            if "CUDA out of memory." not in str(error):
                raise
            tried.append(batch)
            batch //= 2


@case()
def fraction(torch):
    torch.cuda.set_per_process_memory_fraction(0.001)
    answers = [torch.cuda.get_per_process_memory_fraction()]
    try:
        torch.empty(200 << 20, dtype=torch.uint8, device="cuda")
    except torch.cuda.OutOfMemoryError:
        answers.append("refused")
    torch.cuda.set_per_process_memory_fraction(1.0)
    torch.empty(200 << 20, dtype=torch.uint8, device="cuda")
    return answers


@case()
def observers(torch):
    """What those are told who want to know of memory that has run out, with a share of the device and without."""
    seen = []
    torch.cuda.init()
    torch._C._cuda_attach_out_of_memory_observer(lambda *what: seen.append(what))
    for share in (0.001, 1.0):
        torch.cuda.set_per_process_memory_fraction(share)
        try:
            torch.empty(1 << 42, dtype=torch.uint8, device="cuda")
        except torch.cuda.OutOfMemoryError as error:
            seen.append(str(error).split(" Of the allocated memory ")[0])
    return seen


@case()
def streams_of_others(torch):
    """A stream of another library, which destroys it when its tensors are gone."""
    import ctypes

    torch.cuda.init()
    runtime = ctypes.CDLL(f"libcudart.so.{torch.version.cuda.split('.')[0]}")
    handles = [ctypes.c_void_p() for _ in range(3)]
    assert all(runtime.cudaStreamCreateWithFlags(ctypes.byref(handle), 1) == 0 for handle in handles)
    for turn, handle in enumerate(handles):
        stream = torch.cuda.ExternalStream(handle.value)
        data = torch.empty(1 << 20, device="cuda")
        with torch.cuda.stream(stream):
            own = torch.empty((turn + 3) << 20, device="cuda")
            data.record_stream(stream)
        del own, data
        torch.cuda.synchronize()
        assert runtime.cudaStreamDestroy(handle) == 0
        torch.empty(30 << 20, device="cuda")
        torch.cuda.empty_cache()


@case()
def forks(torch):
    """A fork drops what its parent holds."""
    import os

    kept = [torch.empty(1 << 20, device="cuda")]
    child = os.fork()
    if child == 0:
        kept.clear()
        gc.collect()
        os._exit(3)
    return [os.waitpid(child, 0)[1], kept[0].numel(), torch.cuda.memory_allocated()]


@case()
def pinned(torch):
    data = torch.utils.data.TensorDataset(torch.zeros(64, 1000), torch.zeros(64))
    loader = torch.utils.data.DataLoader(data, batch_size=16, pin_memory=True)
    for x, y in loader:
        x.cuda(non_blocking=True), y.cuda(non_blocking=True)
    return sorted(torch.cuda.host_memory_stats())[:3]


@case()
def convolutions(torch):
    torch.backends.cudnn.benchmark = False
    net = torch.nn.Sequential(
        torch.nn.Conv2d(3, 32, 3, padding=1), torch.nn.BatchNorm2d(32), torch.nn.ReLU(), torch.nn.Conv2d(32, 64, 3)
    ).cuda()
    for size in (32, 48, 40):
        net(torch.randn(4, 3, size, size, device="cuda")).sum().backward()


@case()
def convolutions_tried_out(torch):
    """cuDNN's benchmark mode, which tries algorithms with the memory they ask for."""
    torch.backends.cudnn.benchmark = True
    net = torch.nn.Conv2d(3, 32, 3, padding=1).cuda()
    for size in (32, 48, 32):
        net(torch.randn(4, 3, size, size, device="cuda")).sum().backward()
    torch.backends.cudnn.benchmark = False


@case()
def allocator_calls(torch):
    address = torch.cuda.caching_allocator_alloc(3 << 20)
    size = [segment["total_size"] for segment in torch.cuda.memory_snapshot()]
    torch.cuda.caching_allocator_delete(address)
    torch.cuda.memory.caching_allocator_enable(False)
    raw = torch.empty(1 << 20, device="cuda")
    del raw
    torch.cuda.caching_allocator_delete(torch.cuda.caching_allocator_alloc(5 << 20))
    torch.cuda.memory.caching_allocator_enable(True)
    torch.empty(1 << 20, device="cuda")
    return [size, torch.cuda.memory.get_allocator_backend()]


@case()
def every_figure(torch):
    """Every call that tells of memory, at several points."""
    cuda, points = torch.cuda, []

    def point(name):
        summary = cuda.memory_summary()
        nested = cuda.memory_stats_as_nested_dict()
        points.append(
            {
                "at": name,
                "allocated": cuda.memory_allocated(),
                "reserved": cuda.memory_reserved(),
                "cached": cuda.memory_cached(),
                "peaks": [cuda.max_memory_allocated(), cuda.max_memory_reserved(), cuda.max_memory_cached()],
                "stats": dict(cuda.memory_stats()),
                "nested": nested,
                "summary": summary,
                "short": cuda.memory_summary(abbreviated=True),
                "info": cuda.mem_get_info(),
                "host": dict(cuda.host_memory_stats()),
                "segments": cuda.memory_snapshot(),
                "fraction": cuda.get_per_process_memory_fraction(),
                "backend": cuda.get_allocator_backend(),
                "processes": outcome(cuda.list_gpu_processes),
                "usage": outcome(cuda.memory_usage),
                "accelerator": [torch.accelerator.memory_allocated(), torch.accelerator.memory_reserved()],
            }
        )

    def outcome(call):
        try:
            return str(call())
        except Exception as error:
            return type(error).__name__

    point("nothing")
    first = torch.empty(5 << 20, device="cuda")
    small = [torch.empty(number * 100 + 1, device="cuda") for number in range(20)]
    point("some")
    del first, small[::2]
    point("freed")
    cuda.reset_peak_memory_stats()
    cuda.reset_accumulated_memory_stats()
    point("reset")
    train(torch, model(torch))
    point("trained")
    cuda.reset_max_memory_allocated()
    cuda.reset_max_memory_cached()
    gc.collect()
    cuda.empty_cache()
    point("emptied")
    return points


@case()
def contexts(torch):
    """Histories of each kind, what they have stacks of, marks, metadata, actions that are left out."""
    memory, answers = torch.cuda.memory, []

    def work():
        kept = [torch.empty(1 << 20, device="cuda") for _ in range(3)]
        del kept[1]
        return kept

    def shown(snapshot):
        entries = [
            (entry["action"], bool(entry.get("frames")), entry.get("compile_context"), entry.get("user_metadata"))
            for entry in snapshot["device_traces"][0]
        ]
        blocks = [
            [bool(block.get("frames")) for block in segment["blocks"]] for segment in snapshot["segments"]
        ]
        return [entries, blocks, sorted(snapshot), [mark["name"] for mark in snapshot["external_annotations"]]]

    for context in ("all", "alloc", "state", None):
        for enabled in ("all", "state"):
            memory._record_memory_history(enabled=enabled, context=context, stacks="python", max_entries=8)
            with torch.profiler.record_function("## mark ##"):
                kept = work()
            answers.append([context, enabled, shown(memory._snapshot())])
            memory._record_memory_history(enabled=None)
            del kept
    skipped = {"skip_actions": ["free_requested", "segment_alloc"]} if release(torch) >= (2, 11) else {}
    memory._record_memory_history(max_entries=100, clear_history=True, **skipped)
    if hasattr(torch._C, "_cuda_setMemoryMetadata"):
        torch._C._cuda_setMemoryMetadata("step 3")
    kept = work()
    large = torch.empty(30 << 20, device="cuda")
    del large
    torch.cuda.empty_cache()
    if hasattr(torch._C, "_cuda_getMemoryMetadata"):
        answers.append(torch._C._cuda_getMemoryMetadata())
        torch._C._cuda_setMemoryMetadata("")
    answers.append(shown(memory._snapshot()))
    memory._record_memory_history(enabled=None)
    # What blocks are known by stays.
    answers.append(shown(memory._snapshot()))
    return [answers, len(kept)]


def pools_with_allocators(torch):
    """Segments of a pool that an allocator of the program's own gives."""
    from programs import own_allocator

    allocator, calls = own_allocator(torch)
    outside = torch.empty(5 << 20, device="cuda")
    answers = []
    try:
        pool = torch.cuda.MemPool(allocator)
    except RuntimeError as error:
        # The same requests, which is all that is compared then.
        assert "policy `pages`" in str(error), error
        pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        inside = [torch.empty(size, device="cuda") for size in (100, 1 << 18, 3 << 20)]
        answers.append([pool.use_count(), len(pool.snapshot()), list(calls)])
        del inside[1:]
        again = torch.empty(1 << 18, device="cuda")
    between = torch.empty(1 << 18, device="cuda")
    torch.cuda.empty_cache()
    answers.append([pool.use_count(), list(calls)])
    answers.append(sorted((it["total_size"], it["segment_pool_id"], it["is_expandable"]) for it in torch.cuda.memory_snapshot()))
    del pool
    gc.collect()
    answers.append(list(calls))
    # Its memory stays while a tensor of it does, and so does its allocator.
    del allocator
    gc.collect()
    torch.cuda.empty_cache()
    answers.append(list(calls))
    del inside, again
    torch.cuda.empty_cache()
    answers.append([list(calls), outside.numel(), between.numel()])
    return answers


@case()
def pools_with_own_allocators(torch):
    return pools_with_allocators(torch)


@case(conf="expandable_segments:True", since=(2, 10))
def pools_with_own_allocators_expandable(torch):
    return pools_with_allocators(torch)


@case(limit=1 << 30)
def pools_with_own_allocators_that_run_out(torch):
    from programs import own_allocator

    allocator, calls = own_allocator(torch)
    try:
        pool = torch.cuda.MemPool(allocator, use_on_oom=True)
    except RuntimeError as error:
        # The same requests, which is all that is compared then.
        assert "policy `pages`" in str(error), error
        torch.empty(600 << 20, dtype=torch.uint8, device="cuda")
        torch.empty(500 << 20, dtype=torch.uint8, device="cuda")
        return []
    with torch.cuda.use_mem_pool(pool):
        inside = torch.empty(600 << 20, dtype=torch.uint8, device="cuda")
        failed = 0
        try:
            torch.empty(600 << 20, dtype=torch.uint8, device="cuda")
        except torch.cuda.OutOfMemoryError:
            failed += 1
    address = inside.data_ptr()
    del inside
    # The pool lends what it has, rather than let this fail.
    outside = torch.empty(500 << 20, dtype=torch.uint8, device="cuda")
    return [failed, outside.data_ptr() == address, calls]


@case(devices=2)
def several_devices(torch):
    """Each device has its own; tensors go from one to another, and are used on streams of another."""

    first = [torch.empty(number << 20, device="cuda:0") for number in (1, 5, 12)]
    second = torch.empty(7 << 20, device="cuda:1")
    with torch.cuda.device(1):
        side = torch.cuda.Stream()
    there = first[0].to("cuda:1", non_blocking=True)
    first[1].record_stream(side)
    with torch.cuda.stream(side):
        on_side = torch.empty(3 << 20, device="cuda:1")
    second.record_stream(side)
    del first[1], second
    back = there.to("cuda:0", non_blocking=True)
    for device in range(2):
        torch.cuda.synchronize(device)
    train(torch, model(torch))
    figures = [[dict(torch.cuda.memory_stats(device)), torch.cuda.mem_get_info(device)] for device in range(2)]
    torch.cuda.set_per_process_memory_fraction(0.01, 1)
    shares = [torch.cuda.get_per_process_memory_fraction(device) for device in range(2)]
    torch.cuda.empty_cache()
    after = [torch.cuda.memory_reserved(device) for device in range(2)]
    return [figures, shares, after, back.device.index, on_side.device.index, sorted({it["device"] for it in torch.cuda.memory_snapshot()})]


def who_reaches(*tensors):
    """Which of two devices may reach the pages of each tensor."""
    may_reach = ctypes.CDLL(None).tonnage_fake_may_reach
    may_reach.argtypes = [ctypes.c_int, ctypes.c_uint64]
    return [[may_reach(device, tensor.data_ptr()) for device in range(2)] for tensor in tensors]


@case(devices=2, conf="expandable_segments:True")
def several_devices_reach_each_others_pages(torch):
    """Once a tensor has gone from one to the other, those that are there and those that come."""
    seen = []
    first = torch.empty(30 << 20, dtype=torch.uint8, device="cuda:0")
    seen += who_reaches(first)
    there = first.to("cuda:1")
    more = [torch.empty(50 << 20, dtype=torch.uint8, device=f"cuda:{device}") for device in range(2)]
    seen += who_reaches(first, there, *more)
    back = there.to("cuda:0")
    last = [torch.empty(300 << 20, dtype=torch.uint8, device=f"cuda:{device}") for device in range(2)]
    seen += who_reaches(first, there, *more, back, *last)
    assert [1, 1] in seen, seen
    return seen


@case(limit=1 << 30)
def told_to_the_profiler(torch):
    """Sizes of blocks, what is allocated and reserved by then, and a request that failed."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        blocks = [torch.empty(number, dtype=torch.uint8, device="cuda") for number in (1000, 3 << 20, 700, 30 << 20)]
        del blocks[1]
        try:
            torch.empty((2 << 30) + 100, dtype=torch.uint8, device="cuda")
        except torch.OutOfMemoryError:
            pass
        blocks.clear()
    results = profiler.profiler.kineto_results
    told = [it for it in results.events() if it.name() in ("[memory]", "[OutOfMemory]") and it.device_type().name == "CUDA"]
    told.sort(key=lambda it: it.start_ns())
    assert [it.name() for it in told] == ["[memory]"] * 5 + ["[OutOfMemory]"] + ["[memory]"] * 3, [it.name() for it in told]
    figures, events = [], results.experimental_event_tree()
    while events:
        event = events.pop()
        events.extend(event.children)
        if event.tag.name == "Allocation":
            fields = event.extra_fields
            figures.append((event.start_time_ns, fields.alloc_size, fields.total_allocated, fields.total_reserved))
    return [(it.name(), it.nbytes(), it.device_index()) for it in told], [it[1:] for it in sorted(figures)]


@case()
def shared_with_processes(torch):
    """The driver of the fake libraries shares nothing: what it says is said to the program."""
    try:
        torch.empty(100, device="cuda").untyped_storage()._share_cuda_()
    except RuntimeError as error:
        return str(error).splitlines()[0] if "policy=" not in str(error) else ""
    return "shared"


@case(heavy=True)
def compiled(torch):
    net = torch.compile(model(torch, 128))
    for _ in range(3):
        net(torch.randn(8, 128, device="cuda")).sum().backward()


@case(heavy=True)
def graph_trees(torch):
    """Private pools go back to earlier states."""
    net = torch.compile(model(torch, 128, 2), mode="reduce-overhead")
    for _ in range(6):
        torch.compiler.cudagraph_mark_step_begin()
        net(torch.randn(8, 128, device="cuda")).sum().backward()
        net.zero_grad(set_to_none=True)


@case()
def pool_states(torch):
    """What graph trees do with a pool, by hand."""
    torch.cuda.init()
    graph = torch.cuda.CUDAGraph()
    x = torch.zeros(1000, device="cuda")
    with torch.cuda.graph(graph):
        kept = x + 1
        gone = x + 2
    pool, device = graph.pool(), torch.cuda.current_device()
    state = torch._C._cuda_getCheckpointState(device, pool)
    live = torch._C._cuda_checkPoolLiveAllocations(device, pool, {kept.untyped_storage().data_ptr(), gone.untyped_storage().data_ptr()})
    del gone
    after = torch._C._cuda_checkPoolLiveAllocations(device, pool, {kept.untyped_storage().data_ptr()})
    storage = kept.untyped_storage()._cdata
    torch._C._cuda_setCheckpointPoolState(device, state, [storage], [])
    return [live, after]


REUSE = "graph_capture_record_stream_reuse:True"

#: 2.9 adds empty nodes to the graph, which the fake libraries do not have.
WITHOUT_NODES = (2, 10)


def captured(torch, work):
    """What work answers that is captured: it is given the stream of the capture and another one."""
    # Of a device that nobody has used PyTorch counts more.
    torch.empty(100, device="cuda")
    side, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        answer = work(torch.cuda.current_stream(), side)
    torch.empty(1 << 20, device="cuda")
    return answer


def used_aside(torch, own, side):
    """A tensor that another stream of the capture uses."""
    x = torch.empty(1 << 20, device="cuda").fill_(1)
    side.wait_stream(own)
    with torch.cuda.stream(side):
        x.mul_(2)
    x.record_stream(side)
    return x


@case(conf=REUSE, since=WITHOUT_NODES)
def captured_uses_freed_then_joined(torch):
    def work(own, side):
        x = used_aside(torch, own, side)
        address = x.data_ptr()
        del x
        before = torch.empty(1 << 20, device="cuda").fill_(2)
        own.wait_stream(side)
        after = [torch.empty(1 << 20, device="cuda").fill_(3) for _ in range(2)]
        return [it.data_ptr() == address for it in (before, *after)]

    answer = captured(torch, work)
    assert answer == [False, True, False], answer
    return answer


@case(conf=REUSE, since=WITHOUT_NODES)
def captured_uses_joined_then_freed(torch):
    def work(own, side):
        x = used_aside(torch, own, side)
        address = x.data_ptr()
        own.wait_stream(side)
        del x
        # Where the two streams met, nothing has been captured yet.
        early = torch.empty(1 << 20, device="cuda").fill_(2)
        late = torch.empty(1 << 20, device="cuda").fill_(2)
        return [it.data_ptr() == address for it in (early, late)]

    answer = captured(torch, work)
    assert answer == [True, False], answer
    return answer


@case(conf=REUSE, since=WITHOUT_NODES)
def captured_uses_of_several_streams(torch):
    """Blocks of two streams, each used by the other, in rounds; some are never joined before the end."""

    def work(own, side):
        addresses, kept = [], []
        for turn in range(4):
            x = used_aside(torch, own, side)
            with torch.cuda.stream(side):
                y = torch.empty(1 << 19, device="cuda").fill_(1)
                y.record_stream(own)
            if turn % 2:
                own.wait_stream(side)
                y.add_(1)
                side.wait_stream(own)
            del x, y
            kept.append(torch.empty(1 << 20, device="cuda").fill_(2))
            with torch.cuda.stream(side):
                kept.append(torch.empty(1 << 19, device="cuda").fill_(2))
            addresses += [it.data_ptr() for it in kept[-2:]]
        own.wait_stream(side)
        return [addresses.index(it) for it in addresses]

    return captured(torch, work)


@case(conf=REUSE, since=WITHOUT_NODES)
def captured_uses_after_others(torch):
    """A block that a stream used before the capture, which is no part of it."""
    other, x = torch.cuda.Stream(), torch.empty(1 << 20, device="cuda")
    x.record_stream(other)

    def work(own, side):
        nonlocal x
        side.wait_stream(own)
        with torch.cuda.stream(side):
            x.mul_(2)
        x.record_stream(side)
        own.wait_stream(side)
        x = None
        return [torch.empty(1 << 20, device="cuda").fill_(2).numel() for _ in range(2)]

    return captured(torch, work)


@case()
def captured_uses_without_the_setting(torch):
    def work(own, side):
        x = used_aside(torch, own, side)
        address = x.data_ptr()
        own.wait_stream(side)
        del x
        return torch.empty(1 << 20, device="cuda").fill_(2).data_ptr() == address

    return captured(torch, work)
