"""PyTorch's own tests under one allocator: ``drop_in_tests.py FILE native|pytorch|pages SECONDS [CLASS…]``.

In:  ``test/test_cuda.py`` of PyTorch's repository, at the installed release. Out: a line of JSON with the outcome of each test.
Each test has a minute; what is left when time is over is told as such.
"""

import json
import os
import signal
import sys
import time
import types
import unittest

FILE, ALLOCATOR, SECONDS = sys.argv[1], sys.argv[2], float(sys.argv[3])
CLASSES = sys.argv[4:]
sys.path.insert(0, os.path.dirname(os.path.abspath(FILE)))

try:
    import psutil
except ImportError:
    # Few tests need it: those fail then, under every allocator.
    sys.modules["psutil"] = types.ModuleType("psutil")

import torch

if ALLOCATOR != "native":
    import tonnage.torch

    tonnage.torch.install(policy=ALLOCATOR, publish=False)

END = time.monotonic() + SECONDS
outcomes = {}


class Late(BaseException):
    pass


def late(*_):
    raise Late("it took a minute")


class Result(unittest.TestResult):
    def startTest(self, test):
        super().startTest(test)
        if time.monotonic() > END:
            self.shouldStop = True
        signal.alarm(60)

    def stopTest(self, test):
        signal.alarm(0)
        super().stopTest(test)

    def note(self, test, outcome, error=None):
        words = "" if error is None else f"{error[0].__name__}: {str(error[1])[:300]}"
        outcomes[test.id().split(".", 1)[-1]] = [outcome, words]

    def addSuccess(self, test):
        self.note(test, "passed")

    def addError(self, test, error):
        self.note(test, "failed", error)

    def addFailure(self, test, error):
        self.note(test, "failed", error)

    def addSkip(self, test, reason):
        self.note(test, "skipped")
        outcomes[test.id().split(".", 1)[-1]][1] = str(reason)[:100]

    def addExpectedFailure(self, test, error):
        self.note(test, "passed")

    def addUnexpectedSuccess(self, test):
        self.note(test, "passed")

    def addSubTest(self, test, subtest, error):
        if error is not None:
            self.note(test, "failed", error)


signal.signal(signal.SIGALRM, late)
name = os.path.splitext(os.path.basename(FILE))[0]
sys.argv = [FILE]
module = __import__(name)
loader = unittest.TestLoader()
suite = unittest.TestSuite()
for kind, item in list(vars(module).items()):
    if isinstance(item, type) and issubclass(item, unittest.TestCase) and (not CLASSES or kind in CLASSES):
        suite.addTests(loader.loadTestsFromTestCase(item))
count = suite.countTestCases()
try:
    suite.run(Result())
except Late as error:
    outcomes["a test that did not end"] = ["failed", str(error)]
finally:
    print(json.dumps({"allocator": ALLOCATOR, "tests": count, "outcomes": outcomes}), flush=True)
os._exit(0)
