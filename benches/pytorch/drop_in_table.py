"""What ``drop_in_gpu.sh`` measured: ``drop_in_table.py RESULTS``."""

import math
import statistics
import sys

from drop_in_forks import Results


def gib(count):
    return f"{count / 2**30:.3f}"


def by_name(rows):
    table = {}
    for row in rows:
        table.setdefault(row["name"], {})[row["allocator"], row.get("turn", 0)] = row
    return table


def losses(results, part):
    rows = by_name(results.of(part))
    if not rows:
        return
    print(f"\n| {part}, deterministic | how | steps | native again | pytorch | pages | expandable |\n| --- " + "| --- " * 6 + "|")
    for name, runs in rows.items():
        first = runs.get(("native", 0))
        cells = []
        for other in (("native", 1), ("pytorch", 0), ("pages", 0), ("expandable", 0)):
            cells.append(compared(first, runs.get(other)))
        count = len(first.get("losses", [])) if first else 0
        how = "" if first is None else first.get("failed", first.get("how") or "")[:70]
        print(f"| {name} | {how} | {count} | {' | '.join(cells)} |")


def compared(first, row):
    if row is None or first is None:
        return "not run"
    if "failed" in row or "failed" in first:
        return row.get("failed", "PyTorch's failed")[:70]
    pairs = enumerate(zip(first["losses"], row["losses"]))
    at = next((number for number, (here, there) in pairs if here != there and not (here != here and there != there)), None)
    if at is None and len(first["losses"]) == len(row["losses"]):
        return "equal" if first["losses"] else "nothing to compare"
    return f"differ from {len(row['losses']) if at is None else at} on"


def interval(values):
    """The median, and between what it lies with 95 %: by the order of the values, whatever their distribution."""
    values = sorted(values)
    aside = max(0, math.floor((len(values) - 1.96 * math.sqrt(len(values))) / 2))
    return statistics.median(values), values[aside], values[-1 - aside]


def steps(results):
    rows = results.of("steps")
    if not rows:
        return
    print("\n| steps in turns | rounds × steps | native, ms | queued after, ms | native again | pytorch | pages |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for kind in ("wall", "gpu"):
        for row in rows:
            times = row[kind]
            if "failed" in row or not times.get("native"):
                print(f"| {row['name']} | {row.get('failed', 'no round')} |")
                continue
            one, two = times["native"], times["native again"]
            cells = []
            for allocator in ("native again", "pytorch", "pages"):
                # What is compared with the other, both with the mean of PyTorch's two around them.
                base = one if allocator == "native again" else [(here + there) / 2 for here, there in zip(one, two)]
                middle, low, high = interval([(ours / theirs - 1) * 100 for ours, theirs in zip(times[allocator], base)])
                cells.append(f"{middle:+.2f} % ({low:+.2f} to {high:+.2f})")
            middle, low, high = interval(one)
            queued = statistics.median(row["queued"]["native"])
            print(
                f"| {row['name']}, {kind} | {len(one)} × {4 * row['cycles']} | {middle:.2f} ({min(one):.2f} to {max(one):.2f}) | "
                f"{queued:.2f} | {' | '.join(cells)} |"
            )


def peaks(results):
    rows = by_name(results.of("peaks"))
    if not rows:
        return
    print("\n| peak reserved, GiB | in use | native | expandable | pytorch | pages | driver calls, native and pages |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for name, runs in rows.items():
        cell = lambda allocator, key: _cell(runs.get((allocator, 0)), key)
        cells = [cell("native", "allocated"), *(cell(it, "reserved") for it in ("native", "expandable", "pytorch", "pages"))]
        calls = [str(runs[it, 0]["driver_calls"]) if (it, 0) in runs and "failed" not in runs[it, 0] else "" for it in ("native", "pages")]
        print(f"| {name} | {' | '.join(cells)} | {' '.join(calls)} |")


def _cell(row, key):
    if row is None:
        return "not run"
    return row["failed"][:60] if "failed" in row else gib(row[key])


def limited(results):
    rows = by_name(results.of("limit"))
    if not rows:
        return
    print("\n| 1.05 × live | limit, GiB | native | expandable | pages |\n| --- | --- | --- | --- | --- |")
    for name, runs in rows.items():
        cells = []
        for allocator in ("native", "expandable", "pages"):
            row = runs.get((allocator, 0))
            failed = row and row.get("failed")
            cells.append("not run" if row is None else failed[:70] if failed else f"trains, {row['retries']} retries")
        limit = next(iter(runs.values()))["limit"]
        print(f"| {name} | {gib(limit)} | {' | '.join(cells)} |")


def costs(results):
    by = {}
    for row in results.of("costs"):
        for key, value in row.get("ns", {}).items():
            by.setdefault(key, {}).setdefault(row["allocator"], []).append(value)
    if by:
        print("\n| ns, median of rounds (least to most) | native | pytorch | pages |\n| --- | --- | --- | --- |")
    for key, values in by.items():
        cells = []
        for name in ("native", "pytorch", "pages"):
            them = values.get(name)
            cells.append(f"{statistics.median(them):.0f} ({min(them):.0f} to {max(them):.0f})" if them else "not run")
        print(f"| {key} | {' | '.join(cells)} |")


def tests(results):
    answers = {}
    for row in results.of("tests"):
        answers.setdefault(row["allocator"], {})[row["test"]] = (row["outcome"], row["words"])
    native = answers.get("native", {})
    for allocator, outcomes in answers.items():
        count = {}
        for outcome, _ in outcomes.values():
            count[outcome] = count.get(outcome, 0) + 1
        print(f"\ntest_cuda.py, {allocator}: {count}")
        for name, (outcome, words) in sorted(outcomes.items()):
            if outcome == "failed":
                there = "" if allocator == "native" else f" (native: {native.get(name, ['not run'])[0]})"
                print(f"  {name}: {' '.join(words.split())[:250]}{there}")


def extras(results):
    by = {}
    for row in results.of("extras"):
        by.setdefault(row["allocator"], {})[row["program"]] = row["said"]
    for allocator, said in by.items():
        print(f"\nextras, {allocator}: {', '.join(f'{key} {value}' for key, value in said.items())}")


if __name__ == "__main__":
    found = Results(sys.argv[1])
    losses(found, "losses")
    losses(found, "scripts")
    for part in (steps, peaks, limited, costs, extras, tests):
        part(found)
