"""Says where PyTorch and its CUDA libraries lie, without importing them: one line of JSON."""

import glob
import importlib.metadata
import importlib.util
import json
import os
import re
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
runtimes = (re.search(r"/libcudart\.so\.(\d+)", path) for path in libraries)
cuda = next((found[1] for found in runtimes if found), None)
# By how well a package fits this CUDA: those for it, those that do not say, and others. Of two that fit alike the first is imported.
fitting: "tuple[dict[str, str], ...]" = ({}, {}, {})
for package in importlib.metadata.distributions():
    try:
        parts = re.fullmatch(r"nvidia-(.+?)(?:-cu(\d+))?", package.metadata["Name"] or "")
        release = package.version
    except Exception:
        # What is left of a package that was removed, or was never whole, tells nothing.
        continue
    if folder and parts and release:
        plain, of = parts.groups()
        fitting[1 if of is None else 0 if of == cuda else 2].setdefault(plain, release)
releases = {**fitting[2], **fitting[1], **fitting[0]}
told = {"python": sys.executable, "folder": folder, "version": version, "libraries": libraries, "releases": releases}
print(json.dumps(told))
