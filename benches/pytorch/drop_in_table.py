"""What ``drop_in_gpu.sh`` measured: ``drop_in_table.py table FOLDER``; ``limits FILE`` for limits to try."""

import json
import os
import statistics
import sys


def rows(path):
    if not os.path.exists(path):
        return []
    with open(path) as file:
        return [json.loads(line) for line in file if line.startswith("{")]


def gib(count):
    return f"{count / 2**30:.3f}"


def limits(path):
    """1.05 of what was live at most, for each workload."""
    seen = {}
    for row in rows(path):
        if row["allocator"] == "native" and "failed" not in row:
            seen.setdefault(row["name"], int(row["allocated"] * 1.05))
    for name, limit in seen.items():
        print(name, limit)


def losses(folder):
    by = {}
    for row in rows(os.path.join(folder, "losses.jsonl")):
        by.setdefault(row["name"], []).append(row)
    print("| losses, deterministic | native again | pytorch | pages | expandable |\n| --- | --- | --- | --- | --- |")
    for name, all_rows in by.items():
        first, *others = all_rows
        words = []
        for row in others:
            same = row["losses"] == first["losses"]
            words.append(row.get("failed", "equal" if same else f"differ from step {differs(first, row)} on")[:80])
        print(f"| {name} | {' | '.join(words)} |")


def differs(one, other):
    pairs = enumerate(zip(one["losses"], other["losses"]))
    return next((number for number, (here, there) in pairs if here != there), len(other["losses"]))


def steps(folder):
    print("\n| steps in turns | rounds | native, ms | pytorch beside it | pages beside it |\n| --- | --- | --- | --- | --- |")
    for row in rows(os.path.join(folder, "steps.jsonl")):
        native = row["rounds"]["native"]
        cells = []
        for allocator in ("pytorch", "pages"):
            shares = sorted((ours / theirs - 1) * 100 for ours, theirs in zip(row["rounds"].get(allocator, []), native))
            cells.append(
                f"{statistics.median(shares):+.2f} % ({shares[0]:+.2f} to {shares[-1]:+.2f})" if shares else "not run"
            )
        spread = (max(native) / min(native) - 1) * 100
        print(f"| {row['name']} | {len(native)} | {statistics.median(native) * 1e3:.2f} ± {spread / 2:.1f} % | {' | '.join(cells)} |")


def workloads(folder):
    by = {}
    for row in rows(os.path.join(folder, "workloads.jsonl")):
        by.setdefault(row["name"], {}).setdefault(row["allocator"], []).append(row)
    print("| workload | allocator | losses | step, ms | beside native | peak reserved, GiB | peak allocated, GiB | driver calls |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for name, allocators in by.items():
        natives = allocators.get("native", [])
        base = min((row.get("step", 0) for row in natives), default=0)
        steady = len({str(row["losses"]) for row in natives}) == 1
        for allocator, all_rows in allocators.items():
            failed = [row["failed"] for row in all_rows if "failed" in row]
            if failed:
                print(f"| {name} | {allocator} | {failed[0][:120]} |")
                continue
            steps = [row["step"] for row in all_rows]
            same = all(str(row["losses"]) == str(natives[0]["losses"]) for row in all_rows) if natives else False
            words = "equal" if same else ("PyTorch's own differ" if not steady else "**differ**")
            share = f"{(min(steps) / base - 1) * 100:+.2f} %" if base else ""
            first = all_rows[0]
            print(
                f"| {name} | {allocator} | {words} | {' '.join(f'{step * 1e3:.2f}' for step in steps)} | {share} | "
                f"{gib(first['reserved'])} | {gib(first['allocated'])} | {first['driver_calls']} |"
            )


def limited(folder):
    print("\n| workload | limit, GiB | native | expandable | pages |\n| --- | --- | --- | --- | --- |")
    table = {}
    for row in rows(os.path.join(folder, "limit.jsonl")):
        words = row["failed"][:60] if "failed" in row else f"trains, {row.get('step', 0) * 1e3:.1f} ms"
        table.setdefault(row["name"], {})[row["allocator"]] = words
    known = {row["name"]: row["allocated"] for row in rows(os.path.join(folder, "peaks.jsonl")) if row["allocator"] == "native"}
    for name, row in table.items():
        print(f"| {name} | {gib(known.get(name, 0) * 1.05)} | {row.get('native')} | {row.get('expandable')} | {row.get('pages')} |")


def costs(folder):
    by = {}
    for row in rows(os.path.join(folder, "costs.jsonl")):
        for key, value in row.items():
            if key != "allocator":
                by.setdefault(key, {}).setdefault(row["allocator"], []).append(value)
    print("\n| ns | native | pytorch | pages |\n| --- | --- | --- | --- |")
    for key, values in by.items():
        cells = (statistics.median(values.get(name, [0])) for name in ("native", "pytorch", "pages"))
        print(f"| {key} | {' | '.join(f'{cell:.0f}' for cell in cells)} |")


def tests(folder):
    answers = {}
    for row in rows(os.path.join(folder, "tests.jsonl")):
        answers.setdefault(row["allocator"], {})[row["name"]] = (row["outcome"], row["words"])
    native = answers.get("native", {})
    for allocator, outcomes in answers.items():
        count = {}
        for outcome, _ in outcomes.values():
            count[outcome] = count.get(outcome, 0) + 1
        print(f"\ntest_cuda.py, {allocator}: {count}")
        for name, (outcome, words) in outcomes.items():
            if allocator == "native" or outcome != "failed":
                continue
            there = native.get(name, ["not run"])[0]
            print(f"  {name}: {words} (native: {there})")


if __name__ == "__main__":
    if sys.argv[1] == "limits":
        limits(sys.argv[2])
    else:
        for part in (losses, steps, workloads, limited, costs, tests):
            part(sys.argv[2])
