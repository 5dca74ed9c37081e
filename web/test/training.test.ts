import assert from "node:assert/strict";
import { test } from "node:test";
import type { PredictAnswer, StepTimeline } from "../src/api.ts";
import { Latest } from "../src/training/latest.ts";
import { PLACES, neighbour, snap, toPlace, toValue } from "../src/training/slider.ts";
import { type Along, ALONGS, brief, placed } from "../src/training/axis.ts";
import { fitWords, heldAt, meaning, most, phaseAt, phaseName, stacked } from "../src/training/step.ts";

const LAYERS = { least: 1, most: 48, step: 1 };
const BATCH = { least: 1, most: 16384, step: 1 };
const WIDTH = { least: 64, most: 2048, step: 64 };

/** As if a kernel moved as much as 40 operations take. */
function seconds(operations: number, kernels: number): Record<string, number> {
  return Object.fromEntries(["H200", "H100", "A100", "RTX 4090"].map((name) => [name, (operations + 40 * kernels) / 1e4]));
}

test("every value of a narrow range has a place on its slider", () => {
  for (const range of [LAYERS, WIDTH]) {
    for (let value = range.least; value <= range.most; value += range.step) {
      assert.equal(toValue(range, toPlace(range, value)), value);
    }
  }
});

test("a wide range gives small values room", () => {
  assert.equal(toPlace(BATCH, 128), PLACES / 2);
  assert.deepEqual([toValue(BATCH, 0), toValue(BATCH, PLACES)], [1, 16384]);
  let before = 0;
  for (let place = 0; place <= PLACES; place += 1) {
    const value = toValue(BATCH, place);
    assert.ok(Number.isInteger(value) && value >= before, `${place}`);
    before = value;
  }
});

test("keys always lead to another value, and to the ends", () => {
  for (const range of [LAYERS, BATCH, WIDTH]) {
    let value = range.least;
    for (let presses = 0; value < range.most && presses < 1000; presses += 1) {
      const next = neighbour(range, value, 1, false);
      assert.ok(next > value, `${value}`);
      assert.ok(neighbour(range, next, -1, false) < next, `${next}`);
      value = next;
    }
    assert.equal(value, range.most);
  }
});

test("typed values are moved into the range", () => {
  assert.deepEqual([-5, 70, 1e9, NaN].map((it) => snap(WIDTH, it)), [64, 64, 2048, 64]);
});

function step(allocated: number[], held: number[][], checkpoint = "none"): StepTimeline {
  const peak = Math.max(...allocated);
  const point = allocated.indexOf(peak);
  return {
    checkpoint, allocated, reserved: allocated, held, purposes: held.map((_, row) => `p${row}`), parameters: 1,
    events: allocated.map((_, point) => point),
    phases: [
      { name: "forward", begin: 0, end: 2, from: 0, to: 2, operations: 10, kernels: 2, seconds: seconds(10, 2) },
      { name: "step", begin: 2, end: 4, from: 2, to: 4, operations: 10, kernels: 2, seconds: seconds(10, 2) },
    ],
    peak: { allocated: peak, reserved: peak, point, phase: "backward" },
  };
}

test("areas stand on each other and end at what is allocated", () => {
  const it = step([3, 5, 9], [[1, 1, 1], [2, 4, 8]]);
  assert.deepEqual(stacked(it), [[1, 1, 1], [3, 5, 9]]);
  assert.deepEqual(stacked(it).at(-1), it.allocated);
  assert.deepEqual(heldAt(it, 2), [{ purpose: "p0", bytes: 1 }, { purpose: "p1", bytes: 8 }]);
  assert.deepEqual([phaseAt(it, 0), phaseAt(it, 2), phaseAt(it, 9)], ["forward", "optimizer", ""]);
  assert.equal(phaseName("zero_grad"), "zero grad");
});

test("the sentence gives the exact peak and what checkpoints save", () => {
  const MIB = 1024 ** 2;
  const none = step([400 * MIB], [[400 * MIB]]);
  const sqrt = step([100 * MIB], [[100 * MIB]], "sqrt");
  const answer: PredictAnswer = { fits: null, step: none, none, sqrt, command: "" };
  assert.equal(
    meaning(answer),
    "The peak is 400.00 MiB, exactly 419,430,400 bytes; backward sets it. √n checkpoints need 100.00 MiB instead of 400.00 MiB without: 300.00 MiB (75 %) less.",
  );
  assert.match(meaning({ ...answer, sqrt: none }), /save nothing here/);
  assert.match(meaning({ ...answer, sqrt: null }), /no blocks to checkpoint/);
  assert.equal(most(answer), 400 * MIB);
});

/** Questions whose answers come when the test says so. */
function questions() {
  const open: { question: number; answer: () => void; fail: () => void; signal: AbortSignal }[] = [];
  const answers: number[] = [];
  const errors: string[] = [];
  const latest = new Latest<number, number>(
    (question, signal) =>
      new Promise((resolve, reject) => {
        signal.addEventListener("abort", () => reject(new Error("aborted")));
        open.push({ question, answer: () => resolve(question), fail: () => reject(new Error(`no ${question}`)), signal });
      }),
    (answer) => answers.push(answer),
    (error) => errors.push(String(error)),
    20,
  );
  const settle = () => new Promise((resume) => setTimeout(resume, 0));
  return { open, answers, errors, latest, settle };
}

