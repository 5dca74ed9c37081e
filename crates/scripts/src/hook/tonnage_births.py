"""Which process of a script this is: the name of the one that began it, and how many that one had begun before.

A script begins its processes in the same order each time that it runs, so that what one of them read in the first run is told
to the same one in the second. What others than Python begin has their name, and is told apart by the order of reads.
"""

import functools
import os
import sys

NAME = "TONNAGE_BIRTH"

ENVIRONMENT = 5
"""Which argument of `fork_exec` has the new process's environment, if it has one of its own."""


class Births:
    def __init__(self):
        self.name, self.count = os.environ.setdefault(NAME, "0"), 0
        self.coming = None

    def next(self):
        self.count += 1
        return f"{self.name}.{self.count}"

    def before_fork(self):
        self.coming = self.next()

    def in_child(self):
        self.name, self.count = self.coming, 0
        os.environ[NAME] = self.name

    def fork_exec(self, original):
        """Of `subprocess`, and of `multiprocessing` that spawns: neither forks by `os.fork`."""

        @functools.wraps(original)
        def begun(*args):
            args = list(args)
            if len(args) > ENVIRONMENT:
                start = os.fsencode(NAME) + b"="
                given = args[ENVIRONMENT]
                if given is None:
                    given = [name + b"=" + value for name, value in os.environb.items()]
                given = [entry for entry in given if not entry.startswith(start)]
                args[ENVIRONMENT] = [*given, start + os.fsencode(self.next())]
            return original(*args)

        return begun

    def spawn(self, original):
        @functools.wraps(original)
        def begun(path, argv, env, *args, **kwargs):
            return original(path, argv, {**env, NAME: self.next()}, *args, **kwargs)

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
