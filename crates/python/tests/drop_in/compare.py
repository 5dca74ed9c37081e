"""PyTorch's allocator beside the drop-in, on the fake CUDA libraries: ``compare.py [--light] [--scripts] [CASE…]``.

In:  a Python whose CUDA libraries are the fake ones (``tonnage-on-fakes python compare.py``). Out: a table, and exit status 1 if
anything differs: with the policy ``pytorch`` every entry of the history with its address and stream, every figure, every answer;
with ``pages`` every request. Then the programs of ``programs.py``. Scripts that need packages beside PyTorch, or compile, run when they are
named, such as ``script_compile_mlp``, or with ``--scripts``: then all scripts do, and nothing else.

PyTorch is imported once; each case runs in forks of this process, one for each allocator.
"""

import faulthandler
import itertools
import os
import pickle
import sys
import tempfile
import traceback
import warnings

import tonnage.torch
import torch

from cases import CASES, release
from programs import PROGRAMS

#: Where the fake libraries are told what the device is.
PROFILE = "TONNAGE_FAKE_PROFILE"


#: What one fork may take: many times what the longest does. One that waits for itself would keep whoever waits for it for good.
MOST_SECONDS = int(os.environ.get("MOST_SECONDS", 1800))


def ended(status):
    """How a fork ended that told nothing."""
    code = os.waitstatus_to_exitcode(status)
    return f"it did not end in {MOST_SECONDS} s; where its threads were stands above" if code == 1 else f"it ended with status {code}"


def run(name, allocator, folder):
    """The case under an allocator: what it told, or why it did not."""
    out = os.path.join(folder, f"{name}.{allocator}.pickle")
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        faulthandler.dump_traceback_later(MOST_SECONDS, exit=True)
        status = 1
        try:
            in_fork(name, allocator, out, folder)
            status = 0
        except BaseException:
            with open(out, "wb") as file:
                pickle.dump(traceback.format_exc(limit=-6), file)
        finally:
            # The order in which the interpreter drops what is left is no one's.
            os._exit(status)
    _, status = os.waitpid(child, 0)
    if not os.path.exists(out):
        return None, ended(status)
    with open(out, "rb") as file:
        answer = pickle.load(file)
    return (None, answer.strip().replace("\n", " / ")) if isinstance(answer, str) else (answer, "")


def run_program(name, folder):
    """What went wrong with a program, or nothing."""
    os.mkdir(folder)
    out = os.path.join(folder, "wrong")
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        faulthandler.dump_traceback_later(MOST_SECONDS, exit=True)
        try:
            PROGRAMS[name](folder)
        except BaseException:
            with open(out, "w") as file:
                file.write(traceback.format_exc(limit=-6))
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    if os.path.exists(out):
        with open(out) as file:
            return file.read().strip()
    return ended(status) if status else ""


def in_fork(name, allocator, out, folder):
    case = CASES[name]
    for key in [key for key in os.environ if key.startswith("PYTORCH_")]:
        del os.environ[key]
    if case.conf:
        os.environ["PYTORCH_ALLOC_CONF" if release(torch) >= (2, 10) else "PYTORCH_CUDA_ALLOC_CONF"] = case.conf
    changes = {"devices": case.devices}
    if case.limit:
        changes.update(total=case.limit, capacity=case.limit)
    os.environ[PROFILE] = changed(os.environ[PROFILE], changes, out + ".profile")
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = os.path.join(folder, f"inductor.{name}.{allocator}")
    os.environ["TRITON_CACHE_DIR"] = os.path.join(folder, f"triton.{name}.{allocator}")
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
    if allocator != "native":
        tonnage.torch.install(policy=allocator, publish=False, fallback=False)
    if name not in ("contexts", "every_figure"):
        # Frames are of no interest here, and differ.
        record = dict(enabled="all", context=None, stacks="python", max_entries=sys.maxsize)
        torch.cuda._lazy_call(lambda: torch.cuda.memory._record_memory_history(**record))
    torch.manual_seed(0)
    returned = case.run(torch)
    torch.cuda.synchronize()
    # 2.9 leaves the device current of which a share was allowed.
    answer = {"returned": returned, "stats": dict(torch.cuda.memory_stats(0)), "snapshot": torch.cuda.memory._snapshot()}
    with open(out, "wb") as file:
        pickle.dump(answer, file)


def changed(profile, changes, path):
    """A device that differs in these lines."""
    with open(profile) as file:
        lines = [line for line in file if line.split()[0] not in changes]
    with open(path, "w") as file:
        file.writelines([*lines, *(f"{name} {value}\n" for name, value in changes.items())])
    return path


#: What differs from run to run.
TIMES = {"time_us", "start_time_us", "id"}


