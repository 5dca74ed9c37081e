"""More recordings with a planted fault: programs that no rule of the report was made for.

In and out as in planted.py, whose tools they use. Two are not kept: their own figures are taken at another moment than the report's.

    python3 benches/pytorch/planted_more.py OUT [CASE ...]
"""
import random
import subprocess
import sys

import planted
from planted import (
    MIB, Loop, Peak, buffer, case, encoder, fill_until_oom, hold_outside, limit, line_of, mlp, of_waste,
    power_of_two, requested, small_cnn, truth, waste,
)

planted.CASES.clear()


@case()
def leak_eval_cnn_list():
    model, loop, losses = small_cnn(24), Loop(), []
    for _ in range(20):
        images, labels = torch.rand(32, 3, 64, 64).cuda(), torch.randint(10, (32,)).cuda()
        out = model(images)  # culprit
        losses.append(torch.nn.functional.cross_entropy(out, labels))
        del images, labels, out
        loop.done()
    return truth("leak", loop.leaked(), line_of(leak_eval_cnn_list), iterations=20)


@case()
def leak_cls_view():
    model, loop, features = encoder(256, 3), Loop(), []
    with torch.no_grad():
        for _ in range(30):
            x = torch.randn(16, 128, 256, device="cuda")
            hidden = model(x)  # culprit
            features.append(hidden[:, 0])
            del x, hidden
            loop.done()
    return truth("leak", loop.leaked(), line_of(leak_cls_view), iterations=30)


@case(annotated=True)
def leak_after_warmup():
    model, loop, kept = mlp(512, 2048, 2048), Loop(), []
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(23):
        rows = 2048 if step < 3 else 512
        x = torch.randn(rows, 512, device="cuda")
        optimizer.zero_grad()
        out = model(x)  # culprit
        out.square().mean().backward()
        optimizer.step()
        if step >= 3:
            kept.append(out.detach())
        del x, out
        if step >= 3:
            loop.done()
    return truth("leak", 20 * 512 * 2048 * 4, line_of(leak_after_warmup), iterations=23)


@case()
def leak_two_epochs_eval():
    model, predictions = mlp(256, 1024, 2048), []
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(3):
        for _ in range(8):
            x = torch.randn(512, 256, device="cuda")
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
            del x
        with torch.no_grad():
            for _ in range(4):
                x = torch.randn(1024, 256, device="cuda")
                predictions.append(model(x))  # culprit
                del x
    return truth("leak", 12 * 1024 * 2048 * 4, line_of(leak_two_epochs_eval), iterations=24)


@case(annotated=True)
def leak_hook():
    model, loop, activations = mlp(512, 1024, 1024, 512), Loop(), []
    model[2].register_forward_hook(lambda m, i, o: activations.append(o.detach()))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for _ in range(18):
        x = torch.randn(2048, 512, device="cuda")
        optimizer.zero_grad()
        loss = model(x).square().mean()  # culprit
        loss.backward()
        optimizer.step()
        del x, loss
        loop.done()
    return truth("leak", loop.leaked(), line_of(leak_hook), iterations=18)


@case()
def leak_cache_by_id():
    model, cache, kept = mlp(256, 1024, 1024), {}, 0
    random.seed(3)
    with torch.no_grad():
        for i in range(50):
            x = torch.randn(random.choice([300, 600, 900, 1200]), 256, device="cuda")
            cache[i] = model(x)  # culprit
            kept += cache[i].numel() * 4
            del x
    return truth("leak", kept, line_of(leak_cache_by_id), iterations=50)


@case()
def leak_running_loss_transformer():
    embed, model, loop = torch.nn.Embedding(1000, 192).cuda(), encoder(192, 2), Loop()
    head = torch.nn.Linear(192, 1000).cuda()
    total = 0
    for _ in range(12):
        tokens = torch.randint(1000, (8, 64), device="cuda")
        logits = head(model(embed(tokens)))  # culprit
        total += torch.nn.functional.cross_entropy(logits.view(-1, 1000), tokens.view(-1))
        loop.done()
    return truth("leak", loop.leaked(), [line_of(leak_running_loss_transformer), line_of(leak_running_loss_transformer) + 1], iterations=12)


