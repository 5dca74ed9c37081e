"""The wheel, as pip has installed it. Where the package was put together for a test, there is no wheel to look at."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
from importlib import metadata

import pytest

import tonnage

DISTRIBUTION = metadata.distribution("tonnage")

pytestmark = pytest.mark.skipif(DISTRIBUTION.files is None, reason="not installed from a wheel")


def installed(ending: str) -> pathlib.Path:
    """The only file that ends so."""
    (path,) = [it for it in DISTRIBUTION.files or () if str(it).endswith(ending)]
    return pathlib.Path(DISTRIBUTION.locate_file(path)).resolve()


def test_it_is_for_every_python_and_for_linux_as_old_as_pytorchs():
    tags = [it for it in installed(".dist-info/WHEEL").read_text().splitlines() if it.startswith("Tag: ")]
    assert tags == ["Tag: cp310-abi3-manylinux_2_28_x86_64"]


def test_it_needs_nothing_and_says_what_it_is():
    about = DISTRIBUTION.metadata
    assert not DISTRIBUTION.requires
    assert about["Requires-Python"] == ">=3.10"
    assert about["License-Expression"] == "Apache-2.0 OR MIT"
    links = dict(it.split(", ", 1) for it in about.get_all("Project-URL"))
    assert links["Changelog"].endswith("/CHANGELOG.md")
    assert about["Version"] == tonnage.__version__
    assert "tonnage.read" in str(about.get_payload())


@pytest.mark.parametrize("name", ["LICENSE-APACHE", "LICENSE-MIT", "py.typed", "_tonnage.pyi"])
def test_licences_and_types_are_inside(name):
    path = installed(f"/{name}")
    assert path.is_file() and (path.stat().st_size > 500 or name == "py.typed")


def test_there_are_no_symbols_but_what_python_calls():
    data = installed("/_tonnage.abi3.so").read_bytes()
    for section in [b".symtab\0", b".debug_info\0", b".debug_line\0"]:
        assert section not in data, section


def test_shells_find_their_completions():
    share = pathlib.Path(sys.prefix) / "share"
    for place in [
        "bash-completion/completions/tonnage",
        "zsh/site-functions/_tonnage",
        "fish/vendor_completions.d/tonnage.fish",
    ]:
        assert "fail-if-peak-grows" in (share / place).read_text()
    done = subprocess.run(
        ["bash", "-c", f"source {share}/bash-completion/completions/tonnage && complete -p tonnage"],
        capture_output=True, text=True,
    )
    assert "tonnage" in done.stdout, done.stderr


def test_the_command_is_there():
    command = pathlib.Path(sys.executable).parent / "tonnage"
    done = subprocess.run([command, "--version"], capture_output=True, text=True, env={"PATH": os.defpath})
    assert done.stdout.startswith(f"tonnage {tonnage.__version__} (wheel, Python "), done.stderr
