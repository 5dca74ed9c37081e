import assert from "node:assert/strict";
import { test } from "node:test";
import { type Summary, scales, summary, tightest } from "../src/compare/summary.ts";
import { meansFor } from "../src/compare/words.ts";
import type { Recording } from "../src/recording.ts";

const MIB = 1024 ** 2;

function one(name: string, reserved: number, failed = 0): Summary {
  return { info: { name }, reserved, failed, length: { entries: reserved, time: 1, allocations: 2 } } as unknown as Summary;
}

test("the one that reserves most is the limit, the first of several", () => {
  const all = [one("a", 5), one("b", 9), one("c", 9)];
  assert.equal(tightest(all)?.info.name, "b");
  assert.equal(tightest([]), null);
});

test("all drawings share the widest scales", () => {
  assert.deepEqual(scales([one("a", 5), one("b", 9)], "entries"), { until: 9, most: 9 });
  assert.deepEqual(scales([], "time"), { until: 0, most: 0 });
});

test("a summary keeps the figures and lets the rows go", () => {
  const it = summary({
    info: { name: "a" }, entries: 2, time: Float64Array.of(0, 5),
    head: { peak: { reserved: 9, allocated: 7, reservedAt: 1 }, failed: 1, limit: 20, timed: true },
    reserved: Float64Array.of(0, 9, 9), allocated: Float64Array.of(0, 4, 7),
    allocations: { length: 1, begin: Uint32Array.of(1) },
  } as unknown as Recording);
  assert.deepEqual([it.unused, it.failed, it.limit, it.length], [5, 1, 20, { entries: 2, time: 5, allocations: 1 }]);
  assert.deepEqual(it.columns.entries.allocated, [0, 4, 7]);
});

test("the sentence names the one that counts", () => {
  const all = [one("rank 0", 100 * MIB), one("rank 1", 400 * MIB, 2)];
  assert.equal(
    meansFor(all, tightest(all), (it) => it.info.name),
    "rank 1 reserves most: 400.00 MiB at the peak; the least is 300.00 MiB (75 %) below. Requests failed in 1 of 2.",
  );
});
