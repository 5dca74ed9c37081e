"""PyTorch's own tests under one allocator: ``drop_in_tests.py FILE native|pytorch|pages SECONDS OUT [CLASS…]``.

In:  ``test/test_cuda.py`` of PyTorch's repository, at the installed release. Out: a line of JSON for each test in OUT, as soon as it
is over: allocator, name, outcome, words. Each test has a minute. A test that ends the process, or does not end, is told as failed.
After one that failed the rest goes on in another process, so that what it left behind (limits, pools) concerns no other. Tests that
are in OUT already are left out, so that a second call goes on.
"""

import json
import os
import signal
import subprocess
import sys
import time
import types
import unittest

FILE, ALLOCATOR, SECONDS, OUT = sys.argv[1], sys.argv[2], float(sys.argv[3]), sys.argv[4]
CLASSES = sys.argv[5:]
BEGUN = OUT + ".begun"

# How a process ends after a test that failed.
GOES_ON = 5


def write(name, outcome, words=""):
    with open(OUT, "a") as file:
        file.write(json.dumps({"allocator": ALLOCATOR, "name": name, "outcome": outcome, "words": words}) + "\n")


def known():
    """Tests that have an outcome under this allocator."""
    if not os.path.exists(OUT):
        return set()
    with open(OUT) as file:
        rows = map(json.loads, file)
        return {row["name"] for row in rows if row["allocator"] == ALLOCATOR}


def see_to_all():
    """Runs this program until no test is left, or time is over."""
    end = time.monotonic() + SECONDS
    while end - time.monotonic() > 5:
        words = [sys.executable, __file__, FILE, ALLOCATOR, str(end - time.monotonic()), OUT, *CLASSES]
        child = subprocess.Popen(words, env={**os.environ, "IN_CHILD": "1"})
        try:
            status = child.wait(max(1, end - time.monotonic() + 20))
        except subprocess.TimeoutExpired:
            child.kill()
            status = child.wait()
        if status == 0:
            break
        if status == GOES_ON:
            continue
        with open(BEGUN) as file:
            name = file.read()
        if name in known():
            print(f"the process ended with status {status} between tests", file=sys.stderr)
            break
        write(name, "failed", f"the process ended with status {status}")
    rows = {}
    with open(OUT) as file:
        for row in map(json.loads, file):
            if row["allocator"] == ALLOCATOR:
                rows[row["outcome"]] = rows.get(row["outcome"], 0) + 1
    print(ALLOCATOR, rows, flush=True)


if os.environ.get("IN_CHILD") != "1":
    see_to_all()
    sys.exit(0)

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


def short(test):
    return test.id().split(".", 1)[-1]


class Late(BaseException):
    pass


def late(*_):
    raise Late("it took a minute")


class Result(unittest.TestResult):
    failed = False

    def startTest(self, test):
        super().startTest(test)
        with open(BEGUN, "w") as file:
            file.write(short(test))
        signal.alarm(60)

    def stopTest(self, test):
        signal.alarm(0)
        if self.failed:
            os._exit(GOES_ON)
        if time.monotonic() > END:
            self.shouldStop = True
        super().stopTest(test)

    def note(self, test, outcome, error=None):
        self.failed = self.failed or outcome == "failed"
        write(short(test), outcome, "" if error is None else f"{error[0].__name__}: {str(error[1])[:300]}")

    def addSuccess(self, test):
        self.note(test, "passed")

    def addError(self, test, error):
        self.note(test, "failed", error)

    def addFailure(self, test, error):
        self.note(test, "failed", error)

    def addSkip(self, test, reason):
        write(short(test), "skipped", str(reason)[:100])

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
suite, done = unittest.TestSuite(), known()
kinds = [(name, kind) for name, kind in vars(module).items() if isinstance(kind, type) and issubclass(kind, unittest.TestCase)]
# In the order in which they are named, if they are.
kinds = sorted((it for it in kinds if not CLASSES or it[0] in CLASSES), key=lambda it: CLASSES.index(it[0]) if CLASSES else 0)
for _, kind in kinds:
    suite.addTests(test for test in loader.loadTestsFromTestCase(kind) if short(test) not in done)
try:
    suite.run(Result())
except Late:
    os._exit(3)
os._exit(0)
