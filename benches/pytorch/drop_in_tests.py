"""PyTorch's own tests under one allocator: ``drop_in_tests.py FILE native|pytorch|pages SECONDS RESULTS [CLASS…]``.

In:  ``test/test_cuda.py`` of PyTorch's repository, at the installed release. Out: a line of JSON for each test in RESULTS: allocator,
name, outcome, words. Tests run in forks of this process, several at a time; each has a minute. One that fails, ends its process
or does not end is run once more by itself, when no other is running: that one counts. Tests that are in RESULTS already are left
out, so that a second call goes on.

Some tests compile an allocator that asks for managed memory, which libraries that compute nothing do not have: with ``MANAGED=0`` it asks
for ordinary device memory instead.
"""

import functools
import os
import signal
import sys
import tempfile
import time
import types
import unittest

from drop_in_forks import Results, all_of, one

FILE, ALLOCATOR, SECONDS, RESULTS, *CLASSES = sys.argv[1:]

#: How many tests run at once, and how many one fork runs: what a test leaves behind concerns few others.
AT_ONCE = int(os.environ.get("AT_ONCE", 6))
A_FORK = int(os.environ.get("A_FORK", 6))

#: Whether there is managed memory.
MANAGED = os.environ.get("MANAGED", "1") != "0"

#: Seconds of one test.
MOST = 60


class Late(BaseException):
    pass


def late(*_):
    raise Late("it took a minute")


class Told(unittest.TestResult):
    """Outcomes by the test's name."""

    def __init__(self, outcomes, sink):
        super().__init__()
        self.outcomes, self.sink = outcomes, sink

    def startTest(self, test):
        super().startTest(test)
        self.began = time.monotonic()
        self.say(short(test), "ended its process", "")
        signal.alarm(MOST)

    def stopTest(self, test):
        signal.alarm(0)
        super().stopTest(test)

    def say(self, name, outcome, words):
        # Kept outside of the process as well: it may end at any time.
        self.outcomes[name] = [outcome, words[:300], round(time.monotonic() - self.began, 2)]
        os.write(self.sink, f"{name}\0{outcome}\0{words[:300]}\n".replace("\n", " ").encode() + b"\n")

    def failed(self, test, error):
        self.say(short(test), "failed", f"{error[0].__name__}: {error[1]}")

    def addSuccess(self, test):
        if self.outcomes[short(test)][0] != "failed":
            self.say(short(test), "passed", "")

    def addError(self, test, error):
        self.failed(test, error)

    def addFailure(self, test, error):
        self.failed(test, error)

    def addSkip(self, test, reason):
        # A test that is skipped as a whole is not always begun.
        self.began = getattr(self, "began", time.monotonic())
        self.say(short(test), "skipped", str(reason))

    def addExpectedFailure(self, test, error):
        self.say(short(test), "passed", "")

    def addUnexpectedSuccess(self, test):
        self.say(short(test), "passed", "")

    def addSubTest(self, test, subtest, error):
        if error is not None:
            self.failed(test, error)


def short(test):
    return ".".join(test.id().split(".")[-2:])


def import_what_tests_need():
    """What takes long to import, and opens no GPU; the file itself, and some of what it imports, opens one."""
    for missing in ("psutil",):
        try:
            __import__(missing)
        except ImportError:
            # Few tests need it: those fail then, under every allocator.
            sys.modules[missing] = types.ModuleType(missing)
    import torch.utils._triton

    # What there is would be asked by opening the GPU; a fork asks.
    there = one(lambda: {"gpus": torch.cuda.device_count(), "triton": torch.utils._triton.has_triton()}, 120)
    if "failed" in there:
        sys.exit(f"a fork cannot use the GPU: {there['failed']}")
    torch.utils._triton.has_triton = functools.cache(lambda: there["triton"])
    asked = torch.cuda.device_count, torch.cuda.is_available
    torch.cuda.device_count, torch.cuda.is_available = lambda: there["gpus"], lambda: there["gpus"] > 0
    import torch.cuda._memory_viz
    import torch.testing._internal.autocast_test_lists
    import torch.testing._internal.common_cuda
    import torch.testing._internal.common_utils
    import torch.utils.checkpoint

    torch.cuda.device_count, torch.cuda.is_available = asked
    if torch.cuda.is_initialized():
        sys.exit("the GPU was opened by an import: forks could not use it")
    torch.set_num_threads(2)


