import assert from "node:assert/strict";
import { test } from "node:test";
import type { Report, Verdict } from "../src/api.ts";
import type { Recording } from "../src/recording.ts";
import { around, blamed, litWords } from "../src/report/blame.ts";
import { queryFor } from "../src/report/query.ts";
import { readable } from "../src/report/readable.ts";
import { recordingOf } from "./made.ts";

interface Row { address: number; requested?: number; size: number; begin: number; end: number; done?: number; site?: number; segment?: number }

const ENTRIES = 100;
const NEVER = ENTRIES + 1;

function recording(rows: Row[], segments: number[] = []): Recording {
  const column = (of: (row: Row) => number) => Float64Array.from(rows, of);
  return {
    entries: ENTRIES,
    info: { conf: "" },
    head: { iterations: [], pools: ["large"], streams: ["0"], sites: [null, { file: "a.py", line: 1, function: "f" }, { file: "b.py", line: 2, function: "g" }] },
    allocations: {
      length: rows.length,
      address: column((it) => it.address), size: column((it) => it.size),
      requested: column((it) => it.requested ?? it.size),
      begin: column((it) => it.begin), end: column((it) => it.end), done: column((it) => it.done ?? it.end),
      site: column((it) => it.site ?? 0), segment: column((it) => it.segment ?? 0),
    },
    segments: {
      length: segments.length, size: Float64Array.from(segments), address: Float64Array.from(segments, (_, place) => place * 100),
      begin: new Uint32Array(segments.length), end: new Uint32Array(segments.length).fill(NEVER),
      stream: new Uint16Array(segments.length), pool: new Uint16Array(segments.length),
    },
  } as unknown as Recording;
}

/** Reserved memory peaks after entry 49, live memory after entry 59. */
function report(more: Partial<Report> = {}): Report {
  return { peak: { event: 59, reserved: { event: 49, stream: 0 } }, growth: { lines: [] }, blame: [], ...more } as unknown as Report;
}

function rowsOf(cause: string, it: Recording, from = report()): number[] {
  return [...blamed(from, { cause } as Verdict, it).rows];
}

test("need is all that is live where most is", () => {
  const it = recording([
    { address: 0, size: 8, begin: 0, end: NEVER }, { address: 8, size: 8, begin: 10, end: 60 },
    { address: 16, size: 8, begin: 60, end: 61 }, { address: 24, size: 8, begin: 61, end: NEVER },
  ]);
  assert.deepEqual(rowsOf("need", it), [0, 2]);
  assert.equal(blamed(report(), { cause: "need" } as Verdict, it).moment, 60);
});

test("a leak is what its lines ask for and nothing frees", () => {
  const it = recording([
    { address: 0, size: 8, begin: 0, end: NEVER, site: 1 }, { address: 8, size: 8, begin: 5, end: NEVER, site: 1 },
    { address: 16, size: 8, begin: 6, end: 90, site: 1 }, { address: 24, size: 8, begin: 7, end: NEVER, site: 2 },
  ]);
  const lines = [{ line: "a.py:1", kind: "leak" }, { line: "b.py:2", kind: "longer_inputs" }];
  const from = report({ growth: { lines } } as unknown as Report);
  assert.deepEqual(rowsOf("leak", it, from), [1]);
  assert.deepEqual(rowsOf("longer_inputs", it, from), [3]);
  const found = blamed(from, { cause: "leak" } as Verdict, it);
  assert.deepEqual([found.from, found.to], [0, ENTRIES + 1]);
});

test("a leak that the end of the program frees is one all the same", () => {
  const it = recording([
    { address: 0, size: 8, begin: 5, end: 95, site: 1 }, { address: 8, size: 8, begin: 15, end: 95, site: 1 },
    { address: 16, size: 8, begin: 15, end: 25, site: 1 }, { address: 24, size: 8, begin: 15, end: 38, site: 1 },
    { address: 32, size: 8, begin: 85, end: 95, site: 1 }, { address: 40, size: 8, begin: 85, end: NEVER, site: 1 },
  ]);
  it.head.iterations = [10, 20, 40, 80];
  const from = report({ growth: { lines: [{ line: "a.py:1", kind: "leak" }] } } as unknown as Report);
  assert.deepEqual(rowsOf("leak", it, from), [1, 5]);
});

test("a leak without stacks is found by what has no line", () => {
  const it = recording([{ address: 0, size: 8, begin: 5, end: NEVER }, { address: 8, size: 8, begin: 5, end: NEVER, site: 1 }]);
  assert.deepEqual(rowsOf("leak", it, report({ growth: { lines: [{ line: null, kind: "leak" }] } } as unknown as Report)), [0]);
});

