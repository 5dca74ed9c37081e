"""Callbacks for the training loops of others, with stand-ins for their libraries."""

from __future__ import annotations

import sys
import types

import pytest

import stand_in
import tonnage


@pytest.fixture
def torch(monkeypatch, plain, tmp_path):
    made = types.ModuleType("torch")
    exec(stand_in.SOURCE, made.__dict__)
    monkeypatch.setitem(sys.modules, "torch", made)
    monkeypatch.setenv("STAND_IN_SNAPSHOT", str(plain("mlp_seed.default.stacks")))
    monkeypatch.chdir(tmp_path)
    return made


@pytest.fixture
def callback(monkeypatch):
    """Lightning's, on a stand-in for its base class."""
    names = ["lightning", "lightning.pytorch", "lightning.pytorch.callbacks"]
    for name in names:
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    sys.modules[names[-1]].Callback = object
    return tonnage.callbacks.for_lightning(path="fit.pickle")


def fit(callback, torch) -> None:
    callback.on_fit_start(None, None)
    torch.empty(3, device="cuda")
    callback.on_train_batch_end(None, None, None, None, 0)
    callback.on_fit_end(None, None)


def test_a_callback_serves_one_training_after_the_other(callback, torch, tmp_path, capsys):
    hook = sys.excepthook
    recordings = []
    for _ in range(2):
        fit(callback, torch)
        recordings.append(callback.recording)
        assert "Reserved memory peaked at 208.00 MiB" in capsys.readouterr().err
    assert recordings[0] is not recordings[1]
    assert sorted(it.name for it in tmp_path.iterdir()) == ["fit.2.pickle", "fit.pickle"]
    assert [it[1] for it in torch.calls if it[0] == "record"] == ["all", None] * 2
    assert sum(it[0] == "scope" for it in torch.calls) == 2
    assert sys.excepthook is hook


def test_memory_that_runs_out_is_explained_and_the_next_training_recorded(callback, torch, tmp_path):
    callback.on_fit_start(None, None)
    with pytest.raises(torch.OutOfMemoryError) as raised:
        torch.empty(1 << 50, device="cuda")
    if sys.version_info >= (3, 11):
        callback.on_exception(None, None, raised.value)
        assert "What to change" in raised.value.__notes__[0]
    else:
        with pytest.warns(RuntimeWarning, match="What to change"):
            callback.on_exception(None, None, raised.value)
    assert (tmp_path / "fit.pickle").exists()
    fit(callback, torch)
    assert (tmp_path / "fit.2.pickle").exists()
