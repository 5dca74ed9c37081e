"""The package: what it is made of, how it starts, and that its types are true."""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import subprocess
import sys

import pytest

import tonnage
from conftest import ROOT


def test_the_version_names_the_wheel_and_the_pytorch_it_sees(python):
    said = python("-m", "tonnage", "--version").stdout
    assert said.startswith(f"tonnage {tonnage.__version__} (wheel, Python {sys.version_info.major}."), said
    assert "PyTorch" in said


def test_exit_status_and_help_are_the_commands(python):
    assert python("-m", "tonnage", "--help").returncode == 0
    wrong = python("-m", "tonnage", "nonsense")
    assert wrong.returncode == 2 and "nonsense" in wrong.stderr
    assert python("-m", "tonnage", "predict", "gpt2", "--limit", "100MiB").returncode == 1


def test_importing_takes_nothing_but_the_standard_library():
    code = (
        "import sys; before = set(sys.modules); import tonnage;"
        "print(sorted({name.partition('.')[0] for name in set(sys.modules) - before} - {'tonnage'}))"
    )
    done = subprocess.run([sys.executable, "-I", "-S", "-c", f"import sys; sys.path[:0] = {sys.path!r}; {code}"],
                          capture_output=True, text=True, check=True)
    names = set(json.loads(done.stdout.replace("'", '"')))
    assert names <= set(sys.stdlib_module_names), names
    # These alone take longer than everything else together.
    assert not names & {"inspect", "dataclasses", "asyncio", "email", "typing", "unittest"}


@pytest.fixture
def apart(tmp_path) -> pathlib.Path:
    """The package in a folder of its own: mypy looks at what is installed in another way than at sources."""
    shutil.copytree(pathlib.Path(tonnage.__file__).parent, tmp_path / "apart" / "tonnage")
    return tmp_path / "apart"


def test_the_stub_is_that_of_the_module(apart, tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "mypy.stubtest", "tonnage._tonnage", "--ignore-missing-stub"],
        cwd=tmp_path, env={**os.environ, "MYPYPATH": str(apart), "PYTHONPATH": str(apart)}, capture_output=True, text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_package_is_typed_throughout(apart, tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--python-version", "3.10", "--ignore-missing-imports", "--allow-untyped-calls",
         "--cache-dir", str(tmp_path), str(apart / "tonnage")],
        cwd=tmp_path, capture_output=True, text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_results_declare_the_fields_of_the_documented_json():
    def fields(name: str) -> set[str]:
        schema = json.loads((ROOT / "docs" / "schema" / f"{name}.json").read_text())
        return set(schema["properties"])

    assert set(tonnage.Tuning.__annotations__) == fields("tune")
    assert set(tonnage.Diff.__annotations__) == fields("diff")
    report = json.loads((ROOT / "docs" / "schema" / "report.json").read_text())
    assert set(tonnage.Report.__annotations__) == set(report["$defs"]["report"]["properties"])


def test_the_command_and_the_plugin_are_entry_points():
    from importlib.metadata import distribution

    found = {it.group: (it.name, it.load()) for it in distribution("tonnage").entry_points}
    from tonnage import pytest_plugin
    from tonnage.__main__ import main

    assert found == {"console_scripts": ("tonnage", main), "pytest11": ("tonnage", pytest_plugin)}