def plain(value):
    """Without times."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items() if key not in TIMES}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value


def difference(one, other, path=""):
    """Where two answers differ first, or nothing."""
    if isinstance(one, dict) and isinstance(other, dict):
        for key in [*one, *(key for key in other if key not in one)]:
            if key not in one or key not in other:
                return f"{path}.{key}: only under {'the drop-in' if key in other else 'PyTorch'}"
            found = difference(one[key], other[key], f"{path}.{key}")
            if found:
                return found
        return ""
    if isinstance(one, list) and isinstance(other, list):
        for number, (here, there) in enumerate(zip(one, other)):
            found = difference(here, there, f"{path}[{number}]")
            if found:
                return found
        return "" if len(one) == len(other) else f"{path}: {len(one)} and {len(other)} of them"
    if isinstance(one, float) and isinstance(other, float) and abs(one - other) < 1e-12:
        return ""
    return "" if one == other else f"{path}: {str(one)[:300]!r} and {str(other)[:300]!r}"


def sorted_runs(entries, kinds):
    """Entries with runs of frees in order of address: where they are completed PyTorch walks a hash table."""
    result, run = [], []
    for entry in [*entries, None]:
        if entry is not None and entry["action"] in kinds:
            run.append(entry)
            continue
        # A free is asked for before it is completed.
        result += sorted(run, key=lambda it: (it["addr"], it["action"] == "free_completed"))
        run = []
        if entry is not None:
            result.append(entry)
    return result


def of_the_way(figure):
    """Whether a figure of free parts tells of the past."""
    return figure.startswith("inactive_split") and not figure.endswith("current")


def compare(native, ours, case):
    if case.frees_in_any_order and release(torch) >= (2, 12):
        # Of equal free blocks the oldest serves there, so that the order decides addresses: two runs of PyTorch differ.
        return difference(requests(native), requests(ours), "requests")
    kinds = {"free_completed", "free_requested"} if case.frees_in_any_order else {"free_completed"}
    for answer in (native, ours):
        snapshot = answer["snapshot"]
        snapshot["segments"].sort(key=lambda segment: segment["address"])
        # What happened is compared before what came of it.
        traces = [sorted_runs(trace, kinds) for trace in snapshot.pop("device_traces")]
        answer["snapshot"] = {"device_traces": traces, **snapshot}
        if case.frees_in_any_order:
            # Which of two neighbours goes first decides how many free parts there were on the way.
            answer["stats"] = {key: value for key, value in answer["stats"].items() if not of_the_way(key)}
    for part in ("snapshot", "returned", "stats"):
        found = difference(plain(native[part]), plain(ours[part]), part)
        if found:
            return found
    return ""


def requests(answer):
    """What was asked for and given back; tensors that go at once may go in any order, such as that of the host's addresses."""
    entries = (entry for trace in answer["snapshot"]["device_traces"] for entry in trace)
    asked = [(entry["action"], entry["size"]) for entry in entries if entry["action"] in ("alloc", "free_requested")]
    runs = itertools.groupby(asked, key=lambda it: it[0])
    return [it for action, run in runs for it in (sorted(run) if action == "free_requested" else run)]


def main(*words):
    # What PyTorch says of its own old names, three times a case.
    warnings.simplefilter("ignore")
    names = [word for word in words if not word.startswith("--")]
    if "--scripts" in words:
        names += [name for name in CASES if name.startswith("script_")]
    light = "--light" in words
    wrong = 0
    print("| case | entries | pytorch | pages |\n| --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory(prefix="tonnage-drop-in-") as folder:
        chosen = [name for name in names if name in CASES] if names else [*CASES]
        for name in chosen:
            if not names and (CASES[name].named or light and CASES[name].heavy):
                continue
            if release(torch) < CASES[name].since:
                print(f"| {name} | not of this release | | |", flush=True)
                continue
            native, failed = run(name, "native", folder)
            if native is None:
                wrong += 1
                print(f"| {name} | PyTorch itself fails: {failed} |", flush=True)
                continue
            ours, failed = run(name, "pytorch", folder)
            same = failed or compare(native, ours, CASES[name])
            paged, failed = run(name, "pages", folder)
            asked = failed or difference(requests(native), requests(paged), "requests")
            count = sum(map(len, native["snapshot"]["device_traces"]))
            wrong += bool(same) + bool(asked)
            print(f"| {name} | {count} | {same or 'equal'} | {asked or 'the same requests'} |", flush=True)
        for name in [name for name in names if name in PROGRAMS] if names else [*PROGRAMS]:
            failed = run_program(name, os.path.join(folder, name))
            wrong += bool(failed)
            print(f"{name}: {failed or 'ok'}", flush=True)
    unknown = [name for name in names if name not in CASES and name not in PROGRAMS]
    if unknown:
        sys.exit(f"there is no case or program {', '.join(unknown)}")
    if wrong:
        print(f"{wrong} differences", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main(*sys.argv[1:])
