"""What a plan learned from an iteration could give beside the policy `pages`, estimated from recordings.

    python3 benches/pages_plan.py TONNAGE RECORDING.pickle.zst...

Blocks above 1 MiB that live and die in one iteration are planned: all lifetimes known, each at the lowest place where nothing that lives at
the same time lies, the largest first. The arena is as large as the largest plan, those of the three iterations with most live bytes. All else is taken to
be served by `pages` at 1.02 x what is live of it. That favours the plan: it is that of the longest iteration, known beforehand. Beside it stands how many
requests of an iteration are no larger than those at their place in the one before, which is what a learned plan can serve.
"""
import bisect
import json
import pickle
import subprocess
import sys

GRANULE = 2 << 20
SMALL = 1 << 20
REST = 1.02


def output_of(*command):
    return subprocess.run(command, capture_output=True, check=True).stdout


def most_live(items):
    now = most = 0
    for _, change in sorted([(start, size) for size, start, _ in items] + [(end, -size) for size, _, end in items]):
        now += change
        most = max(most, now)
    return most


def arena(items):
    """The height of a plan for (size, start, end)."""
    placed, height = [], 0
    for size, start, end in sorted(items, reverse=True):
        place = 0
        for begin, behind in sorted((at, at + other) for at, other, first, last in placed if first < end and start < last):
            if begin - place >= size:
                break
            place = max(place, behind)
        placed.append((place, size, start, end))
        height = max(height, place + size)
    return -(-height // GRANULE) * GRANULE


def lifetimes(trace):
    live, found = {}, []
    for entry, event in enumerate(trace):
        if event["action"] == "alloc":
            live[event["addr"]] = len(found)
            found.append([-(-event["size"] // 512) * 512, entry, len(trace) + 1])
        elif event["action"] == "free_completed" and event["addr"] in live:
            found[live.pop(event["addr"])][2] = entry
    return found


def main():
    tonnage, *paths = sys.argv[1:]
    plans = pages = 1.0
    count = 0
    for path in paths:
        name = path.split("/")[-1].split(".")[0]
        replayed = json.loads(output_of(tonnage, "replay", path, "--policy", "pages", "--json"))
        report = json.loads(output_of(tonnage, "report", path, "--json"))
        starts = [each["first_event"] for each in (report.get("growth") or report["files"][0]["report"]["growth"])["each"]]
        waste, floor = replayed["waste_ratio"], replayed["floor"]
        if not starts:
            print(f"{name:18} no loop; pages {waste:.4f}")
            continue
        trace = pickle.loads(output_of("zstd", "-dc", path))["device_traces"][replayed["device"]]
        ends = starts[1:] + [len(trace)]
        planned, rest = [[] for _ in starts], []
        for item in lifetimes(trace):
            size, start, end = item
            place = bisect.bisect_right(starts, start) - 1
            (planned[place] if place >= 0 and end < ends[place] and size > SMALL else rest).append(item)
        pairs = list(zip(planned, planned[1:]))
        served = [sum(now[0] <= was[0] for was, now in zip(*pair)) / max(1, len(pair[1])) for pair in pairs]
        same = sum([it[0] for it in one] == [it[0] for it in other] for one, other in pairs)
        height = max(map(arena, sorted(planned, key=most_live)[-3:]))
        # What is not planned, in the loop: clipped to its beginning.
        in_loop = [(size, max(start, starts[0]), end) for size, start, end in rest if end > starts[0]]
        plan = max(most_live(rest) * REST, height + most_live(in_loop) * REST) / floor
        print(
            f"{name:18} {len(planned):2} iterations, {same} like the one before; {min(served):.2f} to {max(served):.2f} of "
            f"{len(planned[-1])} requests no larger than before; plan {plan:.4f}, pages {waste:.4f}"
        )
        plans, pages, count = plans * plan, pages * waste, count + 1
    print(f"geometric mean of {count}: plan {plans ** (1 / count):.4f}, pages {pages ** (1 / count):.4f}")


main()
