"""How fast a fleet is looked at here, and over Ray with a worker for each core of this machine: `rate.py FOLDER FILES`.

Both are timed in one run, here, there, here: what else the machine does reaches both. What goes over Ray is told by a program of its
own, whose memory is nobody else's. Prints one JSON object.
"""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

import ray

from tonnage import fleet


def timed(work) -> tuple[float, str]:
    began = time.monotonic()
    told = work()._json
    return time.monotonic() - began, told


def most_memory() -> int:
    """The most memory that this program has had so far."""
    lines = pathlib.Path("/proc/self/status").read_text().splitlines()
    return int(next(it for it in lines if it.startswith("VmHWM:")).split()[1]) << 10


def over_ray(address: str, few: str, all_files: str) -> None:
    """The program that goes over Ray: prints how long that took, its memory before and with it, and what it was told."""
    ray.init(address=address, log_to_driver=False, logging_level="error")
    # Workers are started, and have the package.
    fleet.report(f"@{few}", ray="auto")
    before = most_memory()
    seconds, told = timed(lambda: fleet.report(f"@{all_files}", ray="auto"))
    print(json.dumps({"seconds": seconds, "before": before, "most": most_memory(), "told": told}))


def main(folder: pathlib.Path, most: int) -> None:
    cores = os.cpu_count() or 1
    ray.init(num_cpus=cores, include_dashboard=False, log_to_driver=False, logging_level="error")
    address = ray.get_runtime_context().gcs_address
    files = sorted(folder.iterdir())[:most]
    with tempfile.TemporaryDirectory() as lists:
        few, all_files = pathlib.Path(lists, "few"), pathlib.Path(lists, "all")
        few.write_text("".join(f"{it}\n" for it in files[: 4 * cores]))
        all_files.write_text("".join(f"{it}\n" for it in files))
        first, here = timed(lambda: fleet.report(f"@{all_files}"))
        words = [sys.executable, __file__, "--over-ray", address, str(few), str(all_files)]
        printed = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True).stdout
        there = json.loads(printed.splitlines()[-1])
        second, _ = timed(lambda: fleet.report(f"@{all_files}"))
    assert here == there["told"], "another result over Ray"
    local, seconds = (first + second) / 2, there["seconds"]
    figures = {"files": len(files), "local": local, "ray": seconds, "share": local / seconds}
    print(json.dumps({**figures, "memory_before": there["before"], "memory": there["most"]}))


if sys.argv[1] == "--over-ray":
    over_ray(*sys.argv[2:])
else:
    main(pathlib.Path(sys.argv[1]), int(sys.argv[2]))
