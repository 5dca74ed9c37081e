import assert from "node:assert/strict";
import { test } from "node:test";
import { sorted } from "../src/timeline/frames.ts";
import { beside, lifetime, momentOf } from "../src/timeline/live.ts";
import { plain } from "../src/format.ts";
import { lifeOf, momentText } from "../src/timeline/words.ts";
import { NEIGHBOURS, recordingOf } from "./made.ts";

test("going through allocations visits those that are live and shown", () => {
  assert.deepEqual([beside(NEIGHBOURS, -1, 4, 1, null), beside(NEIGHBOURS, 0, 4, 1, null), beside(NEIGHBOURS, 2, 4, 1, null)], [0, 1, -1]);
  assert.deepEqual([beside(NEIGHBOURS, -1, 7, -1, null), beside(NEIGHBOURS, 3, 7, -1, null)], [3, 2]);
  assert.equal(beside(NEIGHBOURS, 0, 4, 1, Uint8Array.from([1, 0, 1, 1])), 2);
});

test("a lifetime is told in entries and time, and whether it ended", () => {
  assert.deepEqual(lifetime(NEIGHBOURS, 0), { entries: 4, us: 40, open: false });
  assert.equal(lifeOf(NEIGHBOURS, 0), "4 entries, 40 µs");
  assert.equal(lifeOf(NEIGHBOURS, 3), "4 entries, 40 µs, not freed");
});

test("a moment is moved to where the allocation is live", () => {
  assert.deepEqual([0, 3, 9].map((moment) => momentOf(NEIGHBOURS, 0, moment)), [1, 3, 4]);
  assert.equal(momentOf(NEIGHBOURS, 3, 99), 10);
});

test("a moment is named by the entry before it, as the command numbers entries", () => {
  assert.deepEqual([0, 1, 10].map((moment) => momentText(NEIGHBOURS, moment)), ["before the first entry", "after entry 0 (0 µs)", "after entry 9 (90 µs)"]);
  assert.equal(momentText(recordingOf(0, []), 0), "when the snapshot was taken");
});

test("frames of libraries are folded, unless there are no others", () => {
  const frame = (file: string) => ({ file, line: 1, function: "f", library: !["/home/me/train.py", "model.py"].includes(file) });
  const files = [
    "/usr/lib/python3.12/site-packages/torch/nn/linear.py", "/home/me/train.py", "/usr/lib/python3.12/threading.py", "??", "CUDACachingAllocator.cpp", "model.py",
  ];
  const { user, library } = sorted(files.map(frame));
  assert.deepEqual(user.map((it) => it.file), ["/home/me/train.py", "model.py"]);
  assert.equal(library.length, 4);
  assert.deepEqual(sorted([frame("??")]), { user: [frame("??")], library: [] });
});

test("texts from files keep nothing that hides or turns around", () => {
  assert.equal(plain("a\u202egnp\u200b\0\u001b[2J"), "a\ufffdgnp\ufffd\ufffd\ufffd[2J");
  assert.equal(plain("<b>héllo</b>"), "<b>héllo</b>");
  assert.ok(plain("x".repeat(1 << 20)).length < 500);
});