test("a pinned segment is kept by the only block in use in it", () => {
  const it = recording(
    [
      { address: 0, size: 8, begin: 1, end: NEVER, segment: 1 },
      { address: 8, size: 8, begin: 1, end: 40, segment: 1 },
      { address: 100, size: 8, begin: 1, end: NEVER, segment: 2 }, { address: 108, size: 8, begin: 1, end: NEVER, segment: 2 },
      // Fills its segment: nothing is wasted on its account.
      { address: 200, size: 64, begin: 1, end: NEVER, segment: 3 },
      { address: 300, size: 8, begin: 1, end: NEVER },
    ],
    [64, 64, 64],
  );
  assert.deepEqual(rowsOf("pinned_segment", it), [0]);
});

test("free pieces are shown by what lay there last", () => {
  const it = recording([
    { address: 0, size: 8, begin: 1, end: 20 }, { address: 4, size: 8, begin: 21, end: 45 },
    { address: 0, size: 8, begin: 55, end: NEVER }, { address: 64, size: 8, begin: 1, end: 30 },
  ]);
  const from = report({ blame: [{ kind: "fragmentation", blocks: [{ address: 0, size: 16 }] }] } as unknown as Report);
  assert.deepEqual(rowsOf("fragmentation", it, from), [1]);
  assert.deepEqual(rowsOf("stream", it, from), []);
});

test("free pieces are marked by the reason for which they are of no use", () => {
  const it = recordingOf(
    100,
    [
      { begin: 1, size: 10, address: 1000, segment: 1 }, { begin: 1, size: 10, address: 1050, segment: 1 },
      { begin: 1, size: 10, address: 2000, segment: 2 },
      { begin: 1, size: 10, address: 3000, segment: 3 }, { begin: 1, size: 10, address: 4000, segment: 4 },
      // Freed, but not yet done: no live block keeps this segment.
      { begin: 1, end: 20, done: 90, size: 10, address: 5000, segment: 5 },
    ],
    [
      { address: 1000, size: 100 }, { address: 2000, size: 100 }, { address: 3000, size: 100, stream: 1 },
      { address: 4000, size: 100, pool: 2, stream: 1 }, { address: 5000, size: 100 },
    ],
    { streams: ["0", "7"], pools: ["small", "large", "private 0.1, large"] },
  );
  const pieces = (cause: string) => blamed(report(), { cause } as Verdict, it).pieces;
  assert.deepEqual(pieces("fragmentation"), [{ address: 1010, size: 40 }, { address: 1060, size: 40 }, { address: 5010, size: 90 }]);
  assert.deepEqual(pieces("pinned_segment"), [{ address: 2010, size: 90 }]);
  assert.deepEqual(rowsOf("pinned_segment", it), [2]);
  assert.deepEqual(pieces("stream"), [{ address: 3010, size: 90 }]);
  assert.deepEqual(pieces("private_pool"), [{ address: 4010, size: 90 }]);
  assert.deepEqual(pieces("need"), []);
  const words = litWords({ rows: new Set([1]), pieces: pieces("fragmentation"), words: "so", moment: 0, from: 0, to: 1 });
  assert.equal(words, "1 block is lit up: so. In the segment map 3 free pieces are marked, 170 bytes in all.");
});

test("pending blocks are freed and not yet done", () => {
  const it = recording([
    { address: 0, size: 8, begin: 1, end: 45, done: 55 }, { address: 8, size: 8, begin: 1, end: 45, done: 46 },
    { address: 16, size: 8, begin: 1, end: 60, done: 70 },
  ]);
  assert.deepEqual(rowsOf("pending", it), [0]);
});

test("unsplit and rounded blocks are larger than what was asked for", () => {
  const it = recording([
    { address: 0, size: 1024, requested: 1000, begin: 1, end: NEVER }, { address: 4096, size: 2048, requested: 1000, begin: 1, end: NEVER },
    { address: 8192, size: 512, begin: 1, end: NEVER },
  ]);
  assert.deepEqual(rowsOf("rounding", it), [0, 1]);
  assert.deepEqual(rowsOf("unsplit", it), [1]);
});

test("what others hold is no block's fault", () => {
  assert.deepEqual(rowsOf("outside", recording([{ address: 0, size: 8, begin: 1, end: NEVER }])), []);
});

test("the view around a moment stays within the history", () => {
  for (const entries of [0, 1, 10, 1000, 1_000_000]) {
    for (const moment of [0, Math.floor(entries / 2), entries]) {
      const { from, to } = around(moment, entries);
      assert.ok(from >= 0 && to <= entries + 1 && from <= moment && moment <= to && from < to, `${moment} of ${entries}`);
    }
  }
});

test("values with spaces are quoted for the filter", () => {
  assert.equal(queryFor("line", "a.py:12"), "line:a.py:12");
  assert.equal(queryFor("line", 'my "x" file.py:1'), 'line:"my x file.py:1"');
});

test("texts of a report hide nothing", () => {
  const hostile = { verdict: { text: "a\u202eb\u0000" }, notes: ["<b>\u2028"], n: 5, none: null };
  assert.deepEqual(readable(hostile), { verdict: { text: "a\ufffdb\ufffd" }, notes: ["<b>\ufffd"], n: 5, none: null });
  assert.equal(readable("x".repeat(1 << 20)).length, 2001);
});