@case()
def leak_dataloader_views():
    data = torch.utils.data.TensorDataset(torch.randn(4096, 3, 32, 32), torch.randint(10, (4096,)))
    loader = torch.utils.data.DataLoader(data, batch_size=256, pin_memory=True)
    model, loop, hard = small_cnn(16), Loop(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for images, labels in loader:
        images = images.to("cuda", non_blocking=True)  # culprit
        labels = labels.to("cuda", non_blocking=True)
        optimizer.zero_grad(set_to_none=True)
        loss = torch.nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        hard.append(images[:1])
        del images, labels, loss
        loop.done()
    return truth("leak", loop.leaked(), line_of(leak_dataloader_views), iterations=16)


@case()
def need_replay_buffer():
    torch.cuda.reset_peak_memory_stats()
    model = mlp(1024, 1024, 1024)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    buffer_ = []
    for step in range(40):
        x = torch.randn(512, 1024, device="cuda")
        if len(buffer_) < 8:
            buffer_.append(x)
        else:
            buffer_[step % 8] = x
        optimizer.zero_grad()
        model(buffer_[step % len(buffer_)]).square().mean().backward()
        optimizer.step()
        del x
    return truth("need", requested("peak"), None, iterations=40)


@case()
def need_forward_40_layers():
    torch.cuda.reset_peak_memory_stats()
    layers = [torch.nn.Linear(512, 512).cuda() for _ in range(40)]
    x = torch.randn(4096, 512, device="cuda")
    for layer in layers:
        x = torch.relu(layer(x))
    x.square().mean().backward()
    return truth("need", requested("peak"), None)


@case()
def need_forward_oom():
    torch.cuda.reset_peak_memory_stats()
    layers = [torch.nn.Linear(1024, 1024).cuda() for _ in range(60)]
    limit(0.6)
    try:
        x = torch.randn(4096, 1024, device="cuda")
        for layer in layers:
            x = torch.relu(layer(x))
        x.square().mean().backward()
    except torch.cuda.OutOfMemoryError:
        pass
    return truth("need", requested("peak"), None, oom=True)


@case(annotated=True)
def need_uneven_accumulation():
    torch.cuda.reset_peak_memory_stats()
    model = encoder(256, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for _ in range(5):
        for rows in [16, 16, 16, 9]:
            loss = model(torch.randn(rows, 128, 256, device="cuda")).square().mean()
            loss.backward()
            del loss
        optimizer.step()
        optimizer.zero_grad()
    return truth("need", requested("peak"), None, iterations=5)


@case()
def need_eval_between():
    torch.cuda.reset_peak_memory_stats()
    model = small_cnn(48)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    for _ in range(3):
        for _ in range(5):
            images, labels = torch.rand(96, 3, 64, 64, device="cuda"), torch.randint(10, (96,), device="cuda")
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
        with torch.no_grad():
            scores = [model(torch.rand(96, 3, 64, 64, device="cuda")).argmax(1).float().mean() for _ in range(4)]
        print(torch.stack(scores).mean().item(), file=sys.stderr)
    return truth("need", requested("peak"), None, iterations=15)


@case(late=True)
def need_checkpointed():
    from torch.utils.checkpoint import checkpoint
    torch.cuda.reset_peak_memory_stats()
    blocks = torch.nn.ModuleList([mlp(512, 2048, 512) for _ in range(12)])
    optimizer = torch.optim.AdamW(blocks.parameters(), lr=1e-4)
    for _ in range(6):
        x = torch.randn(4096, 512, device="cuda", requires_grad=True)
        for block in blocks:
            x = x + checkpoint(block, x, use_reentrant=False)
        x.square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        del x
    return truth("need", requested("peak"), None, iterations=6)


@case()
def need_cudnn_benchmark():
    torch.backends.cudnn.benchmark = True
    torch.cuda.reset_peak_memory_stats()
    model = small_cnn(64)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
    for _ in range(8):
        images, labels = torch.rand(64, 3, 96, 96, device="cuda"), torch.randint(10, (64,), device="cuda")
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
    return truth("need", requested("peak"), None, iterations=8)


@case(conf="expandable_segments:True", annotated=True)
def longer_inputs_buckets():
    loop = Loop()
    model = encoder(128, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for length in [96] * 4 + [192] * 4 + [384] * 4 + [768] * 2:
        x = torch.randn(8, length, 128, device="cuda")
        out = model(x)  # culprit
        out.square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        del x, out
        loop.done()
    return truth("longer_inputs", max(loop.peaks) - loop.peaks[1], line_of(longer_inputs_buckets), iterations=14)


@case()
def longer_inputs_batches():
    model, loop = mlp(1024, 4096, 1024), Loop()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for rows in [256] * 5 + [8192]:
        x = torch.randn(rows, 1024, device="cuda")
        optimizer.zero_grad()
        out = model(x)  # culprit
        out.square().mean().backward()
        optimizer.step()
        del x, out
        loop.done()
    return truth("longer_inputs", max(loop.peaks) - loop.peaks[1], line_of(longer_inputs_batches), iterations=6)


@case(conf="expandable_segments:True")
def longer_inputs_prompts():
    model, loop = mlp(1024, 4096, 1024), Loop()
    with torch.no_grad():
        for length in [500, 520, 480, 510, 1500, 3000, 9000, 700]:
            cache = torch.zeros(2, 4, length, 1024, device="cuda")  # culprit
            for start in range(0, length, 500):
                part = model(torch.randn(4, min(500, length - start), 1024, device="cuda"))
                cache[0, :, start:start + part.shape[1]] = part
                del part
            del cache
            loop.done()
    return truth("longer_inputs", max(loop.peaks) - loop.peaks[0], line_of(longer_inputs_prompts), iterations=8)


@case()
def fragmentation_growing_buffer():
    peak, rows = Peak(), 40_000
    buffer_ = torch.empty(rows, 256, device="cuda")
    for _ in range(16):
        rows = int(rows * 1.15)
        grown = torch.empty(rows, 256, device="cuda")  # culprit
        peak.look()
        grown[: buffer_.shape[0]] = buffer_
        buffer_ = grown
        del grown
    return peak.truth("fragmentation", line_of(fragmentation_growing_buffer))


@case()
def fragmentation_checkerboard():
    peak = Peak()
    parts = []
    for _ in range(10):
        parts.append(torch.empty(30 * MIB // 4, device="cuda"))
        peak.look()
        parts.append(torch.empty(8 * MIB // 4, device="cuda"))
        peak.look()
    kept = parts[1::2]
    large = parts[0::2]
    del parts
    large.clear()
    more = []
    for _ in range(4):
        more.append(torch.empty(45 * MIB // 4, device="cuda"))  # culprit
        peak.look()
    free = {k: v for k, v in peak.kinds.items()}
    cause = max(("fragmentation", "pinned_segment"), key=lambda k: free[k])
    return peak.truth(cause, None)


@case()
def fragmentation_decode_batches():
    """Requests come and go with their own lengths, their caches grow by cat."""
    peak = Peak()
    caches = [torch.zeros(300 + 37 * i, 8192, device="cuda") for i in range(6)]
    for step in range(14):
        for i in range(6):
            new = torch.randn(29, 8192, device="cuda")
            grown = torch.cat([caches[i], new])  # culprit
            peak.look()
            caches[i] = grown
            del new, grown
    return peak.truth("fragmentation", line_of(fragmentation_decode_batches))


@case()
def stream_copy_prefetch():
    copies, model = torch.cuda.Stream(), mlp(2048, 2048, 10)
    host = torch.randn(20_000, 2048).pin_memory()
    with torch.cuda.stream(copies):
        batches = [host.to("cuda", non_blocking=True) for _ in range(3)]  # culprit
    copies.synchronize()
    del batches
    with torch.no_grad():
        x = torch.randn(9_000, 2048, device="cuda")
        hidden = model[0](x)
        kinds = waste()
    result = of_waste("stream", kinds, line_of(stream_copy_prefetch))
    del x, hidden
    return result


@case()
def pinned_segment_metrics():
    kept, peak = [], Peak()
    for _ in range(4):
        logits = torch.empty(2_000, 50_000, device="cuda").normal_()
        peak.look()
        del logits
        kept.append(torch.zeros(800, 1_000, device="cuda"))  # culprit
        peak.look()
    return peak.truth("pinned_segment", line_of(pinned_segment_metrics))


@case()
def private_pool_two_graphs():
    model = mlp(1024, 4096, 1024)
    inputs = [torch.zeros(4_096 * (i + 1), 1024, device="cuda") for i in range(2)]
    graphs, outs = [], []
    with torch.no_grad():
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            model(inputs[0][:64])
        torch.cuda.synchronize()
        for x in inputs:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                outs.append(model(x))  # culprit
            graphs.append(graph)
        work = torch.randn(4_096, 1_024, device="cuda")
    kinds = waste()
    result = of_waste("private_pool", kinds, line_of(private_pool_two_graphs))
    del work
    return result


@case()
def pending_reduce():
    comm, grads = torch.cuda.Stream(), []
    for i in range(16):
        grad = torch.randn(24 * MIB // 4, device="cuda")  # culprit
        comm.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(comm):
            torch.cuda._sleep(80_000_000)
            grad.mul_(0.5)
        grad.record_stream(comm)
        del grad
    last = torch.empty(24 * MIB // 4, device="cuda")
    kinds = waste()
    result = of_waste("pending", kinds, line_of(pending_reduce))
    torch.cuda.synchronize()
    del last
    return result


def gpt(width, layers, heads, vocab, length):
    class Block(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.norm1, self.norm2 = torch.nn.LayerNorm(width), torch.nn.LayerNorm(width)
            self.qkv, self.out = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)
            self.up, self.down = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)

        def forward(self, x):
            b, t, c = x.shape
            q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, heads, c // heads).permute(2, 0, 3, 1, 4)
            y = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(y.transpose(1, 2).reshape(b, t, c))
            return x + self.down(torch.nn.functional.gelu(self.up(self.norm2(x))))

    class GPT(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.place = torch.nn.Embedding(vocab, width), torch.nn.Embedding(length, width)
            self.blocks = torch.nn.ModuleList(Block() for _ in range(layers))
            self.head = torch.nn.Linear(width, vocab, bias=False)

        def forward(self, tokens):
            x = self.embed(tokens) + self.place(torch.arange(tokens.shape[1], device="cuda"))
            for block in self.blocks:
                x = block(x)
            return self.head(x)

    return GPT().cuda()


@case(annotated=True)
def need_gpt():
    torch.cuda.reset_peak_memory_stats()
    model = gpt(384, 6, 6, 5000, 256)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    for _ in range(8):
        tokens = torch.randint(5000, (16, 257), device="cuda")
        with torch.autocast("cuda", torch.bfloat16):
            logits = model(tokens[:, :-1])
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return truth("need", requested("peak"), None, iterations=8)


@case()
def leak_gpt_logits():
    model, loop, kept = gpt(256, 4, 4, 3000, 128), Loop(), []
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    for _ in range(16):
        tokens = torch.randint(3000, (12, 129), device="cuda")
        logits = model(tokens[:, :-1])  # culprit
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        kept.append(logits.detach())
        del tokens, logits, loss
        loop.done()
    return truth("leak", loop.leaked(), None, iterations=16)


@case()
def leak_gpt_validation_loss():
    model, loop, total = gpt(256, 3, 4, 2000, 128), Loop(), 0
    for _ in range(10):
        tokens = torch.randint(2000, (8, 129), device="cuda")
        logits = model(tokens[:, :-1])
        total = total + torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        del logits, tokens
        loop.done()
    return truth("leak", loop.leaked(), None, iterations=10)


@case()
def leak_rl_rollouts():
    policy, loop, memory = mlp(128, 1024, 64), Loop(), []
    optimizer = torch.optim.Adam(policy.parameters(), lr=1e-3)
    for _ in range(20):
        states = torch.randn(8192, 128, device="cuda")  # culprit
        logits = policy(states)
        loss = -(logits.log_softmax(-1)[:, 0] * torch.rand(8192, device="cuda")).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        memory.append(states)
        del states, logits, loss
        loop.done()
    return truth("leak", loop.leaked(), line_of(leak_rl_rollouts), iterations=20)


@case(annotated=True, late=True)
def leak_long_view():
    loop, last = Loop(), []
    lstm = torch.nn.LSTM(64, 256, num_layers=2, batch_first=True).cuda()
    head = torch.nn.Linear(256, 64).cuda()
    optimizer = torch.optim.Adam([*lstm.parameters(), *head.parameters()], lr=1e-3)
    for _ in range(22):
        x = torch.randn(64, 100, 64, device="cuda")
        out, _ = lstm(x)  # culprit
        loss = head(out).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        last.append(out.detach()[:, -1, :])
        del x, out, loss, _
        loop.done()
    return truth("leak", loop.leaked(), line_of(leak_long_view), iterations=22)


@case()
def leak_three_iterations():
    model, loop, kept = mlp(1024, 4096, 4096), Loop(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for _ in range(4):
        x = torch.randn(4096, 1024, device="cuda")
        optimizer.zero_grad()
        out = model(x)  # culprit
        out.square().mean().backward()
        optimizer.step()
        kept.append(out.detach())
        del x, out
        loop.done()
    return truth("leak", 4 * 4096 * 4096 * 4, line_of(leak_three_iterations), iterations=4)


@case()
def leak_oom_training_graph():
    model, loop, total, done = small_cnn(32), Loop(), 0, 0
    limit(1.2)
    try:
        for _ in range(300):
            images = torch.rand(64, 3, 64, 64, device="cuda")
            out = model(images)  # culprit
            total = total + out.logsumexp(1).mean()
            loop.done()
            done += 1
    except torch.cuda.OutOfMemoryError:
        pass
    return truth("leak", loop.leaked(), line_of(leak_oom_training_graph), iterations=done, oom=True)


@case()
def leak_ema_undetached():
    model, loop = mlp(512, 2048, 512), Loop()
    average = torch.zeros(4096, 512, device="cuda")
    for _ in range(15):
        out = model(torch.randn(4096, 512, device="cuda"))  # culprit
        average = 0.9 * average + 0.1 * out
        del out
        loop.done()
    return truth("leak", loop.leaked(), line_of(leak_ema_undetached), iterations=15)


@case(conf="expandable_segments:True")
def longer_inputs_gpt():
    model, loop = gpt(256, 4, 4, 2000, 2048), Loop()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    for length in [128, 128, 128, 128, 256, 256, 512, 1024, 2047]:
        tokens = torch.randint(2000, (4, length + 1), device="cuda")
        logits = model(tokens[:, :-1])
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        del tokens, logits, loss
        loop.done()
    return truth("longer_inputs", max(loop.peaks) - loop.peaks[1], None, iterations=9)


@case(conf="expandable_segments:True")
def longer_inputs_audio():
    model, loop = torch.nn.LSTM(80, 256, batch_first=True).cuda(), Loop()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for frames in [200, 210, 190, 205, 400, 800, 1600, 220]:
        x = torch.randn(32, frames, 80, device="cuda")
        out, _ = model(x)  # culprit
        out.square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        del x, out, _
        loop.done()
    return truth("longer_inputs", max(loop.peaks) - loop.peaks[1], line_of(longer_inputs_audio), iterations=8)


@case()
def longer_inputs_default_settings():
    model, loop = mlp(512, 2048, 512), Loop()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for rows in [500] * 6 + [2000] * 2 + [12_000] * 2:
        x = torch.randn(rows, 512, device="cuda")
        out = model(x)  # culprit
        out.square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        del x, out
        loop.done()
    return truth("longer_inputs", max(loop.peaks) - loop.peaks[1], line_of(longer_inputs_default_settings), iterations=10)


@case()
def fragmentation_token_by_token():
    peak = Peak()
    cache = torch.zeros(8, 16, 400, 128, device="cuda")
    for _ in range(30):
        new = torch.randn(8, 16, 16, 128, device="cuda")
        grown = torch.cat([cache, new], dim=2)  # culprit
        peak.look()
        cache = grown
        del new, grown
    return peak.truth("fragmentation", line_of(fragmentation_token_by_token))


@case()
def fragmentation_oom():
    """Growing sequences below a limit until a request fails though most is free."""
    limit(1.0)
    peak, done = Peak(), 0
    kept = []
    try:
        for step in range(60):
            x = torch.empty((20 + 3 * step) * MIB // 4, device="cuda")  # culprit
            peak.look()
            kept.append(torch.empty(3 * MIB // 4, device="cuda"))
            peak.look()
            del x
            done += 1
    except torch.cuda.OutOfMemoryError:
        pass
    cause = max(peak.kinds, key=peak.kinds.get)
    return peak.truth(cause, None, steps=done)


@case()
def fragmentation_growing_training():
    """Lengths that grow by a few tokens each step, without marks."""
    model, peak = mlp(512, 4096, 512), Peak()
    with torch.no_grad():
        for step in range(20):
            x = torch.randn(3_000 + 400 * step, 512, device="cuda")
            peak.look()
            hidden = model[0](x)  # culprit
            peak.look()
            hidden = model[1](hidden)
            peak.look()
            out = model[2](hidden)
            peak.look()
            del x, hidden, out
    return peak.truth("fragmentation", line_of(fragmentation_growing_training))


@case()
def stream_side_model():
    side, a, b = torch.cuda.Stream(), mlp(1024, 4096, 1024), mlp(1024, 1024)
    torch.cuda.synchronize()
    with torch.cuda.stream(side), torch.no_grad():
        for _ in range(3):
            y = a(torch.randn(12_000, 1024, device="cuda"))  # culprit
        del y
    side.synchronize()
    with torch.no_grad():
        x = torch.randn(14_000, 1024, device="cuda")
        z = b(x)
        kinds = waste()
    result = of_waste("stream", kinds, [line_of(stream_side_model)])
    del x, z
    return result


@case()
def private_pool_unused():
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        scratch = torch.empty(512 * MIB, dtype=torch.uint8, device="cuda")  # culprit
        del scratch
    model = mlp(1024, 4096, 1024)
    out = model(torch.randn(4096, 1024, device="cuda"))
    kinds = waste()
    result = of_waste("private_pool", kinds, line_of(private_pool_unused))
    del out, pool
    return result


@case()
def private_pool_training_graph():
    model = mlp(1024, 4096, 1024)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    static = torch.randn(8192, 1024, device="cuda")
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):
            optimizer.zero_grad()
            model(static[:32]).square().mean().backward()
            optimizer.step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    optimizer.zero_grad()
    with torch.cuda.graph(graph):
        loss = model(static).square().mean()  # culprit
        loss.backward()
        optimizer.step()
    graph.replay()
    torch.cuda.synchronize()
    work = torch.randn(4096, 1024, device="cuda")
    kinds = waste()
    result = of_waste("private_pool", kinds, None)
    del work
    return result


@case(conf="roundup_power2_divisions:4")
def rounding_quarters():
    peak, tables = Peak(power_of_two(4)), []
    for _ in range(10):
        tables.append(torch.empty(int(64.1 * MIB) // 4, device="cuda"))  # culprit
        peak.look()
    return peak.truth("rounding", line_of(rounding_quarters))


@case(conf="max_split_size_mb:40")
def unsplit_half():
    peak = Peak()
    first = [torch.empty(100 * MIB // 4, device="cuda") for _ in range(6)]
    peak.look()
    del first
    second = [torch.empty(82 * MIB // 4, device="cuda") for _ in range(6)]  # culprit
    late = [torch.empty(30 * MIB // 4, device="cuda") for _ in range(2)]
    peak.look()
    result = peak.truth("unsplit", line_of(unsplit_half))
    del second, late
    return result


@case(alone=True)
def outside_neighbour():
    code = "import torch,sys; a=torch.empty(100<<30,dtype=torch.uint8,device='cuda'); print(1,flush=True); sys.stdin.read()"
    other = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    other.stdout.readline()
    kept, others, total = fill_until_oom(lambda n: torch.empty(n // 4, device="cuda"), 1 << 30)
    other.stdin.close()
    other.wait()
    del kept
    return truth("outside", others, None, total=total, oom=True)


@case()
def need_diffusion_unet():
    torch.cuda.reset_peak_memory_stats()
    down = torch.nn.Conv2d(4, 128, 3, padding=1).cuda()
    mid = torch.nn.Sequential(*[m for _ in range(4) for m in (torch.nn.GroupNorm(8, 128), torch.nn.SiLU(), torch.nn.Conv2d(128, 128, 3, padding=1))]).cuda()
    up = torch.nn.Conv2d(256, 4, 3, padding=1).cuda()
    optimizer = torch.optim.AdamW([*down.parameters(), *mid.parameters(), *up.parameters()], lr=1e-4)
    for _ in range(6):
        x, noise = torch.randn(8, 4, 64, 64, device="cuda"), torch.randn(8, 4, 64, 64, device="cuda")
        h = down(x + noise)
        loss = (up(torch.cat([h, mid(h)], 1)) - noise).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    return truth("need", requested("peak"), None, iterations=6)


@case()
def need_inference_batches():
    torch.cuda.reset_peak_memory_stats()
    model = encoder(384, 4, 6).eval()
    with torch.inference_mode():
        for _ in range(12):
            x = torch.randn(32, 128, 384, device="cuda")
            scores = model(x).mean(1).cpu()
    return truth("need", requested("peak"), None, iterations=12)


@case()
def need_single_deep_pass():
    torch.cuda.reset_peak_memory_stats()
    blocks = torch.nn.ModuleList([mlp(512, 1024, 512) for _ in range(24)])
    x = torch.randn(4096, 512, device="cuda")
    for block in blocks:
        x = x + block(x)
    loss = x.square().mean()
    loss.backward()
    return truth("need", requested("peak"), None)


if __name__ == "__main__":
    sys.exit(planted.main())
