import assert from "node:assert/strict";
import { test } from "node:test";
import { classesOf } from "../src/colours.ts";
import { match } from "../src/filter/match.ts";
import { needsStacks, parse } from "../src/filter/parse.ts";
import { boxes, isWithin, largestAt, liveAt } from "../src/flame/tree.ts";
import { type Stacks, frameAt, hasText, modulePaths, stacksWith } from "../src/stacks.ts";
import { entriesAround } from "../src/timeline/events.ts";
import { recordingOf } from "./made.ts";

const frame = (file: string, line: number, name: string) => ({ file, line, function: name, library: file.startsWith("/v/") });
const module = (file: string, line: number, name: string, index: number | null = null) => ({ ...frame(file, line, name), index });

/** main → forward → linear of a library; main → step; nothing. */
const STACKS: Stacks = {
  names: [frame("/v/site-packages/torch/nn/linear.py", 125, "forward"), frame("/me/train.py", 12, "forward"), frame("/me/train.py", 1, "main"), frame("/me/train.py", 120, "step")],
  starts: Uint32Array.of(0, 3, 5, 5),
  frames: Uint32Array.of(0, 1, 2, 3, 2),
  of: Uint32Array.of(1, 2, 3, 0),
  modules: {
    names: [module("/v/site-packages/torch/nn/modules/linear.py", 0, "nn.linear"), module("/me/train.py", 12, "train", 1), module("/me/train.py", 120, "train")],
    starts: Uint32Array.of(0, 2, 4),
    frames: Uint32Array.of(0, 1, 0, 2),
    of: Uint32Array.of(1, 2, 0, 0),
  },
};

const RECORDING = recordingOf(
  10,
  [{ begin: 1, end: 8, size: 60 }, { begin: 2, end: 6, size: 30 }, { begin: 3, size: 10 }, { begin: 0, size: 5 }],
  [{ address: 0, size: 500, begin: 4, end: 9 }, { address: 500, size: 100, begin: 4 }],
  { ooms: [{ entry: 6, requested: 77, free: null }] },
);
RECORDING.allocations.stack.set([1, 2, 3, 0]);

function taken(query: string, stacks: Stacks | null = STACKS): number[] {
  const { terms, complaints } = parse(query);
  assert.deepEqual(complaints, []);
  const { shown } = match(RECORDING, terms, stacks).matched;
  return [...shown.keys()].filter((row) => shown[row] === 1);
}

test("any frame is searched, those of libraries too", () => {
  assert.deepEqual(taken("frame:linear.py:125"), [0]);
  assert.deepEqual(taken("frame:TORCH/nn"), [0]);
  assert.deepEqual(taken("frame:main"), [0, 1]);
  assert.deepEqual(taken("torch"), [0]);
  assert.deepEqual(taken("-frame:main"), [2, 3]);
  assert.deepEqual(taken('frame:"train.py:12 forward" size:<100'), [0]);
  // Line 12 is no part of line 120.
  assert.deepEqual(taken("frame:train.py:12"), [0]);
  assert.deepEqual(taken("frame:train.py:120"), [1]);
  assert.deepEqual(taken("frame:main", null), []);
});

test("modules are searched by their path, a line only as itself", () => {
  assert.deepEqual(modulePaths(STACKS.modules), { layers: ["train:12[1] > nn.linear", "train:120 > nn.linear"], kinds: ["train:12 > nn.linear", "train:120 > nn.linear"] });
  // A layer by its index, and all layers without one.
  assert.deepEqual(taken('module:"train:12[1] > nn.linear"'), [0]);
  assert.deepEqual(taken("module:train:12[0]"), []);
  assert.deepEqual(taken('module:"train:12 > nn.linear"'), [0]);
  assert.deepEqual(taken("module:NN.linear"), [0, 1]);
  assert.deepEqual(taken("module:train:12"), [0]);
  assert.deepEqual(taken('module:"train:120 > nn.linear"'), [1]);
  assert.deepEqual(taken("-module:linear"), [2, 3]);
  assert.equal(match(RECORDING, parse("module:a").terms, null).complaints.length, 1);
  assert.equal(parse("module:").complaints.length, 1);
});

