import assert from "node:assert/strict";
import { test } from "node:test";
import { type Frame, type Levels, Tops, draw } from "../src/timeline/raster.ts";
import { type Spans, Sweep, order } from "../src/timeline/sweep.ts";
import { columns, scaleOf } from "../src/timeline/scale.ts";
import { paint } from "../src/timeline/paint.ts";

/** Numbers that a seed decides. */
function random(seed: number): (below: number) => number {
  let state = seed;
  return (below) => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return Math.floor((state / 2 ** 32) * below);
  };
}

interface Made {
  spans: Spans;
  levels: Levels;
  entries: number;
}

/** Allocations that come and go, a few of them there before the beginning, some never live, some forever. */
function made(seed: number, entries: number): Made {
  const next = random(seed);
  const rows: [number, number, number][] = [];
  for (let row = 0; row < entries; row++) {
    const begin = next(4) === 0 ? 0 : next(entries + 1);
    const end = next(5) === 0 ? 0xffffffff : begin + next(next(3) === 0 ? entries : 6);
    rows.push([begin, end, [1, 2, 8, 32, 256][next(5)]]);
  }
  const spans: Spans = {
    length: rows.length,
    begin: Uint32Array.from(rows, (it) => it[0]),
    end: Uint32Array.from(rows, (it) => it[1]),
    size: Float64Array.from(rows, (it) => it[2]),
  };
  const allocated = new Float64Array(entries + 1);
  for (const [begin, end, size] of rows) {
    for (let moment = begin; moment < Math.min(end, entries + 1); moment++) allocated[moment] += size;
  }
  return { spans, entries, levels: { allocated, reserved: allocated.map((it) => it + 5) } };
}

/** The same picture, each pixel asked for by itself. */
function slowly({ spans, levels }: Made, frame: Frame): { rows: number[]; moments: number[] } {
  const scale = frame.height / (frame.high - frame.low);
  const rows: number[] = [];
  const moments: number[] = [];
  for (let x = 0; x < frame.width; x++) {
    let moment = frame.first[x];
    for (let at = moment; at <= frame.last[x]; at++) {
      if (levels.allocated[at] > levels.allocated[moment]) moment = at;
    }
    moments.push(moment);
    const live = Array.from({ length: spans.length }, (_, row) => row)
      .filter((row) => spans.begin[row] <= moment && moment < spans.end[row])
      .sort((a, b) => spans.begin[a] - spans.begin[b] || a - b);
    for (let pixel = 0; pixel < frame.height; pixel++) {
      let bytes = 0;
      let best = 0;
      let cover = 0;
      for (const row of live) {
        const bottom = (bytes - frame.low) * scale;
        bytes += spans.size[row];
        const top = (bytes - frame.low) * scale;
        const part = Math.min(top, pixel + 1) - Math.max(bottom, pixel);
        if (part > cover) {
          cover = part;
          best = row + 1;
        }
      }
      rows.push(best);
    }
  }
  return { rows, moments };
}

/** Bytes a pixel are powers of two, so that no sum is rounded. */
const HEIGHTS: [number, number][] = [[0, 64 * 64], [0, 64], [256, 256 + 64 * 8], [0, 64 * 1024]];

test("a picture is what each pixel by itself would be", () => {
  for (let seed = 0; seed < 60; seed++) {
    const it = made(seed, 20 + (seed % 7) * 15);
    const sweep = new Sweep(it.spans, order(it.spans, it.entries));
    const tops = new Tops(it.spans.length);
    const next = random(seed + 1000);
    // The same sweep draws several frames: nothing of one may show in the next.
    for (let step = 0; step < 4; step++) {
      const from = step === 0 ? 0 : next(it.entries * 10) / 10;
      const to = step === 0 ? it.entries + 1 : from + 0.5 + next(it.entries * 10) / 10;
      const width = 1 + next(90);
      const [low, high] = HEIGHTS[next(HEIGHTS.length)];
      const view = columns(scaleOf(new Float64Array(0), false, "entries"), from, Math.min(to, it.entries + 1), width, it.entries);
      const frame: Frame = { width, height: 64, ...view, low, high };
      const picture = draw(sweep, tops, it.levels, frame);
      const expected = slowly(it, frame);
      assert.deepEqual([...picture.moments], expected.moments, `seed ${seed}, step ${step}`);
      assert.deepEqual([...picture.rows], expected.rows, `seed ${seed}, step ${step}`);
    }
  }
});

test("a column shows its peak and the most that was reserved", () => {
  const it = made(3, 400);
  const sweep = new Sweep(it.spans, order(it.spans, it.entries));
  const view = columns(scaleOf(new Float64Array(0), false, "entries"), 0, 401, 10, 400);
  const picture = draw(sweep, new Tops(it.spans.length), it.levels, { width: 10, height: 8, ...view, low: 0, high: 1e6 });
  const peak = Math.max(...it.levels.allocated);
  assert.equal(Math.max(...Array.from(picture.moments, (moment) => it.levels.allocated[moment])), peak);
  assert.equal(Math.max(...picture.reserved), peak + 5);
});

test("columns cover every moment, by entries and by time, and never go back", () => {
  const next = random(9);
  const time = new Float64Array(300);
  for (let entry = 1; entry < 300; entry++) {
    // Pauses, bursts at the same time, and a clock that goes back.
    time[entry] = time[entry - 1] + [0, 0, 1, 5, 900, -3][next(6)];
  }
  for (const axis of ["entries", "time"] as const) {
    for (const [from, to, width] of [[0, 301, 40], [0, 301, 1000], [17.25, 200.5, 33], [100.2, 100.9, 20]]) {
      const { first, last } = columns(scaleOf(time, true, axis), from, to, width, 300);
      assert.equal(first[0], Math.floor(from), axis);
      assert.equal(last[width - 1], Math.ceil(to) - 1, axis);
      for (let x = 0; x < width; x++) {
        assert.ok(first[x] <= last[x], `${axis}, column ${x}`);
        if (x > 0) {
          assert.ok(first[x] >= last[x - 1] && first[x] <= last[x - 1] + 1, `${axis}, column ${x} of ${width}`);
        }
      }
    }
  }
});

test("places and moments are each other's inverse", () => {
  const time = Float64Array.from([0, 4, 5, 5, 100]);
  for (const axis of ["entries", "time"] as const) {
    const scale = scaleOf(time, true, axis);
    for (const moment of [0, 0.5, 1, 1.75, 2.5, 4, 4.5, 5, 5.5]) {
      assert.ok(Math.abs(scale.moment(scale.place(moment)) - moment) < 1e-9, `${axis}, ${moment}`);
    }
  }
});

test("pixels have the colour of their row, from the top down", () => {
  // Two columns of four: row 0 below row 1, then row 1 alone.
  const picture = {
    width: 2, height: 4, moments: new Uint32Array(2), reserved: new Float64Array(2),
    rows: Uint32Array.from([1, 1, 2, 0, 2, 0, 0, 0]),
  };
  const colours = Uint32Array.from([0, 0xff000011, 0xff000022]);
  assert.deepEqual([...paint(picture, colours, -1, 0xff0000ff)], [
    0, 0,
    0xff000022, 0,
    0xff000011, 0,
    0xff000011, 0xff000022,
  ]);
  assert.deepEqual([...paint(picture, colours, 1, 0xff0000ff)].filter((it) => it === 0xff0000ff).length, 2);
});
