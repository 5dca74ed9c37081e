import assert from "node:assert/strict";
import { test } from "node:test";
import { type Clock, columns as cut, difference, largest, length, ticks, ticksOf } from "../src/chart/columns.ts";
import type { Recording } from "../src/recording.ts";

/** Levels and beginnings are all that columns look at. */
function recording(reserved: number[], begin: number[], allocated = reserved): Recording {
  const entries = reserved.length - 1;
  return {
    entries,
    time: Float64Array.from({ length: entries }, (_, entry) => entry * 10),
    reserved: Float64Array.from(reserved),
    allocated: Float64Array.from(allocated),
    allocations: { length: begin.length, begin: Uint32Array.from(begin) },
  } as unknown as Recording;
}

const columns = (it: Recording, clock: Clock, until: number, most: number) => cut(it, ticks(it, clock), until, most);

test("the clock counts allocations, without those from before the history", () => {
  const it = recording([5, 5, 9, 9, 12], [0, 2, 4]);
  assert.deepEqual([...ticks(it, "allocations")], [0, 0, 1, 1, 2]);
  assert.equal(length(it, "allocations"), 2);
  assert.equal(length(it, "entries"), 4);
  assert.equal(length(it, "time"), 30);
});

test("a span has the most of its moments", () => {
  const it = recording([0, 7, 3, 9, 1], [1, 2, 3, 4]);
  assert.deepEqual(columns(it, "entries", 4, 100).reserved, [0, 7, 3, 9, 1]);
  const two = columns(it, "entries", 4, 2);
  assert.deepEqual([two.at, two.reserved], [[0, 4], [9, 1]]);
});

test("a span in which nothing happens keeps what was there", () => {
  const it = recording([0, 4, 6], [1, 2]);
  it.time.set([0, 1000]);
  assert.deepEqual(columns(it, "time", 1000, 5).reserved, [4, 4, 4, 4, 6]);
});

test("nothing is known of what comes after the end", () => {
  const it = recording([0, 4, 6], [1, 2]);
  const found = columns(it, "allocations", 4, 100);
  assert.deepEqual(found.reserved, [0, 4, 6, null, null]);
});

test("a recording without entries is one span", () => {
  const it = recording([3], []);
  assert.deepEqual(columns(it, "allocations", 0, 100), { at: [0], reserved: [3], allocated: [3] });
  assert.deepEqual(columns(it, "time", 0, 100).reserved.slice(0, 1), [3]);
});

test("recordings with other segments meet at the same allocation", () => {
  // The same three requests; the second obtains one segment for all of them.
  const first = recording([0, 2, 2, 4, 4, 6, 6], [2, 4, 6]);
  const second = recording([0, 6, 6, 6, 6], [2, 3, 4]);
  const apart = [first, second].map((it) => columns(it, "allocations", 3, 100).reserved);
  assert.deepEqual(difference(apart[0], apart[1]), [4, 2, 0, 0]);
});

test("a what-if stands where the entries stand that its own stand for", () => {
  const source = recording([0, 2, 2, 4, 4], [1]);
  source.time.set([0, 1, 5, 5]);
  const whatIf = recording([0, 8, 8, 8, 8, 8], [1]);
  // Two entries at the first, one at the second, two at those that share a time.
  whatIf.time.set([0, 0, 1, 5, 5]);
  assert.deepEqual([...ticksOf(whatIf, source, false)], [0, 1, 1, 2, 3, 3]);
  assert.deepEqual([...ticksOf(whatIf, source, true)], [0, 1, 1, 2, 3, 4]);
  whatIf.time.set([0, 0, 1, 5, 99]);
  assert.deepEqual([...ticksOf(whatIf, source, false)], [0, 1, 1, 2, 3, 4]);
});

test("times of a what-if that begins at a later entry count from there", () => {
  // The recording obtains a segment first, 7 before its first request; the what-if's begins with the request.
  const source = recording([0, 2, 2, 2], [2]);
  source.time.set([0, 7, 9]);
  const whatIf = recording([0, 2, 2], [1]);
  whatIf.time.set([0, 2]);
  assert.deepEqual([...ticksOf(whatIf, source, false)], [0, 2, 3]);
  // What was there before comes at the first entry of both.
  const cut = recording([2, 2, 2, 4], [0, 3]);
  cut.time.set([0, 7, 9]);
  const again = recording([0, 2, 4], [1, 2]);
  again.time.set([0, 9]);
  assert.deepEqual([...ticksOf(again, cut, false)], [0, 1, 3]);
});

test("the peak is never lost, however few columns there are", () => {
  const levels = Array.from({ length: 5001 }, (_, moment) => (moment * 7919) % 5000);
  const it = recording(levels, levels.slice(1).map((_, entry) => entry + 1));
  for (const most of [1, 2, 3, 64, 1000, 6000]) {
    assert.equal(largest(columns(it, "allocations", 5000, most).reserved), Math.max(...levels), `${most} columns`);
  }
});

test("a difference is known where both are", () => {
  assert.deepEqual(difference([1, null, 5], [4, 4, 2]), [3, null, -3]);
  assert.deepEqual(difference([1, 2], [4]), [3, null]);
});