test("while one question is on its way, only the latest waits", async () => {
  const { open, answers, latest, settle } = questions();
  [1, 2, 3, 4].forEach((it) => latest.put(it));
  assert.deepEqual(open.map((it) => it.question), [1]);
  open[0].answer();
  await settle();
  assert.deepEqual(open.map((it) => it.question), [1, 4]);
  open[1].answer();
  await settle();
  assert.deepEqual(answers, [1, 4]);
  latest.put(5);
  assert.equal(open.length, 3);
});

test("a question that takes too long is given up for the next", async () => {
  const { open, answers, errors, latest, settle } = questions();
  latest.put(1);
  await new Promise((resume) => setTimeout(resume, 40));
  latest.put(2);
  await settle();
  assert.ok(open[0].signal.aborted);
  open[1].answer();
  await settle();
  assert.deepEqual([answers, errors], [[2], []]);
});

test("a refusal is told, unless something newer is asked", async () => {
  const { open, answers, errors, latest, settle } = questions();
  latest.put(1);
  latest.put(2);
  open[0].fail();
  await settle();
  assert.deepEqual(errors, []);
  open[1].fail();
  await settle();
  assert.deepEqual(errors, ["Error: no 2"]);
  latest.put(3);
  open[2].answer();
  await settle();
  assert.deepEqual(answers, [3]);
});

const STEP = {
  allocated: [1, 2, 3, 4, 5, 6, 7, 8, 9, 10], events: [0, 1, 2, 3, 4, 5, 6, 7, 8, 9],
  phases: [
    { name: "forward", begin: 0, end: 4, from: 0, to: 40, operations: 1000, kernels: 30, seconds: seconds(1000, 30) },
    { name: "backward", begin: 4, end: 8, from: 40, to: 90, operations: 2000, kernels: 60, seconds: seconds(2000, 60) },
    { name: "step", begin: 8, end: 8, from: 90, to: 90, operations: 20, kernels: 9, seconds: seconds(20, 9) },
    { name: "zero_grad", begin: 8, end: 10, from: 90, to: 100, operations: 0, kernels: 0, seconds: seconds(0, 0) },
  ],
};

test("every phase has a width, the optimizer that asks for nothing too", () => {
  for (const [along] of ALONGS) {
    const { x, phases, marks } = placed(STEP, along);
    assert.ok(phases.every((it) => it.right - it.left >= 0.03 - 1e-9), along);
    assert.ok(Math.abs((phases.at(-1)?.right ?? 0) - 1) < 1e-9);
    assert.ok(x.every((at, point) => at >= (x[point - 1] ?? 0) && at <= 1), `${along}: ${x}`);
    // Points lie within their phase.
    STEP.phases.forEach(({ begin, end }, place) => {
      for (let point = begin; point < end; point++) assert.ok(x[point] >= phases[place].left - 1e-9 && x[point] < phases[place].right);
    });
    assert.ok(marks.length >= 3 && marks.every((it, place) => it.at >= (marks[place - 1]?.at ?? 0) && it.at <= 1 + 1e-9), along);
  }
  const wide = (along: Along, place: number) => {
    const it = placed(STEP, along).phases[place];
    return it.right - it.left;
  };
  assert.ok(Math.abs(wide("arithmetic", 1) / wide("arithmetic", 0) - 2) < 1e-9);
  assert.ok(wide("kernels", 2) > wide("arithmetic", 2));
  // What moves much takes time, whatever it computes.
  assert.ok(wide("H200", 2) > 1.5 * wide("arithmetic", 2));
});

test("a step without anything has an axis all the same", () => {
  assert.deepEqual(placed({ allocated: [], events: [], phases: [] }, "events"), { x: [], phases: [], marks: [] });
  const nothing = [{ name: "simulate", begin: 0, end: 1, from: 0, to: 0, operations: 0, kernels: 0, seconds: seconds(0, 0) }];
  assert.deepEqual(placed({ allocated: [5], events: [0], phases: nothing }, "arithmetic").phases, [{ name: "simulate", left: 0, right: 1 }]);
});

test("large numbers are short", () => {
  assert.deepEqual([0, 1234, 5e6, 1.25e9, 3e12].map(brief), ["0", "1,234", "5 M", "1.25 G", "3 T"]);
});

test("the largest batch is told with what makes it larger", () => {
  const techniques = [{ flags: "--amp bf16", batch: 12 }, { flags: "--offload", batch: 30 }, { flags: "--accumulate 2", batch: 8 }];
  assert.equal(
    fitWords({ limit: 2 * 1024 ** 3, batch: 8, techniques }),
    "The largest batch for 2.00 GiB is 8; 30 with --offload, 12 with --amp bf16. Each was run without numbers.",
  );
  assert.match(fitWords({ limit: 1024, batch: 0, techniques: [] }), /^Not even a batch of one fits into 1.00 KiB\./);
});
