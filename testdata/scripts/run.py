"""Runs a script, or a workload by its name, as it was run when its truth was recorded: `run.py NAME [LIMIT]`."""

import pathlib
import runpy
import sys

import torch

name, *limit = sys.argv[1:]
here = pathlib.Path(__file__).parent
torch.cuda.init()
if limit:
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(int(limit[0]) / total)
script = here / f"{name}.py"
if script.is_file():
    sys.argv = [str(script)]
    runpy.run_path(str(script), run_name="__main__")
else:
    sys.path.insert(0, str(here))
    import workloads

    torch.manual_seed(0)
    workloads.ALL[name]()
