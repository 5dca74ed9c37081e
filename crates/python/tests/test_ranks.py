"""Ranks on a cluster, of which there is a stand-in, as of the command's steps: what travels, what is kept, what is refused."""

from __future__ import annotations

import json
import os
import pathlib
import sys

import pytest

import tonnage
import tonnage.torch
from test_fleet import Cluster
from tonnage import _tonnage
from tonnage.torch import _ranks


#: What the program has, as the command tells it, and what is looked at where ranks run.
SETTINGS = {"begin": ["CUDA_", "PYTORCH_"], "places": ["_HOME"], "values": {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}}
WATCHED = ("PYTORCH_ALLOC_CONF", "CUDA_MODULE_LOADING", "CUDA_HOME", "OTHER")


class Command:
    """What the steps of the command do, without a script."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, left: list[list[int]]) -> None:
        self.left = left
        self.asked: list[list[str]] = []
        self.kept: dict[int, dict[str, bytes]] = {}
        self.folder = os.getcwd()
        self.wrong: str | None = None
        self.busy = 0
        self.seen: list[dict[str, str | None]] = []
        monkeypatch.setattr(_tonnage, "ask", self.ask)

    def ask(self, words: list[str]) -> tuple[str, str, bool]:
        self.asked.append(words)
        values = dict(word[2:].split("=", 1) for word in words if word.startswith("--") and "=" in word)
        if "--left" in words:
            plan = {
                "left": self.left.pop(0), "words": ["--world=4"], "key": "k", "command": ["python", "train.py"],
                "folder": self.folder, "settings": SETTINGS,
            }
            return "", json.dumps(plan), False
        if "one" in values:
            self.seen.append({name: os.environ.get(name) for name in WATCHED})
            if self.wrong is not None:
                raise tonnage.Error(self.wrong)
            for name in ("run.json", "run.pickle.zst"):
                pathlib.Path(values["one"], name).write_text(f"{name} of {values['rank']} with {values['key']}")
        if "keep" in values and self.busy:
            self.busy -= 1
            raise tonnage.Error("out is being written by another run")
        if "keep" in values:
            files = {path.name: path.read_bytes() for path in pathlib.Path(values["keep"]).iterdir()}
            self.kept[int(values["rank"])] = files
        return "fits", json.dumps({"fits": True, "runs": len(self.kept)}), False


def predict(**more):
    return tonnage.torch.predict("train.py", world=4, rank=["0", "1-3"], out="out", ray="auto", **more)


def test_ranks_travel_round_by_round_and_come_back(monkeypatch) -> None:
    cluster = Cluster()
    monkeypatch.setitem(sys.modules, "ray", cluster)
    steps = Command(monkeypatch, [[0, 3], [1, 2], []])
    told = predict(layout={"dp": 2, "tp": 2}, alike=("dp", "tp"))
    assert told.fits and sorted(steps.kept) == [0, 1, 2, 3]
    assert steps.kept[3] == {"run.json": b'run.json of 3 with "k"', "run.pickle.zst": b'run.pickle.zst of 3 with "k"'}
    assert not cluster.cancelled
    words = ["--out=out", "--world=4", "--rank=0,1-3", "--layout=dp=2,tp=2", "--alike=dp,tp", "--", sys.executable, "train.py"]
    plans = [asked for asked in steps.asked if "--left" in asked]
    # Those that failed are tried again by a new command, and by none of its rounds; what they are run with stays.
    later = ["--failures-kept", '--key="k"']
    assert plans == [["predict", "--left", *more, *words] for more in ([], later, later)]
    assert steps.asked[-1] == ["predict", *later, *words]
    keep = next(asked for asked in steps.asked if asked[1].startswith("--keep="))
    assert keep[2] in {"--rank=0", "--rank=3"} and "--rank=0,1-3" not in keep


def test_a_rank_that_kills_workers_is_kept_as_one_that_failed(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", Cluster(die=("rank 2",)))
    steps = Command(monkeypatch, [[1, 2], []])
    predict()
    lost = json.loads(steps.kept[2]["run.json"])
    assert (lost["key"], lost["verdict"], lost["prediction"]) == ("k", "failed", None)
    assert "died: killed" in lost["why"] and "run.pickle.zst" in steps.kept[1]


def test_ranks_that_are_lost_again_and_again_are_an_error(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", Cluster())
    steps = Command(monkeypatch, [[0, 3], [1], [3]])
    with pytest.raises(tonnage.Error, match="not found in the dataset, which nobody else may change meanwhile: 3$"):
        predict()
    assert sorted(steps.kept) == [0, 1, 3]


def test_a_dataset_that_is_busy_is_waited_for(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", Cluster())
    steps = Command(monkeypatch, [[0, 1], []])
    steps.busy = 1
    assert predict().fits and sorted(steps.kept) == [0, 1]
    monkeypatch.setattr(_ranks, "_PATIENCE", 0.1)
    steps = Command(monkeypatch, [[0, 1], []])
    steps.busy = 1000
    with pytest.raises(tonnage.Error, match="being written by another run"):
        predict()


def test_settings_travel_and_a_worker_has_its_own_again(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", Cluster())
    own = {"PYTORCH_ALLOC_CONF": "backend:native", "CUDA_MODULE_LOADING": "EAGER", "CUDA_HOME": "/cuda", "OTHER": "1"}
    for name, value in own.items():
        monkeypatch.setenv(name, value)
    steps = Command(monkeypatch, [[0, 1], []])
    predict()
    told = {"PYTORCH_ALLOC_CONF": "expandable_segments:True", "CUDA_MODULE_LOADING": None, "CUDA_HOME": "/cuda", "OTHER": "1"}
    assert steps.seen == [told, told]
    assert {name: os.environ.get(name) for name in WATCHED} == own
    steps = Command(monkeypatch, [[0]])
    steps.wrong = "no"
    with pytest.raises(tonnage.Error, match="a Ray worker: no"):
        predict()
    assert {name: os.environ.get(name) for name in WATCHED} == own


def test_whoever_stops_lets_tasks_end_by_themselves(monkeypatch) -> None:
    cluster = Cluster()
    monkeypatch.setitem(sys.modules, "ray", cluster)
    Command(monkeypatch, [[0, 1, 2, 3]])
    monkeypatch.setattr(_ranks, "_keep", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        predict(in_flight=4)
    assert len(cluster.cancelled) == 3 and not any(cluster.forced)


def test_what_is_wrong_with_a_worker_is_one_sentence(monkeypatch, tmp_path) -> None:
    monkeypatch.setitem(sys.modules, "ray", Cluster())
    with pytest.raises(tonnage.UsageError, match="name a folder"):
        tonnage.torch.predict("train.py", world=4, rank="all", ray="auto")
    steps = Command(monkeypatch, [[0]])
    steps.wrong = "python has no PyTorch built for CUDA"
    with pytest.raises(tonnage.Error, match="a Ray worker: python has no PyTorch"):
        predict()
    steps = Command(monkeypatch, [[0]])
    steps.folder = str(tmp_path / "gone")
    with pytest.raises(tonnage.Error, match="workers must see it under the same path"):
        predict()
    Command(monkeypatch, [[0]])
    simulate = _ranks._simulate
    monkeypatch.setattr(_ranks, "_simulate", lambda asked, words, _, *rest: simulate(asked, words, "0.0.0", *rest))
    with pytest.raises(tonnage.Error, match=r"and this program 0\.0\.0: install the same on every node"):
        predict()
