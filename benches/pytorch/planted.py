"""Recordings with a planted fault, made with PyTorch on a GPU.

In:  a folder (and names of cases, else all).
Out: for each case `NAME.pickle.gz`, the snapshot, and `NAME.json`, the truth: the cause, its bytes and the
     line to blame, as the running program knows them from PyTorch's own counters and segments, not from
     the recording.

    python3 benches/pytorch/planted.py OUT [CASE ...]

Every case runs in a process of its own. One that fails says why and does not stop the others.
"""
import ctypes
import gzip
import inspect
import json
import os
import pickle
import random
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

MIB = 1 << 20
CASES = {}
AT_ONCE = 6


def case(conf="", alone=False, annotated=False, late=False, entries=100_000):
    """Registers a program that returns its truth. `late`: the snapshot is taken when all is freed again."""

    def register(program):
        CASES[program.__name__] = (program, conf, alone, annotated, late, entries)
        return program

    return register


# ---- What a program knows about itself ----------------------------------------------------------


def line_of(program, mark="# culprit"):
    lines, first = inspect.getsourcelines(program)
    return first + next(i for i, line in enumerate(lines) if mark in line)


def requested(which="current"):
    return torch.cuda.memory_stats()[f"requested_bytes.all.{which}"]


def rounded(size):
    return max(512, -(-size // 512) * 512)


def waste(round_up=rounded, grew=0):
    """Reserved bytes of no use now, by kind; of several kinds that apply the first counts."""
    kinds = dict.fromkeys(
        ["pending", "private_pool", "stream", "pinned_segment", "fragmentation", "unsplit", "rounding"], 0
    )
    for segment in torch.cuda.memory_snapshot():
        used = [block for block in segment["blocks"] if block["state"] != "inactive"]
        if tuple(segment.get("segment_pool_id", (0, 0))) != (0, 0):
            free = "private_pool"
        elif segment["stream"] != grew:
            free = "stream"
        elif len(used) == 1 and used[0]["state"] == "active_allocated":
            free = "pinned_segment"
        else:
            free = "fragmentation"
        for block in segment["blocks"]:
            size, asked = block["size"], block.get("requested_size", 0)
            if block["state"] == "inactive":
                kinds[free] += size
            elif block["state"] == "active_allocated":
                up = min(round_up(asked), size)
                kinds["unsplit"] += size - up
                kinds["rounding"] += up - asked
            else:
                kinds["pending"] += size
    return kinds


class Peak:
    """The waste where reserved memory first peaks: look after every request that may grow it."""

    def __init__(self, round_up=rounded):
        self.round_up, self.reserved, self.kinds = round_up, 0, {}

    def look(self):
        reserved = torch.cuda.memory_reserved()
        if reserved > self.reserved:
            self.reserved, self.kinds = reserved, waste(self.round_up)

    def truth(self, cause, line, **more):
        return truth(cause, self.kinds[cause], line, waste=self.kinds, reserved=self.reserved, **more)


class Loop:
    """Counts what stays from one iteration to the next, and the peak of each."""

    def __init__(self):
        self.after, self.peaks = [], []
        torch.cuda.reset_peak_memory_stats()

    def done(self):
        self.after.append(requested())
        self.peaks.append(requested("peak"))
        torch.cuda.reset_peak_memory_stats()

    def leaked(self):
        """Bytes that an iteration adds, told by the second half, times the iterations."""
        half = len(self.after) // 2
        each = (self.after[-1] - self.after[half]) / (len(self.after) - 1 - half)
        return round(each * len(self.after))


def truth(cause, bytes, line, **more):
    """What the report must say. Called while the program's tensors live: this is where most snapshots are taken."""
    at_truth()
    if in_force is not None:
        more["limit"] = in_force
    return {"cause": cause, "bytes": bytes, "line": line, "file": os.path.basename(sys.argv[0]), **more}


def of_waste(cause, kinds, line, **more):
    return truth(cause, kinds[cause], line, waste=kinds, reserved=torch.cuda.memory_reserved(), **more)


def buffer(bytes):
    return torch.empty(int(bytes), dtype=torch.uint8, device="cuda")


# The limit of this case, in bytes as PyTorch takes it.
in_force = None


def limit(gib):
    global in_force
    total = torch.cuda.get_device_properties(0).total_memory
    fraction = gib * (1 << 30) / total
    torch.cuda.set_per_process_memory_fraction(fraction)
    in_force = int(fraction * total)


def mlp(*widths):
    layers = []
    for a, b in zip(widths, widths[1:]):
        layers += [torch.nn.Linear(a, b), torch.nn.ReLU()]
    return torch.nn.Sequential(*layers[:-1]).cuda()


def encoder(width, layers, heads=4):
    layer = torch.nn.TransformerEncoderLayer(width, heads, 4 * width, dropout=0.0, batch_first=True)
    return torch.nn.TransformerEncoder(layer, layers, enable_nested_tensor=False).cuda()


# ---- Leaks --------------------------------------------------------------------------------------


@case()
def leak_summed_losses_validation():
    """Validation without no_grad: the sum keeps the graph of every batch."""
    model, criterion, loop = mlp(512, 2048, 2048, 10), torch.nn.CrossEntropyLoss(), Loop()
    total = 0.0
    for _ in range(24):
        x = torch.randn(768, 512, device="cuda")
        y = torch.randint(10, (768,), device="cuda")
        out = model(x)  # culprit
        total = total + criterion(out, y)
        loop.done()
    return truth("leak", loop.leaked(), line_of(leak_summed_losses_validation), iterations=24)


@case(annotated=True)
def leak_summed_losses_training():
    """A regulariser that is summed for the log keeps the outputs, though the loss itself is done with."""
    model, loop = mlp(256, 1024, 4096), Loop()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    running = torch.zeros((), device="cuda")
    for _ in range(16):
        x = torch.randn(512, 256, device="cuda")
        optimizer.zero_grad()
        out = model(x)  # culprit
        loss = out.square().mean()
        loss.backward()
        optimizer.step()
        running = running + out.float().pow(3).mean()
        del out, loss, x
        loop.done()
    return truth("leak", loop.leaked(), line_of(leak_summed_losses_training), iterations=16)


@case()
def leak_summed_losses_oom():
    """The same until the memory is full: a transformer whose losses are summed without backward."""
    model, loop = encoder(128, 2), Loop()
    limit(1.0)
    total, done = 0.0, 0
    try:
        for _ in range(200):
            x = torch.randn(8, 128, 128, device="cuda")
            loss = model(x).pow(2).mean()  # culprit
            total = total + loss
            loop.done()
            done += 1
    except torch.cuda.OutOfMemoryError:
        pass
    return truth("leak", loop.leaked(), line_of(leak_summed_losses_oom), iterations=done, oom=True)


@case(annotated=True)
def leak_outputs_annotated():
    """Predictions are gathered on the GPU."""
    model, loop, outputs = mlp(512, 1024, 1024), Loop(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    for _ in range(20):
        x = torch.randn(1024, 512, device="cuda")
        out = model(x)  # culprit
        loss = out.square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        outputs.append(out)
        del out, loss, x
        loop.done()
    return truth("leak", loop.leaked(), line_of(leak_outputs_annotated), iterations=20)


@case()
def leak_outputs_oom():
    """The same without marks, with other lengths each time, until the memory is full."""
    model, outputs = mlp(256, 512, 2048), []
    random.seed(7)
    limit(0.5)
    kept, done = 0, 0
    try:
        for _ in range(400):
            x = torch.randn(random.randrange(500, 1500), 256, device="cuda")
            with torch.no_grad():
                out = model(x)  # culprit
            outputs.append(out)
            kept += out.numel() * 4
            done += 1
            del x, out
    except torch.cuda.OutOfMemoryError:
        pass
    return truth("leak", kept, line_of(leak_outputs_oom), iterations=done, oom=True)


@case(late=True)
def leak_view():
    """The first columns of every batch are kept for a plot, and with them the batch."""
    model, loop, shown = mlp(4096, 256, 4096), Loop(), []
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(18):
        batch = torch.rand(512, 4096, device="cuda")  # culprit
        optimizer.zero_grad()
        loss = (model(batch) - batch).square().mean()
        loss.backward()
        optimizer.step()
        shown.append(batch[:4, :16])
        del batch, loss
        loop.done()
    return truth("leak", loop.leaked(), line_of(leak_view), iterations=18)


@case(annotated=True)
def leak_view_annotated():
    """One token's logits of every step are kept: a view of all logits."""
    torch.manual_seed(1)
    embed = torch.nn.Embedding(4000, 128).cuda()
    model, head, loop, last = encoder(128, 1), torch.nn.Linear(128, 4000).cuda(), Loop(), []
    parameters = [*embed.parameters(), *model.parameters(), *head.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=1e-4)
    for _ in range(10):
        tokens = torch.randint(4000, (8, 96), device="cuda")
        hidden = model(embed(tokens))
        logits = head(hidden)  # culprit
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        last.append(logits.detach()[:, -1])
        del tokens, hidden, logits, loss
        loop.done()
    return truth("leak", loop.leaked(), line_of(leak_view_annotated), iterations=10)


@case()
def leak_hidden_states():
    """A hidden state that is never detached keeps every step that led to it."""
    cell, head, loop = torch.nn.GRUCell(256, 1024).cuda(), torch.nn.Linear(1024, 256).cuda(), Loop()
    hidden = torch.zeros(512, 1024, device="cuda")
    for _ in range(25):
        x = torch.randn(512, 256, device="cuda")
        hidden = cell(x, hidden)  # culprit
        score = head(hidden.detach()).sum().item()
        loop.done()
    return truth("leak", loop.leaked(), line_of(leak_hidden_states), iterations=25, score=score)


@case(annotated=True, late=True)
def leak_hidden_states_lstm():
    """States of an LSTM are kept in a list for later analysis; training goes on beside it."""
    lstm, loop, states = torch.nn.LSTM(128, 512, batch_first=True).cuda(), Loop(), []
    optimizer = torch.optim.AdamW(lstm.parameters(), lr=1e-3)
    for _ in range(14):
        x = torch.randn(64, 32, 128, device="cuda")
        out, (h, c) = lstm(x)  # culprit
        loss = out.square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        states.append((out.detach(), h.detach(), c.detach()))
        del out, h, c, loss, x
        loop.done()
    return truth("leak", loop.leaked(), line_of(leak_hidden_states_lstm), iterations=14)


@case(entries=1_000)
def leak_ring():
    """A leak in a history that has lost its beginning."""
    model, kept = mlp(256, 1024, 1024), []
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for _ in range(120):
        x = torch.randn(256, 256, device="cuda")
        out = model(x)  # culprit
        optimizer.zero_grad()
        out.square().mean().backward()
        optimizer.step()
        kept.append(out)
        del x, out
    return truth("leak", 120 * 256 * 1024 * 4, line_of(leak_ring), iterations=120, ring=True)


def small_cnn(channels=16):
    return torch.nn.Sequential(
        torch.nn.Conv2d(3, channels, 3, padding=1), torch.nn.BatchNorm2d(channels), torch.nn.ReLU(),
        torch.nn.Conv2d(channels, 2 * channels, 3, padding=1), torch.nn.ReLU(),
        torch.nn.AdaptiveAvgPool2d(4), torch.nn.Flatten(), torch.nn.Linear(32 * channels, 10),
    ).cuda()


@case(late=True)
def leak_cnn_images():
    """Misclassified images are gathered as views of their batch; batches come from pinned memory."""
    model, loop, wrong = small_cnn(), Loop(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
    for _ in range(15):
        images = torch.rand(64, 3, 96, 96).pin_memory().to("cuda", non_blocking=True)  # culprit
        labels = torch.randint(10, (64,)).cuda()
        optimizer.zero_grad()
        logits = model(images)
        loss = torch.nn.functional.cross_entropy(logits, labels)
        loss.backward()
        optimizer.step()
        wrong.append(images[0])
        del images, labels, logits, loss
        loop.done()
    return truth("leak", loop.leaked(), line_of(leak_cnn_images), iterations=15)


@case()
def leak_two_optimizers():
    """A pair of networks that train in turns; the generated samples are kept."""
    maker, judge, loop, samples = mlp(64, 512, 2048), mlp(2048, 512, 1), Loop(), []
    first = torch.optim.Adam(maker.parameters(), lr=1e-3)
    second = torch.optim.Adam(judge.parameters(), lr=1e-3)
    for _ in range(14):
        fake = maker(torch.randn(512, 64, device="cuda"))  # culprit
        second.zero_grad()
        loss = judge(fake.detach()).square().mean()
        loss.backward()
        second.step()
        first.zero_grad()
        loss = judge(fake).mean()
        loss.backward()
        first.step()
        samples.append(fake.detach())
        del fake, loss
        loop.done()
    return truth("leak", loop.leaked(), line_of(leak_two_optimizers), iterations=14)


@case()
def leak_accumulation():
    """Four passes for each step of the optimizer; the outputs of each are kept."""
    model, loop, kept = mlp(512, 1024, 2048), Loop(), []
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(40):
        out = model(torch.randn(256, 512, device="cuda"))  # culprit
        (out.square().mean() / 4).backward()
        kept.append(out.detach())
        if step % 4 == 3:
            optimizer.step()
            optimizer.zero_grad()
        del out
        loop.done()
    return truth("leak", 40 * 256 * 2048 * 4, line_of(leak_accumulation), iterations=40)


@case()
def leak_now_and_then():
    """Every fifth step keeps its outputs for a histogram."""
    model, kept = mlp(256, 1024, 4096), []
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for step in range(60):
        optimizer.zero_grad()
        out = model(torch.randn(512, 256, device="cuda"))  # culprit
        out.square().mean().backward()
        optimizer.step()
        if step % 5 == 0:
            kept.append(out.detach())
        del out
    return truth("leak", 12 * 512 * 4096 * 4, line_of(leak_now_and_then), iterations=60)


# ---- Longer inputs ------------------------------------------------------------------------------


def train_lengths(lengths, width=128, layers=2, batch=8):
    model, loop = encoder(width, layers), Loop()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for length in lengths:
        x = torch.randn(batch, length, width, device="cuda")
        optimizer.zero_grad()
        out = model(x)  # culprit
        loss = out.square().mean()
        loss.backward()
        optimizer.step()
        del x, out, loss
        loop.done()
    return loop


@case(conf="expandable_segments:True", annotated=True)
def longer_inputs_transformer():
    loop = train_lengths([64] * 3 + [128, 192, 256, 384, 512, 768, 1024])
    return truth("longer_inputs", max(loop.peaks) - loop.peaks[1], line_of(train_lengths), iterations=10)


@case(conf="expandable_segments:True")
def longer_inputs_steps():
    """No marks, lengths that go up and down, and the longest in the middle."""
    loop = train_lengths([100, 100, 90, 110, 300, 200, 900, 400, 100, 500], batch=12)
    return truth("longer_inputs", max(loop.peaks) - loop.peaks[1], line_of(train_lengths), iterations=10)


@case()
def longer_inputs_inference():
    """Default settings, and one batch far longer than all others."""
    model, loop = mlp(512, 4096, 512), Loop()
    with torch.no_grad():
        for rows in [600] * 8 + [20_000] + [600] * 4:
            x = torch.randn(rows, 512, device="cuda")
            out = model(x)  # culprit
            score = out.sum()
            del x, out, score
            loop.done()
    return truth("longer_inputs", max(loop.peaks) - loop.peaks[0], line_of(longer_inputs_inference), iterations=13)


@case(conf="expandable_segments:True")
def longer_inputs_oom():
    """Batches that grow until one does not fit below the limit."""
    model, loop = encoder(128, 2), Loop()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    limit(0.4)
    try:
        for length in [100, 100, 100, 150, 200, 300, 400, 600, 800, 1200, 1600, 2400, 3200]:
            x = torch.randn(8, length, 128, device="cuda")
            out = model(x)  # culprit
            loss = out.square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            del x, out, loss
            loop.done()
    except torch.cuda.OutOfMemoryError:
        loop.done()
    more = max(loop.peaks) - loop.peaks[1]
    return truth("longer_inputs", more, line_of(longer_inputs_oom), iterations=len(loop.peaks), oom=True)


@case(conf="expandable_segments:True")
def longer_inputs_images():
    """Images of other sizes, without marks of an optimizer."""
    model, loop = small_cnn(32), Loop()
    for side in [64, 64, 64, 80, 96, 64, 128, 160, 64, 224, 96]:
        images = torch.rand(16, 3, side, side, device="cuda")
        model.zero_grad()
        out = model(images)  # culprit
        out.square().mean().backward()
        with torch.no_grad():
            for p in model.parameters():
                p -= 1e-3 * p.grad
        del images, out
        loop.done()
    return truth("longer_inputs", max(loop.peaks) - loop.peaks[1], line_of(longer_inputs_images), iterations=11)


# ---- Reserved memory of no use ------------------------------------------------------------------


def grow_cache(rows, steps, peak):
    """A cache that grows by cat: no block that it leaves is large enough for the next."""
    cache = [torch.zeros(16, 8, 200, 128, device="cuda") for _ in range(2 * rows)]
    for _ in range(steps):
        for i in range(2 * rows):
            new = torch.randn(16, 8, 40, 128, device="cuda")
            peak.look()
            grown = torch.cat([cache[i], new], dim=2)  # culprit
            peak.look()
            cache[i] = grown
            del new, grown


@case()
def fragmentation_kv_cache():
    peak = Peak()
    grow_cache(3, 12, peak)
    return peak.truth("fragmentation", line_of(grow_cache), steps=12)


@case()
def fragmentation_kv_cache_limited():
    """The same below a limit: what is cached goes back to the device when it is full."""
    limit(1.5)
    peak = Peak()
    grow_cache(4, 10, peak)
    return peak.truth("fragmentation", line_of(grow_cache), steps=10)


@case()
def fragmentation_sequences():
    """Inference on sequences that grow a little each time."""
    first, second, peak = torch.nn.Linear(256, 2048).cuda(), torch.nn.Linear(2048, 256).cuda(), Peak()
    with torch.no_grad():
        for step in range(14):
            x = torch.randn(6_000 + 700 * step, 256, device="cuda")
            peak.look()
            hidden = first(x)  # culprit
            peak.look()
            out = second(hidden)
            peak.look()
            del x, hidden, out
    return peak.truth("fragmentation", line_of(fragmentation_sequences))


@case(late=True)
def stream_prefetch():
    """Batches are staged on a side stream, whose cache no one else may use."""
    side, model = torch.cuda.Stream(), mlp(1024, 1024, 1024)
    with torch.cuda.stream(side):
        staged = [torch.randn(16_000, 1024, device="cuda") for _ in range(4)]  # culprit
    side.synchronize()
    del staged
    x = torch.randn(12_000, 1024, device="cuda")
    with torch.no_grad():
        hidden = model[0](x)
        kinds = waste()
    del hidden
    return of_waste("stream", kinds, line_of(stream_prefetch))


@case(annotated=True)
def stream_evaluation():
    """An evaluation on its own stream, once, then training goes on."""
    model, side = mlp(512, 2048, 512), torch.cuda.Stream()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side), torch.no_grad():
        x = torch.randn(30_000, 512, device="cuda")
        out = model(x)  # culprit
        del x, out
    side.synchronize()
    kinds, most = waste(), torch.cuda.memory_reserved()
    for _ in range(6):
        optimizer.zero_grad()
        y = torch.randn(4_000, 512, device="cuda")
        hidden = model(y)
        if torch.cuda.memory_reserved() > most:
            kinds, most = waste(), torch.cuda.memory_reserved()
        hidden.square().mean().backward()
        optimizer.step()
        stream = waste()["stream"]
        kinds["stream"] = stream
        del hidden, y
    return of_waste("stream", kinds, line_of(stream_evaluation))


@case()
def pinned_segment_summaries():
    """The room of a large score matrix serves a small summary, which then keeps it."""
    summaries, peak = [], Peak()
    for _ in range(3):
        scores = torch.empty(6_000, 6_000, device="cuda").uniform_()
        peak.look()
        del scores
        summaries.append(torch.zeros(400, 1_000, device="cuda"))  # culprit
        peak.look()
    return peak.truth("pinned_segment", line_of(pinned_segment_summaries))


@case()
def pinned_segment_phases():
    """Each phase leaves a small result at the front of the room that its large tensors had."""
    results, rests, peak = [], [], Peak()
    for _ in range(6):
        large = torch.empty(160 * MIB // 4, device="cuda").normal_()
        peak.look()
        del large
        results.append(torch.zeros(2 * MIB // 4, device="cuda"))  # culprit
        rests.append(torch.ones(158 * MIB // 4, device="cuda"))
        peak.look()
    del rests
    work = torch.empty(200 * MIB // 4, device="cuda").normal_()
    peak.look()
    del work
    return peak.truth("pinned_segment", line_of(pinned_segment_phases))


@case()
def private_pool_graph():
    """A captured graph keeps the room of its temporaries."""
    model = mlp(1024, 4096, 4096, 1024)
    static = torch.zeros(8_192, 1024, device="cuda")
    with torch.no_grad():
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            model(static[:64])
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = model(static)  # culprit
        graph.replay()
        torch.cuda.synchronize()
        other = torch.randn(8_192, 2_048, device="cuda")
    kinds = waste()
    del other
    return of_waste("private_pool", kinds, line_of(private_pool_graph), out=list(out.shape))


@case()
def private_pool_mempool():
    """A pool of its own for a preprocessing step, whose room the training cannot use."""
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        parts = [torch.randn(4_000, 4_096, device="cuda") for _ in range(6)]  # culprit
        mean = torch.stack([part.mean() for part in parts])
    del parts
    model = mlp(1024, 2048, 1024)
    out = model(torch.randn(10_000, 1024, device="cuda"))
    kinds = waste()
    kept = mean.sum().item()
    result = of_waste("private_pool", kinds, line_of(private_pool_mempool), kept=kept)
    del out, pool
    return result


@case()
def pending_copies():
    """Batches are freed while another stream still works on them."""
    side = torch.cuda.Stream()
    for _ in range(12):
        batch = torch.randn(6_000, 1_024, device="cuda")  # culprit
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            torch.cuda._sleep(100_000_000)
            batch.record_stream(side)
        del batch
    work = torch.empty(6_000, 1_024, device="cuda")
    kinds = waste()
    result = of_waste("pending", kinds, line_of(pending_copies))
    torch.cuda.synchronize()
    del work
    return result


@case()
def pending_offload():
    """Activations are copied to pinned memory on a side stream, and dropped at once."""
    side, model, host = torch.cuda.Stream(), mlp(2048, 2048, 2048), []
    torch.cuda.synchronize()
    with torch.no_grad():
        x = torch.randn(8_000, 2_048, device="cuda")
        for _ in range(8):
            hidden = model[0](x)  # culprit
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                torch.cuda._sleep(200_000_000)
                host.append(torch.empty(64, 2_048, pin_memory=True).copy_(hidden[:64], non_blocking=True))
                hidden.record_stream(side)
            del hidden
        last = model[0](x)
        kinds = waste()
    result = of_waste("pending", kinds, line_of(pending_offload))
    torch.cuda.synchronize()
    del last
    return result


@case()
def rounding_small():
    """Many tensors of a few bytes more than the allocator's unit."""
    counters, peak = [], Peak()
    for i in range(9_000):
        counters.append(torch.empty(130 + i % 3, device="cuda"))  # culprit
        peak.look()
    return peak.truth("rounding", line_of(rounding_small))


def power_of_two(divisions):
    def up(size):
        size = rounded(size)
        power = 1 << (size.bit_length() - 1)
        if size == power or size < 1024:
            return size
        step = max(512, power // divisions)
        return -(-size // step) * step

    return up


@case(conf="roundup_power2_divisions:2")
def rounding_divisions():
    """Rounding to halves of powers of two, with weights just over one."""
    peak, layers = Peak(power_of_two(2)), []
    for _ in range(6):
        layers.append(torch.nn.Linear(16_400, 1_030, bias=False, device="cuda"))  # culprit
        peak.look()
    with torch.no_grad():
        for _ in range(5):
            x = torch.randn(64, 16_400, device="cuda")
            peak.look()
            out = sum(layer(x).mean() for layer in layers)
            peak.look()
            del x, out
    return peak.truth("rounding", line_of(rounding_divisions))


@case(conf="roundup_power2_divisions:[16:1,>:2]")
def rounding_large_only():
    """Rounding of large sizes only."""
    peak = Peak(lambda size: power_of_two(2)(size) if size > 32 * MIB else rounded(size))
    tables = [torch.empty(34 * MIB // 4, device="cuda") for _ in range(7)]  # culprit
    peak.look()
    tables += [torch.empty(66 * MIB // 4, device="cuda")]
    peak.look()
    return peak.truth("rounding", line_of(rounding_large_only))


@case(conf="max_split_size_mb:32")
def unsplit_oversize():
    """Blocks over the limit for splitting serve smaller requests whole."""
    peak = Peak()
    first = [torch.empty(72 * MIB // 4, device="cuda") for _ in range(8)]
    peak.look()
    del first
    second = [torch.empty(54 * MIB // 4, device="cuda") for _ in range(8)]  # culprit
    late = torch.empty(80 * MIB // 4, device="cuda")
    peak.look()
    result = peak.truth("unsplit", line_of(unsplit_oversize))
    del second, late
    return result


@case(conf="max_split_size_mb:24")
def unsplit_buffers():
    """Buffers of a service take the room of its warm-up."""
    model, peak = mlp(1024, 1024), Peak()
    with torch.no_grad():
        warm = [model(torch.randn(17_000, 1024, device="cuda")) for _ in range(6)]
        peak.look()
        del warm
    buffers = [torch.zeros(12_500, 1024, device="cuda") for _ in range(7)]  # culprit
    more = torch.zeros(21_000, 1024, device="cuda")
    peak.look()
    result = peak.truth("unsplit", line_of(unsplit_buffers))
    del buffers, more
    return result


# ---- True need ----------------------------------------------------------------------------------


@case(annotated=True, late=True)
def need_transformer():
    torch.cuda.reset_peak_memory_stats()
    model = encoder(512, 4)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for _ in range(6):
        x = torch.randn(16, 256, 512, device="cuda")
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        del x, loss
    return truth("need", requested("peak"), None, iterations=6)


@case()
def need_model():
    """A large model with Adam, small batches."""
    torch.cuda.reset_peak_memory_stats()
    model = mlp(4096, 4096, 4096, 4096)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    for _ in range(8):
        x = torch.randn(32, 4096, device="cuda")
        optimizer.zero_grad(set_to_none=False)
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        del x, loss
    return truth("need", requested("peak"), None, iterations=8)


@case()
def fragmentation_first_pass_oom():
    """A first pass whose live tensors have room within the limit, with the one that fails, but not as segments are split."""
    torch.cuda.reset_peak_memory_stats()
    model = encoder(256, 3)
    limit(0.75)
    try:
        model(torch.randn(64, 512, 256, device="cuda")).square().mean().backward()
    except torch.cuda.OutOfMemoryError:
        pass
    return truth("fragmentation", torch.cuda.max_memory_reserved() - requested("peak"), None, oom=True)


@case()
def need_many_small_steps():
    """A steady loop with an average that is replaced, and a metric that is read: nothing leaks."""
    torch.cuda.reset_peak_memory_stats()
    model = mlp(1024, 2048, 2048, 1024)
    average = [p.detach().clone() for p in model.parameters()]
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    losses = []
    for _ in range(15):
        x = torch.randn(2048, 1024, device="cuda")
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        average = [0.9 * a + 0.1 * p.detach() for a, p in zip(average, model.parameters())]
        losses.append(loss.item())
        del x, loss
    return truth("need", requested("peak"), None, iterations=15)


@case()
def need_cnn():
    torch.cuda.reset_peak_memory_stats()
    model = small_cnn(64)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
    for _ in range(7):
        images, labels = torch.rand(64, 3, 64, 64).cuda(), torch.randint(10, (64,)).cuda()
        loss = torch.nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return truth("need", requested("peak"), None, iterations=7)


@case()
def need_decoding():
    """A cache of full length from the start, and short steps."""
    torch.cuda.reset_peak_memory_stats()
    model, cache = mlp(1024, 4096, 1024), torch.zeros(2, 16, 4_096, 1_024, device="cuda")
    with torch.no_grad():
        x = torch.randn(16, 1_024, device="cuda")
        for step in range(40):
            x = model(x)
            cache[0, :, step] = x
            scores = cache[0, :, : step + 1].mean(dim=1)
            x = x + scores
    return truth("need", requested("peak"), None, iterations=40)


# ---- Memory of others ---------------------------------------------------------------------------


def hold_outside(gib):
    """Takes memory past the allocator; the handle keeps it."""
    runtime = torch.cuda.cudart()
    if hasattr(runtime, "cudaMalloc"):
        return runtime.cudaMalloc(int(gib * (1 << 30)))
    driver, address = ctypes.CDLL("libcuda.so.1"), ctypes.c_uint64()
    done = driver.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(int(gib * (1 << 30))))
    if done != 0:
        raise RuntimeError(f"cuMemAlloc: {done}")
    return address


def fill_until_oom(step, bytes):
    kept = []
    try:
        while True:
            kept.append(step(bytes))
    except torch.cuda.OutOfMemoryError:
        free, total = torch.cuda.mem_get_info()
        return kept, total - free - torch.cuda.memory_reserved(), total


@case(alone=True)
def outside_raw():
    """Most of the device is held by a raw allocation."""
    torch.cuda.init()
    torch.zeros(1, device="cuda")
    held = hold_outside(100)
    kept, others, total = fill_until_oom(lambda bytes: buffer(bytes), 3 << 30)
    del held, kept
    return truth("outside", others, None, total=total, oom=True)


@case(alone=True)
def outside_process():
    """Another process has most of the device; a model is trained in what is left."""
    code = "import torch,sys; a=torch.empty(115<<30,dtype=torch.uint8,device='cuda'); print(1,flush=True); sys.stdin.read()"
    other = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    other.stdout.readline()
    model = mlp(4096, 16_384, 4096)

    def step(rows):
        return model(torch.randn(rows, 4096, device="cuda"))

    kept, others, total = fill_until_oom(step, 16_384)
    other.stdin.close()
    other.wait()
    del kept
    return truth("outside", others, None, total=total, oom=True)


# ---- Running them -------------------------------------------------------------------------------


def run_case(name, out):
    global torch, at_truth
    import torch

    # Programs in another file find it there.
    sys.modules["__main__"].torch = torch
    program, conf, _, annotated, late, entries = CASES[name]
    path = os.path.join(out, f"{name}.pickle")

    def dump():
        snapshot = torch.cuda.memory._snapshot()
        # Frames are shared; the place of these files says nothing to others.
        entries = [entry for trace in snapshot["device_traces"] for entry in trace]
        blocks = [block for segment in snapshot["segments"] for block in [segment, *segment["blocks"]]]
        for frame in (frame for held in entries + blocks for frame in held.get("frames", [])):
            if os.path.dirname(frame["filename"]) == os.path.dirname(os.path.abspath(__file__)):
                frame["filename"] = os.path.basename(frame["filename"])
        with open(path, "wb") as file:
            pickle.dump(snapshot, file)

    def at_truth():
        if not late:
            dump()

    torch.cuda.init()
    torch.manual_seed(0)
    more = {"global_record_annotations": True} if annotated else {}
    torch.cuda.memory._record_memory_history(max_entries=entries, stacks="python", **more)
    result = program()
    if late:
        dump()
    with open(path, "rb") as plain, gzip.open(f"{path}.gz", "wb", 9) as packed:
        shutil.copyfileobj(plain, packed)
    os.remove(path)
    result |= {"conf": conf, "late": late, "torch": torch.__version__}
    with open(os.path.join(out, f"{name}.json"), "w") as file:
        json.dump(result, file, indent=1)
        file.write("\n")
    print(f"{name}: {result['cause']} {result['bytes']} {os.path.getsize(path + '.gz')} bytes packed", flush=True)


def start_case(name, out):
    environment = os.environ | {"PYTORCH_CUDA_ALLOC_CONF": CASES[name][1]}
    command = [sys.executable, os.path.abspath(sys.argv[0]), "--one", name, out]
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    except subprocess.TimeoutExpired:
        print(f"{name} FAILED: took longer than two minutes", flush=True)
        return False
    print(done.stdout.strip() if done.returncode == 0 else f"{name} FAILED:\n{done.stderr[-3000:]}", flush=True)
    return done.returncode == 0


def main():
    if sys.argv[1] == "--one":
        return run_case(sys.argv[2], sys.argv[3])
    out, names = sys.argv[1], sys.argv[2:] or list(CASES)
    os.makedirs(out, exist_ok=True)
    together = [name for name in names if not CASES[name][2]]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        done = list(pool.map(lambda name: start_case(name, out), together))
    done += [start_case(name, out) for name in names if CASES[name][2]]
    print(f"{sum(done)} of {len(done)} cases recorded")
    return 0 if all(done) else 1


if __name__ == "__main__":
    sys.exit(main())
