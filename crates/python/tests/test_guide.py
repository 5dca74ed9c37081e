"""Every block of the guide's chapter "From Python", run."""

from __future__ import annotations

import os
import re
import shutil
import sys

import stand_in
from conftest import ROOT, recording


def blocks(language: str) -> list[str]:
    guide = (ROOT / "GUIDE.md").read_text(encoding="utf-8")
    chapter = guide.split("\n## From Python\n")[1].split("\n## ")[0]
    return re.findall(rf"^```{language}\n(.*?)^```$", chapter, flags=re.DOTALL | re.MULTILINE)


def prepare(folder, plain) -> dict[str, str]:
    stand_in.install(folder)
    shutil.copy(plain("mlp_seed.default.stacks"), folder / "snapshot.pickle")
    shutil.copy(recording("mlp_seed.expandable"), folder / "other.pickle")
    path = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
    return {"PYTHONPATH": path, "STAND_IN_SNAPSHOT": str(folder / "snapshot.pickle")}


def test_the_blocks_run_one_after_the_other(tmp_path, plain, python):
    environment = prepare(tmp_path, plain)
    found = blocks("python")
    assert len(found) >= 6
    program = "import torch\ndef train():\n    torch.empty(1, device='cuda')\n" + "\n".join(
        block for block in found if "def test_" not in block
    )
    (tmp_path / "guide.py").write_text(program)
    done = python("guide.py", **environment)
    assert done.returncode == 0, done.stderr
    for words in ["What limits this job is", "218103808 False", "213909504", "not a known key"]:
        assert words in done.stdout, done.stdout
    assert (tmp_path / "peak.svg").read_text().startswith("<?xml")


def test_its_tests_pass(tmp_path, plain, python):
    environment = prepare(tmp_path, plain)
    tests = [block for block in blocks("python") if "def test_" in block]
    (tmp_path / "test_guide.py").write_text("import tonnage\n" + "\n".join(tests))
    done = python("-m", "pytest", "-q", "-p", "no:cacheprovider", "test_guide.py", **environment)
    assert done.returncode == 0, done.stdout


def test_its_command_records(tmp_path, plain, python):
    environment = prepare(tmp_path, plain)
    (tmp_path / "train.py").write_text("import torch\ntorch.empty(1, device='cuda')\n")
    (block,) = blocks("sh")
    name, *words = block.split()
    assert name == "tonnage"
    words = [sys.executable if word == "python" else word for word in words]
    done = python("-m", "tonnage", *words, **environment)
    assert done.returncode == 0 and "saved " in done.stderr, done.stderr
