import assert from "node:assert/strict";
import { test } from "node:test";
import { at, layout } from "../src/segments/layout.ts";
import { under } from "../src/segments/map.ts";
import { momentAt, neighbours } from "../src/segments/moment.ts";
import { NEIGHBOURS, type Row, recordingOf } from "./made.ts";

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
  const { sums, groups, blocks } = momentAt(RECORDING, 4);
  assert.deepEqual(sums, { segments: 3, reserved: 900, allocated: 400, pending: 50, free: 450, largestFree: 200, homeless: 1 });
  const found = groups.map(({ strips }) => strips.map(({ address, from, to }) => [address, ...blocks.subarray(from, to)]));
  assert.deepEqual(found, [[[1000, 0, 1], [9000]], [[5000, 2]]]);
});

test("before and after, there is what was there", () => {
  assert.equal(momentAt(RECORDING, 0).sums.reserved, 400);
  assert.equal(momentAt(RECORDING, 0).sums.free, 400);
  const last = momentAt(RECORDING, 10).sums;
  assert.deepEqual([last.segments, last.allocated, last.pending], [2, 300, 0]);
});

test("strips are as long as their bytes, and all bytes are somewhere", () => {
  const segments = Array.from({ length: 40 }, (_, place) => ({ address: place * 10_000, size: 100 + ((place * 37) % 50) * 100, pool: place % 2 }));
  const recording = recordingOf(2, [], segments);
  const found = layout(momentAt(recording, 1), 300, 10);
  const covered = new Map<number, number>();
  for (const piece of found.pieces) {
    assert.ok(piece.x >= 0 && piece.x + piece.width <= 300 + 1e-9);
    assert.equal(piece.from, covered.get(piece.strip.address) ?? 0, "parts follow each other");
    covered.set(piece.strip.address, piece.to);
  }
  segments.forEach(({ size, address }) => assert.equal(covered.get(address), size));
  assert.equal(found.left, 0);
});

test("strips do not lie on each other, and each is found where it lies", () => {
  const segments = Array.from({ length: 60 }, (_, place) => ({ address: place * 1e6, size: 1 + ((place * 7919) % 4000), stream: place % 3 }));
  const recording = recordingOf(2, [], segments);
  const found = layout(momentAt(recording, 1), 240, 8);
  for (const piece of found.pieces) {
    const there = at(found, piece.x + piece.width / 2, piece.y + 4);
    assert.equal(there?.piece, piece);
  }
  assert.equal(at(found, 5, found.height + 100), null);
});

test("more segments than fit are counted, not drawn", () => {
  const segments = Array.from({ length: 30_000 }, (_, place) => ({ address: place * 1e6, size: 1000 }));
  const recording = recordingOf(2, [], segments);
  const found = layout(momentAt(recording, 1), 200, 1000);
  assert.ok(found.left > 0 && found.left < 30_000, `${found.left}`);
  assert.ok(found.height < 8000);
});

test("pointing at a place tells block or free bytes", () => {
  const moment = momentAt(RECORDING, 4);
  const found = layout(moment, 1000, 1);
  const y = found.pieces[0].y + 5;
  const told = (x: number) => {
    const there = under(RECORDING, moment, found, x, y);
    return [there?.row, there?.free];
  };
  assert.deepEqual(told(50), [0, 0]);
  assert.deepEqual(told(150), [-1, 100]);
  assert.deepEqual(told(220), [1, 0]);
  assert.deepEqual(told(300), [-1, 150]);
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
      const { sums } = momentAt(recording, moment);
      assert.equal(sums.allocated + sums.pending + sums.free, sums.reserved, `round ${round}, moment ${moment}`);
      assert.equal(sums.allocated, recording.allocated[moment]);
    }
  }
});

test("neighbours are those of the moment", () => {
  assert.deepEqual(neighbours(NEIGHBOURS, 1, 4), { below: { row: 0, bytes: 100 }, above: { row: -1, bytes: 50 } });
  assert.deepEqual(neighbours(NEIGHBOURS, 1, 5), { below: { row: -1, bytes: 100 }, above: { row: -1, bytes: 50 } });
  assert.deepEqual(neighbours(NEIGHBOURS, 1, 7), { below: { row: -1, bytes: 20 }, above: { row: -1, bytes: 50 } });
  assert.deepEqual(neighbours(NEIGHBOURS, 0, 4), { below: null, above: { row: 1, bytes: 50 } });
});

test("parts of an expandable segment are one strip, fixed segments that touch are not", () => {
  const parts = [{ address: 1000, size: 100 }, { address: 1100, size: 100, begin: 2 }, { address: 1200, size: 100, begin: 3 }];
  const across = [{ begin: 3, size: 150, address: 1020, segment: 1 }, { begin: 4, size: 10, address: 1190, segment: 2 }];
  const fixed = recordingOf(9, across, parts);
  const { sums } = momentAt(fixed, 5);
  assert.deepEqual([sums.segments, sums.reserved, sums.allocated, sums.free, sums.largestFree], [2, 300, 160, 140, 100]);
  assert.deepEqual(neighbours(fixed, 0, 5).above, { row: -1, bytes: 20 });
  const expandable = { ...fixed, info: { ...fixed.info, conf: "expandable_segments:True" } };
  const whole = momentAt(expandable, 5).sums;
  assert.deepEqual([whole.segments, whole.free, whole.largestFree], [1, 140, 100]);
  assert.deepEqual(neighbours(expandable, 1, 5).above, { row: -1, bytes: 100 });
});
