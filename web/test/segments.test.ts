import assert from "node:assert/strict";
import { test } from "node:test";
import { at, layout } from "../src/segments/layout.ts";
import { under } from "../src/segments/map.ts";
import { momentOf } from "../src/segments/moment.ts";
import { type Row, recordingOf } from "./made.ts";

const RECORDING = recordingOf(
  10,
  [
    { begin: 1, end: 5, size: 100, address: 1000, segment: 1 },
    { begin: 2, end: 3, done: 6, size: 50, address: 1200, segment: 1 },
    { begin: 2, size: 300, address: 5000, segment: 2 },
    { begin: 2, size: 10 },
  ],
  [{ address: 1000, size: 400 }, { address: 5000, size: 300, begin: 2, pool: 1 }, { address: 9000, size: 200, begin: 4, end: 8 }],
);

test("a moment has the segments and blocks of that moment, and what is between is free", () => {
  const { sums, groups, blocks, starts } = momentOf(RECORDING, 4);
  assert.deepEqual(sums, { segments: 3, reserved: 900, allocated: 400, pending: 50, free: 450, largestFree: 200, homeless: 1 });
  assert.deepEqual(groups.map((it) => it.segments), [[0, 2], [1]]);
  assert.deepEqual([...blocks.subarray(starts[0], starts[1])], [0, 1]);
  assert.deepEqual([...blocks.subarray(starts[1], starts[2])], [2]);
  assert.equal(starts[3] - starts[2], 0);
});

test("before and after, there is what was there", () => {
  assert.equal(momentOf(RECORDING, 0).sums.reserved, 400);
  assert.equal(momentOf(RECORDING, 0).sums.free, 400);
  const last = momentOf(RECORDING, 10).sums;
  assert.deepEqual([last.segments, last.allocated, last.pending], [2, 300, 0]);
});

test("strips are as long as their bytes, and all bytes are somewhere", () => {
  const segments = Array.from({ length: 40 }, (_, place) => ({ address: place * 10_000, size: 100 + ((place * 37) % 50) * 100, pool: place % 2 }));
  const recording = recordingOf(2, [], segments);
  const found = layout(momentOf(recording, 1), recording.segments, 300, 10);
  const covered = new Map<number, number>();
  for (const piece of found.pieces) {
    assert.ok(piece.x >= 0 && piece.x + piece.width <= 300 + 1e-9);
    assert.equal(piece.from, covered.get(piece.segment) ?? 0, "parts follow each other");
    covered.set(piece.segment, piece.to);
  }
  segments.forEach(({ size }, segment) => assert.equal(covered.get(segment), size));
  assert.equal(found.left, 0);
});

test("strips do not lie on each other, and each is found where it lies", () => {
  const segments = Array.from({ length: 60 }, (_, place) => ({ address: place * 1e6, size: 1 + ((place * 7919) % 4000), stream: place % 3 }));
  const recording = recordingOf(2, [], segments);
  const found = layout(momentOf(recording, 1), recording.segments, 240, 8);
  for (const piece of found.pieces) {
    const there = at(found, piece.x + piece.width / 2, piece.y + 4);
    assert.equal(there?.piece, piece);
  }
  assert.equal(at(found, 5, found.height + 100), null);
});

test("more segments than fit are counted, not drawn", () => {
  const segments = Array.from({ length: 30_000 }, (_, place) => ({ address: place * 1e6, size: 1000 }));
  const recording = recordingOf(2, [], segments);
  const found = layout(momentOf(recording, 1), recording.segments, 200, 1000);
  assert.ok(found.left > 0 && found.left < 30_000, `${found.left}`);
  assert.ok(found.height < 8000);
});

test("pointing at a place tells block or free bytes", () => {
  const moment = momentOf(RECORDING, 4);
  const found = layout(moment, RECORDING.segments, 1000, 1);
  const y = found.pieces[0].y + 5;
  assert.deepEqual(under(RECORDING, moment, found, 50, y), { row: 0, segment: 0, free: 0 });
  assert.deepEqual(under(RECORDING, moment, found, 150, y), { row: -1, segment: 0, free: 100 });
  assert.deepEqual(under(RECORDING, moment, found, 220, y), { row: 1, segment: 0, free: 0 });
  assert.deepEqual(under(RECORDING, moment, found, 300, y), { row: -1, segment: 0, free: 150 });
  assert.equal(under(RECORDING, moment, found, 990, y), null);
});

test("blocks of random segments tile them with what is free", () => {
  let state = 1;
  const next = (below: number) => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return Math.floor((state / 2 ** 32) * below);
  };
  for (let round = 0; round < 30; round++) {
    const rows: Row[] = [];
    const segments = Array.from({ length: 1 + next(20) }, (_, place) => ({ address: place * 1e6, size: 10_000, begin: next(3) }));
    segments.forEach((segment, place) => {
      for (let edge = segment.address; edge < segment.address + 9000; ) {
        const size = 1 + next(900);
        if (next(2) === 0) rows.push({ begin: segment.begin + next(5), end: 5 + next(10), size, address: edge, segment: place + 1 });
        edge += size;
      }
    });
    rows.sort(() => next(3) - 1);
    const recording = recordingOf(12, rows, segments);
    for (let moment = 0; moment <= 12; moment++) {
      const { sums } = momentOf(recording, moment);
      assert.equal(sums.allocated + sums.pending + sums.free, sums.reserved, `round ${round}, moment ${moment}`);
      assert.equal(sums.allocated, recording.allocated[moment]);
    }
  }
});