def ask_for_device_memory():
    """Allocators that are compiled from now on take no managed memory."""
    from torch.utils import cpp_extension

    compiled = cpp_extension.load_inline

    @functools.wraps(compiled)
    def load_inline(name, cpp_sources, *words, **options):
        sources = [cpp_sources] if isinstance(cpp_sources, str) else cpp_sources
        # The runtime's own headers have a third argument for it.
        changed = [source.replace("cudaMallocManaged(", "cudaMalloc(") for source in sources]
        return compiled(name, changed, *words, **options)

    cpp_extension.load_inline = load_inline


def tests():
    """Those of the file, in a fork."""
    sys.path.insert(0, os.path.dirname(os.path.abspath(FILE)))
    sys.argv = [FILE]
    if ALLOCATOR != "native":
        import tonnage.torch

        tonnage.torch.install(policy=ALLOCATOR, publish=False, fallback=False)
    if not MANAGED:
        ask_for_device_memory()
    module = __import__(os.path.splitext(os.path.basename(FILE))[0])
    found = {}
    for name, kind in vars(module).items():
        if isinstance(kind, type) and issubclass(kind, unittest.TestCase) and (not CLASSES or name in CLASSES):
            for test in unittest.TestLoader().loadTestsFromTestCase(kind):
                found[short(test)] = test
    return found


def run(names, sink):
    """Runs tests one after the other, until one fails: what that left behind concerns no other."""
    signal.signal(signal.SIGALRM, late)
    found, outcomes = tests(), {}
    for name in names:
        test = found[name]
        result = Told(outcomes, sink)
        try:
            test.run(result)
        except Late:
            result.say(name, "failed", "it took a minute")
        outcomes.setdefault(name, ["skipped", "", 0])
        if outcomes[name][0] == "failed":
            break
    return outcomes


def seen(sink):
    """What a fork has told of before it ended."""
    outcomes = {}
    with open(sink, errors="replace") as file:
        for line in file:
            name, outcome, words = (line.rstrip("\n").split("\0") + ["", ""])[:3]
            outcomes[name] = [outcome, words, None]
    return outcomes


def batch(names, number, folder):
    """A name, a work and seconds, for a fork that runs these tests."""
    path = os.path.join(folder, str(number))
    sink = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND)
    return (path, sink), functools.partial(run, names, sink), MOST * len(names) + 30


def main():
    import_what_tests_need()
    results = Results(RESULTS)
    # One that failed beside others is to be run by itself yet.
    known = {row["test"] for row in results.of("tests") if row["allocator"] == ALLOCATOR and (row["alone"] or row["outcome"] != "failed")}
    listed = one(lambda: list(tests()), 120)
    if isinstance(listed, dict):
        print("the tests cannot be listed:", listed["failed"])
        sys.exit(1)
    left = [name for name in listed if name not in known]
    until = time.monotonic() + float(SECONDS)
    failed, numbers = [], iter(range(1 << 30))

    def take(key, answer, alone):
        path, sink = key
        os.close(sink)
        outcomes = seen(path) | (answer if "failed" not in answer else {})
        os.unlink(path)
        for name, (outcome, words, seconds) in outcomes.items():
            if outcome == "ended its process":
                if answer.get("failed", "").startswith("out of time") and time.monotonic() > until:
                    # It was cut off, which tells nothing of it.
                    continue
                outcome, words = "failed", answer.get("failed", "it ended its process")
            row = {"part": "tests", "allocator": ALLOCATOR, "test": name, "outcome": outcome, "words": words, "s": seconds, "alone": alone}
            # Told at once: this program may be ended at any time. Of two rows of a test the later one counts.
            results.add(row)
            if name in left:
                left.remove(name)
            if outcome == "failed" and not alone:
                failed.append(name)

    with tempfile.TemporaryDirectory() as folder:
        while left and time.monotonic() < until:
            before = list(left)
            # The file's order, dealt out, so that slow neighbours do not meet in one fork.
            forks = max(1, -(-len(left) // A_FORK))
            works = [batch(left[number::forks], next(numbers), folder) for number in range(forks)]
            all_of(works, AT_ONCE, lambda key, answer: take(key, answer, False), until)
            for path, sink in (key for key, _, _ in works):
                # Of those that were not begun.
                if os.path.exists(path):
                    os.close(sink)
            if before == left:
                print("no test can be run: the forks end before", file=sys.stderr)
                break
        for name in failed:
            # By itself, if there is time for that.
            remaining = until + 15 - time.monotonic()
            if remaining > 15:
                key, work, seconds = batch([name], next(numbers), folder)
                take(key, one(work, min(seconds, remaining)), True)
    last = {row["test"]: row["outcome"] for row in results.of("tests") if row["allocator"] == ALLOCATOR}
    counted = {outcome: list(last.values()).count(outcome) for outcome in sorted(set(last.values()))}
    print(ALLOCATOR, counted, f"{len(left)} not run" if left else "", flush=True)


main()
