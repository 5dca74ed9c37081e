"""Runs a script, or a workload by its name, as it was run when its truth was recorded: `run.py NAME`."""

import pathlib
import runpy
import sys

import torch

name = sys.argv.pop(1)
here = pathlib.Path(__file__).parent
torch.cuda.init()
script = here / f"{name}.py"
if script.is_file():
    sys.argv = [str(script)]
    runpy.run_path(str(script), run_name="__main__")
else:
    sys.path.insert(0, str(here))
    import workloads

    torch.manual_seed(0)
    workloads.ALL[name]()
