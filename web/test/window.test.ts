import assert from "node:assert/strict";
import { test } from "node:test";
import { bandOf, lanes } from "../src/timeline/phases.ts";
import { scaleOf } from "../src/timeline/scale.ts";
import { byteTick, ticks } from "../src/timeline/ticks.ts";
import { heights, panned, within, zoomed } from "../src/timeline/window.ts";
import { recordingOf } from "./made.ts";

const TIME = Float64Array.from({ length: 1000 }, (_, entry) => entry * (entry % 7) + entry);
const ENTRIES = scaleOf(TIME, true, "entries");

test("a view stays within the recording and is never too narrow", () => {
  assert.deepEqual(within({ from: -50, to: 50 }, 1000), { from: 0, to: 100 });
  assert.deepEqual(within({ from: 950, to: 1100 }, 1000), { from: 851, to: 1001 });
  assert.deepEqual(within({ from: 10, to: 10.5 }, 1000), { from: 8.25, to: 12.25 });
  assert.deepEqual(within({ from: 0, to: 9 }, 2), { from: 0, to: 3 });
});

test("what is under the pointer stays there while one comes closer", () => {
  const next = zoomed({ from: 100, to: 300 }, 0.5, 0.25, ENTRIES, 1000);
  assert.deepEqual(next, { from: 125, to: 225 });
  const back = zoomed(next, 2, 0.25, ENTRIES, 1000);
  assert.deepEqual(back, { from: 100, to: 300 });
});

test("a view moves by parts of its width, and keeps its width at the ends", () => {
  assert.deepEqual(panned({ from: 100, to: 300 }, 0.5, ENTRIES, 1000), { from: 200, to: 400 });
  assert.deepEqual(panned({ from: 100, to: 300 }, -5, ENTRIES, 1000), { from: 0, to: 200 });
  assert.deepEqual(panned({ from: 900, to: 1001 }, 1, ENTRIES, 1000), { from: 900, to: 1001 });
});

test("by time, a view keeps its length in time", () => {
  const time = Float64Array.from({ length: 1000 }, (_, entry) => entry + (entry > 500 ? 10_000 : 0));
  const scale = scaleOf(time, true, "time");
  const moved = panned({ from: 100, to: 300 }, 1, scale, 1000);
  assert.ok(Math.abs(scale.place(moved.to) - scale.place(moved.from) - (scale.place(300) - scale.place(100))) < 1e-6);
});

test("the height covers everything, or what the visible moments need", () => {
  const recording = recordingOf(10, [{ size: 1e9 }, { begin: 4, end: 6, size: 1e6 }]);
  const all = heights(recording, { from: 0, to: 11 }, false);
  assert.equal(all.low, 0);
  assert.ok(all.high > 1.001e9);
  const near = heights(recording, { from: 3, to: 8 }, true);
  assert.ok(near.low > 0.98e9 && near.low <= 1e9, `${near.low}`);
  assert.ok(near.high >= 1.001e9 && near.high < 1.02e9, `${near.high}`);
});

test("marks are round numbers within the range, no more than there is room for", () => {
  assert.deepEqual(ticks(0, 10, 5), [0, 2, 4, 6, 8, 10]);
  assert.deepEqual(ticks(3, 3, 5), []);
  assert.deepEqual(ticks(0, 4096, 4, true), [0, 1024, 2048, 3072, 4096]);
  for (const [low, high, most] of [[0, 7, 3], [1e6, 1e6 + 3, 4], [0, 1e12, 9]]) {
    const marks = ticks(low, high, most);
    assert.ok(marks.length <= most + 1, `${marks}`);
    assert.ok(marks.every((it) => it >= low && it <= high));
  }
  assert.deepEqual([0, 512, 1024 ** 3, 1.5 * 1024 ** 3].map(byteTick), ["0", "512 bytes", "1 GiB", "1.5 GiB"]);
});

test("phases inside others get a lane of their own, and what is too deep is left out", () => {
  const span = (name: string, begin: number, end: number) => ({ name, begin, end });
  const spans = [span("step", 0, 10), span("forward", 0, 4), span("layer", 1, 2), span("too deep", 1, 2), span("backward", 4, 9), span("step", 10, 20)];
  const found = lanes(spans).map((lane) => lane.map((it) => it.name));
  assert.deepEqual(found, [["step", "step"], ["forward", "backward"], ["layer"]]);
  assert.deepEqual(bandOf({ phases: [], iterations: [2, 5] }, 9), [[{ ...span("iteration 0", 2, 5), short: "0" }, { ...span("iteration 1", 5, 9), short: "1" }]]);
});
