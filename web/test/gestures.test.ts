import assert from "node:assert/strict";
import { test } from "node:test";
import { shortened } from "../src/timeline/chart.ts";
import { grip, pinched } from "../src/timeline/gestures.ts";
import { marksOf } from "../src/timeline/marks.ts";
import { recordingOf } from "./made.ts";

test("fingers that go apart come closer, and what lies between them stays", () => {
  assert.deepEqual(pinched(grip(100, 200), grip(50, 250)), { pan: 0, factor: 0.5 });
  assert.deepEqual(pinched(grip(200, 100), grip(220, 120)), { pan: 20, factor: 1 });
  // Fingers on each other do not zoom without end.
  assert.ok(pinched(grip(100, 100), grip(100, 101)).factor === 1);
});

test("a name that has no room ends in a sign that something is missing", () => {
  const measure = (text: string) => text.length * 10;
  assert.equal(shortened("forward", 70, measure), "forward");
  assert.equal(shortened("forward", 69, measure), "forwa…");
  assert.equal(shortened("forward", 15, measure), "");
});

test("the legend names all that is drawn, and nothing that is not", () => {
  const words = (it: ReturnType<typeof recordingOf>, chosen = false, lit = false) => marksOf(it, chosen, lit).map(({ word }) => word);
  assert.deepEqual(words(recordingOf(3, [])), ["reserved", "the moment"]);
  const full = recordingOf(3, [], [], { limit: 5, iterations: [1], phases: [{ name: "a", begin: 0, end: 1 }], ooms: [{ entry: 0, requested: 1, free: null }] });
  assert.deepEqual(words(full, true, true), [
    "reserved", "limit", "an iteration begins", "phase", "out of memory", "the moment", "chosen, and its life", "what the cause means",
  ]);
});
