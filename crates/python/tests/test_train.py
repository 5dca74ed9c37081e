"""Callbacks in the real libraries, on the processor. There is no GPU: what PyTorch's recorder would be asked is written down,
and a recording of a real job takes the place of what it would answer. Run by `cargo xtask python-full`."""

from __future__ import annotations

import pickle

import pytest

import tonnage

pytestmark = pytest.mark.full


@pytest.fixture
def calls(monkeypatch, plain, tmp_path):
    import torch

    data = pickle.loads(plain("mlp_seed.default.stacks").read_bytes())
    made = []
    monkeypatch.setattr("tonnage._record.sees_gpu", lambda torch: True)
    monkeypatch.setattr("tonnage._record.is_recording", lambda torch: False)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(
        torch.cuda.memory, "_record_memory_history", lambda enabled="all", **options: made.append(enabled)
    )
    monkeypatch.setattr(torch.cuda.memory, "_snapshot", lambda *words: data)
    step = tonnage.Recording.step
    monkeypatch.setattr(tonnage.Recording, "step", lambda self: (made.append("step"), step(self)))
    monkeypatch.chdir(tmp_path)
    return made


def check(calls, capsys, tmp_path, steps: int) -> None:
    assert calls == ["all", *["step"] * steps, None]
    assert "Reserved memory peaked at 208.00 MiB" in capsys.readouterr().err
    assert tonnage.read(tmp_path / "job.pickle").peak.allocated == 195_529_216


def test_transformers(calls, capsys, tmp_path):
    import torch
    import transformers

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(4, 1)

        def forward(self, x, labels=None):
            y = self.layer(x)
            return {"loss": torch.nn.functional.mse_loss(y, labels), "logits": y}

    data = [{"x": torch.ones(4) * it, "labels": torch.ones(1)} for it in range(8)]
    options = transformers.TrainingArguments(
        output_dir=str(tmp_path / "out"), max_steps=3, per_device_train_batch_size=2, report_to=[], use_cpu=True,
        save_strategy="no", disable_tqdm=True,
    )
    callback = tonnage.callbacks.for_transformers(path="job.pickle")
    transformers.Trainer(model=Model(), args=options, train_dataset=data, callbacks=[callback]).train()
    check(calls, capsys, tmp_path, 3)


def lightning():
    try:
        import lightning.pytorch as library
    except ImportError:
        import pytorch_lightning as library
    return library


def test_lightning(calls, capsys, tmp_path):
    import torch

    library = lightning()

    class Model(library.LightningModule):
        fails = False

        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(4, 1)

        def training_step(self, batch, place):
            if self.fails:
                raise torch.OutOfMemoryError("CUDA out of memory.")
            return self.layer(batch).sum()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    def fit(callback, model) -> None:
        data = torch.utils.data.DataLoader(torch.ones(8, 4), batch_size=2)
        library.Trainer(
            accelerator="cpu", max_steps=3, callbacks=[callback], logger=False, enable_checkpointing=False,
            enable_progress_bar=False, enable_model_summary=False, default_root_dir=tmp_path,
        ).fit(model, data)

    callback = tonnage.callbacks.for_lightning(path="job.pickle")
    fit(callback, Model())
    check(calls, capsys, tmp_path, 3)
    # The same once more, in which memory runs out.
    model = Model()
    model.fails = True
    with pytest.raises(torch.OutOfMemoryError) as raised:
        fit(callback, model)
    assert "What to change" in raised.value.__notes__[0]
    assert (tmp_path / "job.2.pickle").exists()


def test_accelerate(calls, capsys, tmp_path):
    import accelerate
    import torch

    accelerator = accelerate.Accelerator(cpu=True, log_with=tonnage.callbacks.for_accelerate(path="job.pickle"))
    accelerator.init_trackers("job")
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer = accelerator.prepare(model, optimizer)
    for step in range(3):
        loss = model(torch.ones(2, 4)).sum()
        accelerator.backward(loss)
        optimizer.step()
        accelerator.log({"loss": loss.item()}, step=step)
    accelerator.end_training()
    check(calls, capsys, tmp_path, 3)