test("what is live is summed up by module", () => {
  const found = boxes(RECORDING, STACKS.modules, 5, null);
  assert.deepEqual(found.map((it) => [it.frame, it.depth, it.bytes]), [[-1, 0, 105], [1, 1, 60], [0, 2, 60], [2, 1, 30], [0, 2, 30], [-2, 1, 15]]);
});

test("only terms that look at stacks need them", () => {
  assert.equal(needsStacks(parse("size:>1MiB line:a.py").terms), false);
  assert.equal(needsStacks(parse("size:>1MiB frame:a").terms), true);
  assert.equal(needsStacks(parse("module:a").terms), true);
  assert.equal(needsStacks(parse("word").terms), true);
});

test("a frame is told by its depth from the outermost call, 0 is the innermost", () => {
  assert.deepEqual([0, 1, 2, 3, 4].map((depth) => frameAt(STACKS, 0, depth)), [0, 2, 1, 0, -1]);
  assert.equal(frameAt(STACKS, 2, 0), -1);
  assert.equal(frameAt(STACKS, 99, 0), -1);
});

test("a text is found wherever it stands, a line only as itself", () => {
  const it = frame("a1.py", 1, "f12");
  assert.deepEqual(["a1.py:1", "f1", "f12", "1", ":1", "x"].map((text) => hasText(it, text)), [true, false, true, true, true, false]);
  assert.deepEqual([...stacksWith(STACKS, (at) => at.function === "main")], [1, 1, 0]);
});

test("without stacks, colours by frame fall back to call sites", () => {
  assert.equal(classesOf(RECORDING, "frame", 3), classesOf(RECORDING, "site"));
  assert.equal(classesOf(RECORDING, "module"), classesOf(RECORDING, "site"));
});

test("what is live is summed up by stack, boxes inside their callers", () => {
  const found = boxes(RECORDING, STACKS, 5, null);
  const told = found.map((it) => [it.frame, it.depth, it.bytes, it.blocks, Math.round(it.at * 105)]);
  assert.deepEqual(told, [[-1, 0, 105, 4, 0], [2, 1, 90, 2, 0], [1, 2, 60, 1, 0], [0, 3, 60, 1, 0], [3, 2, 30, 1, 60], [-2, 1, 15, 2, 90]]);
  assert.ok(isWithin(found, 3, 1) && isWithin(found, 3, 0) && !isWithin(found, 4, 2) && isWithin(found, 2, 2));
  // At another moment, and under a filter.
  assert.deepEqual(boxes(RECORDING, STACKS, 7, null).map((it) => it.bytes), [75, 60, 60, 60, 15]);
  assert.deepEqual(boxes(RECORDING, STACKS, 5, Uint8Array.of(0, 1, 0, 0)).map((it) => it.bytes), [30, 30, 30]);
  assert.deepEqual(boxes(RECORDING, STACKS, 5, new Uint8Array(4)).map((it) => it.bytes), [0]);
});

test("shares are of all that is live, whatever the filter takes", () => {
  assert.deepEqual([0, 5, 7].map((moment) => liveAt(RECORDING, moment)), [5, 105, 75]);
});

test("the largest blocks are those that are live, largest first", () => {
  assert.deepEqual(largestAt(RECORDING, 5, null, 3), [0, 1, 2]);
  assert.deepEqual(largestAt(RECORDING, 9, null, 3), [2, 3]);
  assert.deepEqual(largestAt(RECORDING, 5, Uint8Array.of(0, 1, 1, 1), 2), [1, 2]);
});

test("every entry is told from the columns", () => {
  const all = entriesAround(RECORDING, 5, 100);
  const told = all.map((it) => [it.entry, it.action, it.bytes, it.row]);
  assert.deepEqual(told, [
    [0, "allocated", 60, 0], [1, "allocated", 30, 1], [2, "allocated", 10, 2], [3, "segment obtained", 600, -1], [4, "other", 0, -1],
    [5, "freed", 30, 1], [6, "out of memory", 77, -1], [7, "freed", 60, 0], [8, "segment given back", 500, -1], [9, "other", 0, -1],
  ]);
  assert.deepEqual(entriesAround(RECORDING, 0, 3).map((it) => it.entry), [0, 1, 2]);
  assert.deepEqual(entriesAround(RECORDING, 5, 3).map((it) => it.entry), [3, 4, 5]);
  assert.deepEqual(entriesAround(RECORDING, 10, 3).map((it) => it.entry), [7, 8, 9]);
});
