"""Work in forks of a process that has imported PyTorch and used no GPU: an import takes longer than most of what is measured.

A fork has an output of its own, into a file of errors, and answers through a pipe.
"""

import ctypes
import json
import os
import select
import signal
import sys
import time
import traceback

# To ask how many GPUs there are must not open one: it would be of no use to the forks.
os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")

PR_SET_PDEATHSIG = 1


class Fork:
    """A function that works in a process of its own. What it returns, as JSON, or what ended it, is its answer."""

    def __init__(self, work, seconds):
        self.until = time.monotonic() + seconds
        self.seconds = seconds
        self.text = b""
        self.over = False
        self.pipe, there = os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        self.child = os.fork()
        if self.child == 0:
            self._work(work, there)
        os.close(there)

    def _work(self, work, there):
        status = 1
        try:
            os.setpgid(0, 0)
            # Whoever waits for this program's output would wait for what a fork began, and left behind, as well.
            os.dup2(2, 1)
            # It goes with its parent, however that goes.
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            answer = work()
            status = 0
        except BaseException as error:
            traceback.print_exc()
            answer = {"failed": f"{type(error).__name__}: {str(error)[:400]}"}
        try:
            with os.fdopen(there, "w") as file:
                json.dump(answer, file)
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            # What the interpreter would destroy at its end is of no interest.
            os._exit(status)

    def fileno(self):
        return self.pipe

    def read_on(self):
        """What it has said by now; its answer once it is over, else nothing."""
        part = os.read(self.pipe, 1 << 16)
        self.text += part
        return None if part else self._end()

    def kill(self):
        """Ends it, and what it began; nothing if it is over."""
        if self.over:
            return
        for kill, whom in ((os.killpg, self.child), (os.kill, self.child)):
            try:
                kill(whom, signal.SIGKILL)
            except ProcessLookupError:
                pass

    def give_up(self):
        self.kill()
        self.over = True
        os.close(self.pipe)
        os.waitpid(self.child, 0)
        return {"failed": f"out of time after {self.seconds:.0f} s"}

    def _end(self):
        self.over = True
        os.close(self.pipe)
        _, status = os.waitpid(self.child, 0)
        try:
            return json.loads(self.text)
        except ValueError:
            return {"failed": f"the process ended with status {os.waitstatus_to_exitcode(status)}"}


def all_of(works, at_once, tell, until):
    """Runs works, pairs of a name and a function and its seconds, so many at once; ``tell`` is told each name with its answer.
    After ``until`` none is begun, and those that run have a little time left. Says how many were not begun."""
    waiting, running = list(works), {}
    while waiting or running:
        now = time.monotonic()
        if now > until:
            left, waiting = len(waiting), []
            if left:
                print(f"# out of time: {left} not begun", flush=True)
        while waiting and len(running) < at_once:
            name, work, seconds = waiting.pop(0)
            running[name] = Fork(work, min(seconds, max(10, until + 10 - now)))
        ready, _, _ = select.select(running.values(), [], [], 0.5) if running else ((), (), ())
        for name, fork in list(running.items()):
            answer = None
            if fork in ready:
                answer = fork.read_on()
            elif time.monotonic() > fork.until:
                answer = fork.give_up()
            if answer is not None:
                del running[name]
                tell(name, answer)


def one(work, seconds):
    """One work's answer."""
    answers = []
    all_of([("", work, seconds)], 1, lambda _, answer: answers.append(answer), time.monotonic() + seconds)
    return answers[0]


class Results:
    """Lines of JSON in a file, each with its part; those that are there already are not made again."""

    def __init__(self, path):
        self.path = path
        self.rows = []
        if os.path.exists(path):
            with open(path) as file:
                self.rows = [json.loads(line) for line in file if line.startswith("{")]

    def of(self, part):
        return [row for row in self.rows if row["part"] == part]

    def has(self, **keys):
        """Whether there is a row of these; one that was cut off is none."""
        cut_off = ("out of time", "the process ended", "a process has ended")
        whole = [row for row in self.rows if not str(row.get("failed", "")).startswith(cut_off)]
        return any(all(row.get(key) == value for key, value in keys.items()) for row in whole)

    def add(self, row):
        self.rows.append(row)
        with open(self.path, "a") as file:
            file.write(json.dumps(row) + "\n")


def import_what_is_needed(threads):
    """PyTorch and what workloads are made of, once for all forks."""
    import torch

    for module, names in {
        "torchvision.models.segmentation": ["deeplabv3_resnet50"],
        "transformers": ["GPT2LMHeadModel", "BertForMaskedLM", "LlamaForCausalLM"],
    }.items():
        try:
            found = __import__(module, fromlist=names)
            for name in names:
                getattr(found, name)
        except Exception as error:
            # Whoever needs it says so.
            print(f"# {module}: {error}", file=sys.stderr)
    if torch.cuda.is_initialized():
        sys.exit("the GPU was opened by an import: forks could not use it")
    torch.set_num_threads(threads)
