import assert from "node:assert/strict";
import { test } from "node:test";
import type { RecordingInfo } from "../src/api.ts";
import { letGo } from "../src/let-go.ts";
import { follow, goesOn, grown, pause, progress, range } from "../src/live/follow.ts";
import type { Recording } from "../src/recording.ts";

function info(id: number, version: number): RecordingInfo {
  return { id, version } as RecordingInfo;
}

/** Allocations of one size, one for each entry from `first` on. */
function recording(entries: number, reservedAt: number, rows: number, first = 0): Recording {
  const numbers = Array.from({ length: rows }, (_, row) => row);
  const address = Float64Array.from(numbers, (row) => 512 * (first + row));
  const allocations = { length: rows, address, begin: Uint32Array.from(numbers, (row) => row + 1), size: new Float64Array(rows).fill(512) };
  return { entries, head: { peak: { reservedAt } }, allocations } as unknown as Recording;
}

const VIEW = { chosen: -1, blamed: null, lit: null, pieces: null, shown: null };

test("recordings are read again when their version counts up", () => {
  const known = [info(0, 3), info(1, 0)];
  assert.deepEqual(grown(known, [info(0, 4), info(1, 0), info(2, 0)]).map((it) => it.id), [0, 2]);
  assert.deepEqual(grown(known, known), []);
});

test("whoever sees the whole goes on seeing the whole", () => {
  const before = recording(100, 40, 10);
  const after = follow({ ...VIEW, recording: before, from: 0, to: 101, moment: 40 }, recording(200, 150, 20));
  assert.deepEqual([after.from, after.to, after.moment], [0, 201, 150]);
});

test("whoever has zoomed in stays there", () => {
  const before = recording(100, 40, 10);
  const state = { ...VIEW, recording: before, from: 10, to: 20, moment: 15, chosen: 7, lit: null, pieces: null, blamed: new Set([1]) };
  const after = follow(state, recording(200, 150, 20));
  assert.deepEqual([after.from, after.to, after.moment, after.chosen, after.blamed], [10, 20, 15, 7, null]);
});

test("the first recording of a run is shown whole", () => {
  const after = follow({ ...VIEW, recording: null, from: 0, to: 1, moment: 0 }, recording(50, 5, 4));
  assert.deepEqual([after.from, after.to, after.moment], [0, 51, 5]);
});

test("a run that has lost its beginning is seen from where it begins now", () => {
  const before = recording(100, 40, 10);
  const state = { ...VIEW, recording: before, from: 10, to: 20, moment: 15, chosen: 7 };
  const after = follow(state, recording(100, 70, 10, 3));
  assert.deepEqual([after.from, after.to, after.moment, after.chosen], [0, 101, 70, -1]);
  assert.deepEqual([goesOn(before, before), goesOn(before, recording(200, 40, 12)), goesOn(before, recording(90, 40, 12))], [true, true, false]);
});

test("of what is kept to come back to, the last is left", () => {
  const kept = new Map([[1, "a"], [2, "b"], [3, "c"]]);
  letGo(kept, 2);
  assert.deepEqual([...kept.keys()], [2, 3]);
  letGo(kept, 5);
  assert.equal(kept.size, 2);
});

test("progress stays between nothing and all", () => {
  assert.deepEqual([progress(0, 0), progress(5, 10), progress(20, 10), progress(-1, 10)], [0, 0.5, 1, 0]);
});

test("a server that does not answer is asked less and less often", () => {
  assert.deepEqual([0, 1, 2, 10].map(pause), [1000, 2000, 4000, 16000]);
});

test("the range of a long loss curve begins at 0 and passes over what is no number", () => {
  assert.deepEqual(range([]), [0, 1]);
  assert.deepEqual(range([2, null, NaN, 4]), [0, 4.2]);
  assert.deepEqual(range([-1, 2]), [-1.05, 2.1]);
  assert.deepEqual(range(new Array<number>(1_000_000).fill(2)), [0, 2.1]);
});
