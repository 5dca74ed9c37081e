import assert from "node:assert/strict";
import { test } from "node:test";
import type { Report } from "../src/api.ts";
import { opensAt } from "../src/app.ts";
import { confOf, early, firstSentence, fixOf, limitOf, openingOf } from "../src/report/opening.ts";
import { recordingOf } from "./made.ts";

const MIB = 1024 ** 2;

const ADVICE = { change: "", cause: "", bytes: 0, basis: "", confidence: "", cost: "", line: null };

/** A report of a job that needs 100 MiB and reserves 120. */
function report(more: Partial<Report> = {}): Report {
  return {
    verdict: { cause: "need", bytes: 0, line: null, text: "" },
    causes: [
      { cause: "fragmentation", bytes: 1, line: null, text: "20.00 MiB are free." },
      { cause: "need", bytes: 2, line: null, text: "100.00 MiB were live at once, most from a.py:3; no allocator can do with less. More." },
    ],
    peak: { event: 5, requested: 100 * MIB, reserved: { event: 5, bytes: 120 * MIB, requested: 90 * MIB, stream: 0 } },
    growth: { kind: "steady", leak_per_iteration: 0, iterations: 3, lines: [], each: [] },
    ooms: [], advice: [], limit: null, waste: {}, blame: [], failed_requests: 0, settings: null, notes: [],
    ...more,
  } as unknown as Report;
}

const FAILED = {
  event: 80, bytes: 16 * MIB, line: "a.py:3", fatal: true, device_free: 7 * MIB, reserved: 110 * MIB, cached: 21 * MIB, largest_free: 12 * MIB,
  by_limit: false, why: "21.00 MiB were free, but the largest piece had 12.00 MiB", would_have: [],
};

test("a page opens on the last request that failed, or on the peak", () => {
  const peak = { allocated: 0, allocatedAt: 2, reserved: 0, reservedAt: 7 };
  assert.equal(opensAt(recordingOf(10, [], [], { peak })), 7);
  const ooms = [{ entry: 3, requested: 1, free: null }, { entry: 8, requested: 1, free: null }];
  assert.equal(opensAt(recordingOf(10, [], [], { peak, ooms })), 9);
  assert.equal(opensAt(recordingOf(9, [], [], { peak, ooms: [{ entry: 9, requested: 1, free: null }] })), 9);
});

test("a sentence ends where the next begins, not at a file's name or a number", () => {
  assert.equal(firstSentence("1.50 GiB at a.py:3 stay. They leak."), "1.50 GiB at a.py:3 stay.");
  assert.equal(firstSentence("No end"), "No end");
  assert.equal(firstSentence("One. two. Three."), "One. two.");
  assert.equal(firstSentence(""), "");
});

test("a job that ran through is told by its verdict, in one sentence and three figures", () => {
  const { failed, sentence, figures } = openingOf(report());
  assert.equal(failed, false);
  assert.equal(sentence, "At its peak the job reserved 120.00 MiB: 100.00 MiB were live at once, most from a.py:3; no allocator can do with less.");
  assert.deepEqual(figures.map((it) => it.value), ["120.00 MiB", "100.00 MiB", "30.00 MiB"]);
});

test("behind the colon a sentence goes on in small letters, and names keep theirs", () => {
  for (const [text, goesOn] of [["Each of 18 iterations kept 8.00 MiB.", "each of"], ["PyTorch’s defaults serve it.", "PyTorch’s"], ["PYTORCH_CUDA_ALLOC_CONF=a serves it.", "PYTORCH_"]]) {
    const one = report();
    for (const cause of one.causes) cause.text = text;
    assert.ok(openingOf(one).sentence.includes(`: ${goesOn}`), openingOf(one).sentence);
  }
});

test("a leak is told by what it costs each iteration", () => {
  const growth = { kind: "leak", leak_per_iteration: 3 * MIB, iterations: 40 };
  const { figures } = openingOf(report({ growth } as unknown as Partial<Report>));
  assert.deepEqual(figures.map((it) => it.word), ["Reserved at the peak", "Need", "Leaks"]);
  assert.equal(figures[2].value, "3.00 MiB");
});

test("a failure is told by the request, what was free, and why that did not do", () => {
  const { failed, sentence, figures } = openingOf(report({ ooms: [FAILED] }));
  assert.equal(failed, true);
  assert.equal(sentence, "The job ran out of memory: 16.00 MiB were asked for at a.py:3, and 21.00 MiB were free, but the largest piece had 12.00 MiB.");
  assert.deepEqual(figures.map((it) => it.value), ["16.00 MiB", "12.00 MiB", "110.00 MiB"]);
  // The one that ended the job counts, not one that was caught.
  const caught = { ...FAILED, fatal: false, bytes: 1 };
  assert.match(openingOf(report({ ooms: [FAILED, caught] })).sentence, /^The job ran out of memory: 16.00 MiB/);
  assert.match(openingOf(report({ ooms: [caught] })).sentence, /and the job went on: 1 byte/);
});

test("the fix is the first advice that is a setting, under the limit that the job had", () => {
  const settings = { ...ADVICE, code: ["export PYTORCH_CUDA_ALLOC_CONF='expandable_segments:True'"] };
  const other = { ...ADVICE, code: ["x = checkpoint(span, x)"] };
  assert.equal(fixOf(report({ advice: [other] })), null);
  assert.deepEqual(fixOf(report({ advice: [other, settings] })), { conf: "expandable_segments:True", limit: null, isFirst: false });
  assert.equal(fixOf(report({ advice: [settings, other] }))?.isFirst, true);
  assert.equal(confOf({ code: ["export PYTORCH_ALLOC_CONF=a:1"] }), "a:1");
  assert.equal(confOf({ code: ["echo PYTORCH_CUDA_ALLOC_CONF='a'; rm x"] }), null);
  // Known, else what was reserved and free on the device, else no less than what was reserved.
  assert.equal(limitOf(report({ ooms: [FAILED], limit: 5 })), 5);
  assert.equal(limitOf(report({ ooms: [FAILED] })), 117 * MIB);
  assert.equal(limitOf(report({ ooms: [{ ...FAILED, by_limit: true }] })), 120 * MIB);
  assert.equal(limitOf(report()), null);
});

test("a setting that serves the request by replay is named with the limit, and is the fix", () => {
  const failure = { answer: "served", conf: "expandable_segments:True", limit: { bytes: 115 * MIB } };
  const found = openingOf(report({ ooms: [FAILED], failure }));
  assert.match(found.sentence, /12.00 MiB; expandable_segments:True serves them within 115.00 MiB, by replay\.$/);
  assert.deepEqual(found.fix, { conf: "expandable_segments:True", limit: 115 * MIB, isFirst: true });
  const none = openingOf(report({ ooms: [FAILED], failure: { answer: "none_serves", conf: null, limit: { bytes: 115 * MIB } } }));
  assert.match(none.sentence, /12.00 MiB\.$/);
  assert.equal(none.fix, null);
});

test("before the report is there, the recording speaks for itself", () => {
  const peak = { allocated: 3, allocatedAt: 1, reserved: 4096, reservedAt: 1 };
  assert.equal(early(recordingOf(5, [], [], { peak })).sentence, "At its peak the job reserved 4.00 KiB.");
  const ooms = [{ entry: 1234, requested: 2048, free: null }];
  assert.equal(early(recordingOf(5, [], [], { peak, ooms })).sentence, "A request for 2.00 KiB failed at entry 1,234.");
});
