"""Which process of a script this is, and what each needs to be one of the run's.

A process is named by the one that began it, and by how many that one had begun before. A script begins its processes in the same
order each time that it runs, so that what one of them read in the first run is told to the same one in the second. What others
than Python begin has their name, and is told apart by the order of reads.

A process that is given an environment of its own has added what is missing there of what the run's processes have: it is on the
same libraries, and leaves a GPU of this machine alone.
"""

import functools
import os
import sys
from collections.abc import Mapping

NAME = "TONNAGE_BIRTH"

ENVIRONMENT = 5
"""Which argument of `fork_exec` has the new process's environment, if it has one of its own."""

LISTS = ("LD_LIBRARY_PATH", "PYTHONPATH")
"""Variables whose first entry is the run's."""

WHOLE = ("LD_PRELOAD", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
"""Variables that are the run's, beside those of our own name."""


def of_the_run():
    """What every process of the run has in its environment."""
    if "TONNAGE_FOLDER" not in os.environ:
        return {}
    whole = {name: value for name, value in os.environ.items() if name in WHOLE or name.startswith("TONNAGE_")}
    lists = {name: os.environ[name].split(":")[0] for name in LISTS if name in os.environ}
    return {os.fsencode(name): os.fsencode(value) for name, value in {**whole, **lists}.items()}


class Births:
    def __init__(self):
        self.name, self.count = os.environ.setdefault(NAME, "0"), 0
        self.coming = None
        self.kept = of_the_run()

    def next(self):
        self.count += 1
        return f"{self.name}.{self.count}"

    def before_fork(self):
        self.coming = self.next()

    def in_child(self):
        self.name, self.count = self.coming, 0
        os.environ[NAME] = self.name

    def environment(self, given):
        """The environment of a process that is given this one."""
        return {**self.kept, **given, os.fsencode(NAME): os.fsencode(self.next())}

    def fork_exec(self, original):
        """Of `subprocess`, and of `multiprocessing` that spawns: neither forks by `os.fork`."""

        @functools.wraps(original)
        def begun(*args):
            args = list(args)
            if len(args) > ENVIRONMENT:
                given = args[ENVIRONMENT]
                entries = os.environb.items() if given is None else (entry.partition(b"=")[::2] for entry in given)
                told = self.environment(dict(entries))
                args[ENVIRONMENT] = [name + b"=" + value for name, value in told.items()]
            return original(*args)

        return begun

    def spawn(self, original):
        @functools.wraps(original)
        def begun(path, argv, env, *args, **kwargs):
            # None is this process's own, from Python 3.13 on. What else is no mapping is refused by Python.
            given = os.environ if env is None else env
            if isinstance(given, Mapping):
                env = self.environment({os.fsencode(name): os.fsencode(value) for name, value in given.items()})
            return original(path, argv, env, *args, **kwargs)

        return begun


def install():
    import _posixsubprocess

    births = Births()
    os.register_at_fork(before=births.before_fork, after_in_child=births.in_child)
    _posixsubprocess.fork_exec = births.fork_exec(_posixsubprocess.fork_exec)
    subprocess = sys.modules.get("subprocess")
    if hasattr(subprocess, "_fork_exec"):
        subprocess._fork_exec = _posixsubprocess.fork_exec
    for name in ("posix_spawn", "posix_spawnp"):
        if hasattr(os, name):
            setattr(os, name, births.spawn(getattr(os, name)))
