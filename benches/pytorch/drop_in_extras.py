"""Small programs that need a GPU that computes, under each allocator: ``drop_in_extras.py RESULTS``.

Out: a line of JSON for each with what its programs said: ``ok``, or what went wrong. Each runs in a fork of its own.
"""

import functools
import sys
import time

import torch

from drop_in_forks import Results, one


def child(queue, done):
    """Another process: with PyTorch's own allocator."""
    tensor = queue.get()
    done.put(float(tensor.sum()))
    tensor.add_(1)
    torch.cuda.synchronize()
    done.put("changed")
    del tensor


def shared_between_processes():
    import torch.multiprocessing as processes

    context = processes.get_context("spawn")
    queue, done = context.Queue(), context.Queue()
    tensor = torch.arange(1000, dtype=torch.float32, device="cuda")
    other = context.Process(target=child, args=(queue, done))
    other.start()
    try:
        queue.put(tensor)
        assert done.get(timeout=60) == 499500.0
        assert done.get(timeout=60) == "changed"
        assert float(tensor.sum()) == 500500.0
    finally:
        other.join(10)
        other.kill()


def compiled_with_graphs():
    net = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8)).cuda()
    fast = torch.compile(net, mode="reduce-overhead")
    for number in range(6):
        x = torch.randn(16, 64, device="cuda")
        torch.compiler.cudagraph_mark_step_begin()
        loss = fast(x).square().mean()
        loss.backward()
        torch.testing.assert_close(loss, net(x).square().mean(), rtol=1e-4, atol=1e-5)
        net.zero_grad(set_to_none=True)


def graph_beside_others():
    x = torch.full((1 << 20,), 2.0, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = (x * 3 + 1).sqrt()
        z = y.sum()
    for value in (1.0, 5.0, 8.0):
        x.fill_(value)
        noise = [torch.randn(1 << 18, device="cuda") for _ in range(20)]
        graph.replay()
        del noise
        expected = (1 << 20) * (value * 3 + 1) ** 0.5
        assert abs(float(z) / expected - 1) < 1e-4, (float(z), expected)


def out_of_memory_and_on():
    try:
        torch.empty(1 << 45, dtype=torch.uint8, device="cuda")
    except torch.cuda.OutOfMemoryError as error:
        assert str(error).startswith("CUDA out of memory. Tried to allocate"), str(error)
    assert float(torch.ones(1000, device="cuda").sum()) == 1000


def streams():
    side = torch.cuda.Stream()
    for turn in range(200):
        x = torch.full((1 << 16,), float(turn), device="cuda")
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            y = x * 2
            x.record_stream(side)
        del x
        noise = torch.full((1 << 16,), -1.0, device="cuda")
        torch.cuda.current_stream().wait_stream(side)
        assert float(y.sum()) == 2 * turn * (1 << 16)
        y.record_stream(torch.cuda.current_stream())
        del noise


def loader():
    data = torch.utils.data.TensorDataset(torch.arange(256.0).repeat(64, 1))
    total = 0.0
    for (x,) in torch.utils.data.DataLoader(data, batch_size=8, num_workers=2, pin_memory=True):
        total += float(x.cuda(non_blocking=True).sum())
    assert total == 64 * 255 * 128


def pool():
    kept = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(kept):
        x = torch.full((1 << 20,), 3.0, device="cuda")
    assert float(x.sum()) == 3 << 20


def paused():
    import tonnage.torch

    x = torch.arange(10_000_000, dtype=torch.float32, device="cuda")
    before, address = float(x.double().sum()), x.data_ptr()
    free = torch.cuda.mem_get_info()[0]
    tonnage.torch.pause()
    assert torch.cuda.mem_get_info()[0] > free
    tonnage.torch.resume()
    assert x.data_ptr() == address and float(x.double().sum()) == before


def tagged():
    """Memory that goes by its tag, and comes back with what was in it."""
    import tonnage.torch

    with tonnage.torch.tag("weights"):
        weights = torch.arange(30_000_000, dtype=torch.float32, device="cuda")
    with tonnage.torch.tag("cache"):
        cache = torch.ones(30_000_000, device="cuda")
    other = torch.full((1 << 20,), 5.0, device="cuda")
    before, free = float(weights.double().sum()), torch.cuda.mem_get_info()[0]
    tonnage.torch.pause("cache", keep=False)
    tonnage.torch.pause("weights")
    assert torch.cuda.mem_get_info()[0] >= free + (200 << 20)
    assert float(other.sum()) == 5 << 20
    tonnage.torch.resume("weights")
    tonnage.torch.resume("cache")
    cache.fill_(2.0)
    assert float(weights.double().sum()) == before and float(cache.double().sum()) == 60_000_000


def cudnn_benchmark():
    """cuDNN tries its algorithms, each with memory of the allocator's."""
    torch.backends.cudnn.benchmark = True
    net = torch.nn.Sequential(torch.nn.Conv2d(3, 32, 5), torch.nn.ReLU(), torch.nn.Conv2d(32, 64, 3)).cuda()
    for side in (64, 96, 64):
        net(torch.randn(16, 3, side, side, device="cuda")).square().mean().backward()
    assert all(torch.isfinite(it.grad).all() for it in net.parameters())


def history_at_failure():
    """A history that is saved when memory runs out, and what is said of it."""
    import subprocess
    import tempfile

    import tonnage.torch

    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/history.pickle"
        tonnage.torch.install(policy=POLICY, history=path, publish=False, fallback=False)
        kept = [torch.empty(1 << 30, dtype=torch.uint8, device="cuda") for _ in range(3)]
        try:
            kept.append(torch.empty(1 << 45, dtype=torch.uint8, device="cuda"))
        except torch.cuda.OutOfMemoryError:
            pass
        said = subprocess.run(
            [sys.executable, "-m", "tonnage", "report", path], capture_output=True, text=True, check=False
        )
        assert said.returncode == 0 and "32.00 TiB" in said.stdout, said.stdout[-300:] + said.stderr[-300:]


POLICY = None


def run(allocator, program):
    global POLICY
    import drop_in_workload

    POLICY = allocator
    if program is not history_at_failure:
        drop_in_workload.install(allocator)
    program()
    return {}


def main(path):
    results = Results(path)
    for allocator in ("pages", "pytorch", "native"):
        programs = [graph_beside_others, out_of_memory_and_on, streams, loader, pool, cudnn_benchmark, compiled_with_graphs]
        if allocator != "pages":
            programs.append(shared_between_processes)
        if allocator == "pages":
            programs += [paused, tagged]
        if allocator != "native":
            programs.append(history_at_failure)
        for program in programs:
            name = program.__name__
            if results.has(part="extras", allocator=allocator, program=name):
                continue
            began = time.monotonic()
            answer = one(functools.partial(run, allocator, program), 90)
            said = f"{answer.get('failed', 'ok')[:300]} ({time.monotonic() - began:.1f} s)"
            cut_off = {"failed": answer["failed"]} if "failed" in answer else {}
            results.add({"part": "extras", "allocator": allocator, "program": name, "said": said, **cut_off})
            print(allocator, name, said, flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
