"""`tonnage.torch.predict` and pytest on a GPU that is not there: what is asked, and what is refused. With PyTorch itself: test_pytorch.py."""

from __future__ import annotations

import json
import pathlib
import sys

import pytest

import tonnage
import tonnage.torch
from tonnage import _tonnage, pytest_plugin


def test_the_words_are_those_of_the_command(monkeypatch):
    asked = []
    answer = {"allocated": {"low": 5, "high": 7}, "fits": True, "guesses": [{"line": "train.py:3", "what": "x"}]}

    def ask(words):
        asked.append(words)
        return "fits", json.dumps(answer), False

    monkeypatch.setattr(_tonnage, "ask", ask)
    made = tonnage.torch.predict(
        "train.py", ["--batch", 8], gpu="a100-80", limit="24GiB", conf="expandable_segments:True", world=8, rank=3
    )
    assert isinstance(made, tonnage.torch.Prediction) and made
    assert made.allocated.high == 7 and made.guesses[0].line == "train.py:3" and str(made) == "fits"
    assert made.to_dict() == answer
    assert tonnage.torch.predict(["-m", "package.train"], python="/opt/python")
    with pytest.raises(tonnage.UsageError, match=r"such as \['--batch', '8'\]"):
        tonnage.torch.predict("train.py", "--batch 8")
    assert asked == [
        [
            "predict", "--gpu=a100-80", "--limit=24GiB", "--conf=expandable_segments:True", "--world=8", "--rank=3", "--",
            sys.executable, "train.py", "--batch", "8",
        ],
        ["predict", "--", "/opt/python", "-m", "package.train"],
    ]


def test_what_cannot_be_run_is_an_error(tmp_path):
    with pytest.raises(tonnage.Error, match="no GPU is called `h2000` here"):
        tonnage.torch.predict("train.py", gpu="h2000")
    with pytest.raises(tonnage.UsageError, match="unexpected argument"):
        tonnage.torch.predict("train.py", no_such_option=1)


def test_a_prediction_is_measured(pytester):
    pytester.makepyfile(
        """
        from tonnage.torch import Prediction
        def test_script(gpu_memory):
            gpu_memory.measure(Prediction("fits", '{"allocated": {"low": 5, "high": 7}}'))
            gpu_memory.assert_peak(7, tolerance=0)
        """
    )
    pytester.runpytest_subprocess("-p", "no:cacheprovider").assert_outcomes(passed=1)


def test_pytest_starts_itself_again_and_nothing_else(monkeypatch):
    for words, again in [
        (["python", "-m", "pytest", "-x"], ["-m", "pytest", "-x"]),
        (["python", "/env/bin/pytest", "tests"], ["/env/bin/pytest", "tests"]),
        (["python", "-W", "error", "-m", "pytest"], ["-W", "error", "-m", "pytest"]),
        (["python", "-Werror", "-m", "pytest"], ["-Werror", "-m", "pytest"]),
        (["python", "-mpytest", "-x"], ["-mpytest", "-x"]),
        (["python", "-mtox"], None),
        (["python", "-m", "tox"], None),
        (["python", "-m"], None),
        (["python", "/ide/_jb_pytest_runner.py", "--path", "tests"], ["/ide/_jb_pytest_runner.py", "--path", "tests"]),
        (["python", "-u", "/ide/run_pytest_script.py", "--rootdir=x"], ["-u", "-m", "pytest", "-x", "test_it.py"]),
        (["python", "program.py"], None),
        (["python"], None),
    ]:
        monkeypatch.setattr(sys, "orig_argv", words)
        assert pytest_plugin._pytest_words(("-x", pathlib.Path("test_it.py"))) == again, words


def test_a_gpu_that_cannot_be_had_is_told_before_any_test_runs(pytester):
    pytester.makepyfile("def test_nothing(): pass")
    refused = pytester.runpytest_subprocess("--tonnage-gpu", "h2000")
    assert refused.ret == pytest.ExitCode.USAGE_ERROR
    refused.stderr.fnmatch_lines(["*--tonnage-gpu h2000: no GPU is called `h2000` here*"])
    pytester.makeini("[pytest]\ntonnage_gpu = h2000\n")
    assert pytester.runpytest_subprocess().ret == pytest.ExitCode.USAGE_ERROR


def test_the_second_run_says_which_gpu_it_has(pytester, monkeypatch):
    """Where the libraries are loaded already, pytest goes on, and leaves nothing behind."""
    folder = pytester.mkdir("libraries")
    monkeypatch.setenv(pytest_plugin.FAKE_GPU, "h200")
    monkeypatch.setenv(pytest_plugin.FAKE_GPU_FOLDER, str(folder))
    pytester.makepyfile("def test_nothing(): pass")
    done = pytester.runpytest_subprocess("--tonnage-gpu", "h200")
    done.assert_outcomes(passed=1)
    done.stdout.fnmatch_lines(["tonnage: PyTorch has the GPU h200, on which nothing is computed"])
    assert folder.exists(), "it is another process's"


def test_the_libraries_go_with_the_process_and_not_before(pytester, monkeypatch):
    """A test may run a pytest inside of this one."""
    folder = pytester.mkdir("libraries")
    pytester.makepyfile(
        inner="def test_nothing(): pass",
        test_outer=f"""
            import pathlib
            import pytest

            def test_inside():
                assert pytest.main(["-q", "inner.py"]) == 0
                assert pathlib.Path({str(folder)!r}).exists()
        """,
        program=f"""
            import os, sys
            os.environ |= {{{pytest_plugin.FAKE_GPU!r}: "h200", {pytest_plugin.FAKE_GPU_FOLDER!r}: {str(folder)!r},
                           {pytest_plugin.FAKE_GPU_OF!r}: str(os.getpid())}}
            import pytest
            sys.exit(pytest.main(["-q", "test_outer.py"]))
        """,
    )
    done = pytester.runpython("program.py")
    assert done.ret == 0 and not folder.exists(), done.outlines
