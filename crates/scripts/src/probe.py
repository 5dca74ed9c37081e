"""Says where PyTorch and its CUDA libraries lie, without importing them: one line of JSON."""

import glob
import importlib.metadata
import importlib.util
import json
import os
import sys

spec = importlib.util.find_spec("torch")
folder = os.path.dirname(spec.origin) if spec and spec.origin else None
libraries = []
if folder:
    around = os.path.dirname(folder)
    for pattern in (f"{folder}/lib/*.so*", f"{around}/nvidia/*/lib/*.so*"):
        libraries += sorted(glob.glob(pattern))
try:
    version = importlib.metadata.version("torch")
except importlib.metadata.PackageNotFoundError:
    version = None
print(json.dumps({"python": sys.executable, "folder": folder, "version": version, "libraries": libraries}))
