"""What notebooks show."""

from __future__ import annotations

import types

import pytest

import tonnage

def test_reports_are_pages_in_a_frame_that_runs_nothing(snapshot):
    shown = snapshot.report()._repr_html_()
    assert shown.startswith('<iframe sandbox srcdoc="&lt;!DOCTYPE html&gt;')
    assert shown.count("<") == 2
    assert "<b>" not in tonnage.read({"segments": [], "device_traces": []}, name="<b>")._repr_html_()


def test_the_cell_magic_records_the_cell(monkeypatch, plain):
    shown = []
    display = types.ModuleType("IPython.display")
    display.display = shown.append
    monkeypatch.setitem(__import__("sys").modules, "IPython", types.ModuleType("IPython"))
    monkeypatch.setitem(__import__("sys").modules, "IPython.display", display)

    class Shell:
        magics: dict = {}

        def register_magic_function(self, function, magic_kind, magic_name):
            assert magic_kind == "cell"
            self.magics[magic_name] = function

        def run_cell(self, cell):
            raised = None
            try:
                exec(cell, {})
            except ZeroDivisionError as error:
                raised = error

            def raise_error():
                if raised is not None:
                    raise raised

            return types.SimpleNamespace(error_in_exec=raised, raise_error=raise_error)

    import stand_in

    torch = types.ModuleType("torch")
    exec(stand_in.SOURCE, torch.__dict__)
    monkeypatch.setitem(__import__("sys").modules, "torch", torch)
    monkeypatch.setenv("STAND_IN_SNAPSHOT", str(plain("mlp_seed.default.stacks")))
    shell = Shell()
    tonnage.load_ipython_extension(shell)
    shell.magics["tonnage"]("1GiB", "import torch\ntorch.empty(3, device='cuda')\n")
    assert isinstance(shown[0], tonnage.Report) and shown[0].limit == 1 << 30
    for wrong in ["nonsense", "1 2 3"]:
        # Before the cell is run.
        with pytest.raises(tonnage.UsageError):
            shell.magics["tonnage"](wrong, "1 / 0")
    with pytest.raises(ZeroDivisionError):
        shell.magics["tonnage"]("", "import torch\ntorch.empty(3, device='cuda')\n1 / 0\n")
