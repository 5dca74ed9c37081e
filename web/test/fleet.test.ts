import assert from "node:assert/strict";
import { test } from "node:test";
import type { FleetFile, FleetHead } from "../src/api.ts";
import { figureOf, gridOf, span, values } from "../src/fleet/grid.ts";
import { gapsOf, niceStep } from "../src/fleet/map.ts";
import { MARKS, marksOf } from "../src/fleet/marks.ts";
import { isTold, ordered } from "../src/fleet/order.ts";
import { HOT, LEVELS, NONE, across, covered, levels, pooled, shownAt } from "../src/fleet/raster.ts";
import { type Fleet, nameOf, placeOf, readable } from "../src/fleet/table.ts";
import { cellLines, figureText, fileOf } from "../src/fleet/words.ts";

const MIB = 1024 ** 2;

/** A file with its iterations: number, live, reserved. */
interface Made extends Partial<FleetFile> {
  levels?: [number, number, number][];
  live?: number;
  reserved?: number;
}

function fleet(made: Made[], head: Partial<FleetHead> = {}): Fleet {
  const files = made.map((it, number): FleetFile => ({
    address: it.address ?? `f${number}`, rank: it.rank ?? null, node: it.node ?? null, pp: it.pp ?? null, tp: it.tp ?? null, dp: it.dp ?? null,
    step: it.step ?? null, group: it.group ?? null, error: it.error ?? null, cause: null, shares: it.shares ?? null,
  }));
  const flat = made.flatMap((it) => it.levels ?? []);
  let end = 0;
  return {
    head: { columns: [], files, text: "", sections: [], limit: null, given: false, failed: [], outliers: [], near: [], ...head },
    files,
    live: Float64Array.from(made, (it) => it.live ?? NaN),
    reserved: Float64Array.from(made, (it) => it.reserved ?? NaN),
    iterations: Float64Array.from(made, (it) => it.levels?.length ?? NaN),
    starts: Uint32Array.from([0, ...made.map((it) => (end += it.levels?.length ?? 0))]),
    number: Float64Array.from(flat, (it) => it[0]),
    liveIn: Float64Array.from(flat, (it) => it[1]),
    reservedIn: Float64Array.from(flat, (it) => it[2]),
    byAddress: new Map(files.map((file, number) => [file.address, number])),
  };
}

test("a row is a rank and a column an iteration, the peak before them", () => {
  const of = fleet([
    { rank: 0, live: 8, reserved: 10, levels: [[0, 5, 6], [2, 8, 10]] },
    { rank: 1, live: 7, reserved: 9 },
    { rank: 2, error: "no snapshot" },
  ]);
  const grid = gridOf(of);
  assert.deepEqual([grid.steps, grid.columns, grid.rows], ["iterations", [null, 0, 2], [[0], [1], [2]]]);
  assert.deepEqual([...grid.reserved], [10, 6, 10, 9, NaN, NaN, NaN, NaN, NaN]);
  assert.deepEqual([...grid.live], [8, 5, 8, 7, NaN, NaN, NaN, NaN, NaN]);
  assert.deepEqual([...grid.file], [0, 0, 0, 1, -1, -1, 2, -1, -1]);
});

test("where ranks have snapshots at several steps, these are the steps", () => {
  const of = fleet([
    { rank: 1, step: 20, live: 4, reserved: 9 },
    { rank: 1, step: 10, live: 6, reserved: 7, levels: [[0, 1, 1]] },
    { rank: 0, step: 10, live: 1, reserved: 2 },
  ]);
  const grid = gridOf(of);
  assert.deepEqual([grid.steps, grid.columns, grid.rows], ["snapshots", [null, 10, 20], [[1, 0], [2]]]);
  // The peak of each figure is of all snapshots; it leads to the one that reserves most.
  assert.deepEqual([...grid.file], [0, 1, 0, 2, 2, -1]);
  assert.deepEqual([...grid.reserved], [9, 7, 9, 2, 2, NaN]);
  assert.deepEqual([...grid.live], [6, 6, 4, 1, 1, NaN]);
});

test("a cell without a snapshot stands for the rank, whose file is that of its peak", () => {
  // By address step 20 comes before step 5.
  const grid = gridOf(fleet([{ rank: 0, step: 20, reserved: 9 }, { rank: 0, step: 5, reserved: 2 }, { rank: 1, step: 30, reserved: 1 }]));
  assert.deepEqual(grid.columns, [null, 5, 20, 30]);
  assert.deepEqual([0, 1, 2, 3].map((column) => fileOf(grid, 0, column)), [0, 1, 0, 0]);
});

test("a snapshot that cannot be read is no rank's peak, whichever comes first", () => {
  const good: Made = { rank: 0, step: 2, live: 1, reserved: 5 };
  for (const step of [1, 3]) assert.equal(gridOf(fleet([good, { rank: 0, step, error: "cut off" }])).file[0], 0);
});

test("two files of one rank that no step tells apart are two rows", () => {
  for (const made of [[{ rank: 0 }, { rank: 0 }], [{ rank: 0, step: 1 }, { rank: 0, step: 1 }], [{ rank: 0, step: 1 }, { rank: 0 }]]) {
    assert.deepEqual(gridOf(fleet(made)).rows, [[0], [1]]);
  }
  assert.equal(gridOf(fleet([])).steps, "none");
});

test("of more steps than a page holds the first and the last are shown", () => {
  const many = Array.from({ length: 10_000 }, (_, number): [number, number, number] => [number, 1, 2]);
  const { columns } = gridOf(fleet([{ rank: 0, levels: many }]));
  assert.ok(columns.length <= 4096 && columns[1] === 0 && columns.at(-1) === 9_999, String(columns.length));
});

test("figures are what their names say", () => {
  assert.equal(figureOf("live", 8, 10, null), 8);
  assert.equal(figureOf("reserved", 8, 10, null), 10);
  assert.equal(figureOf("waste", 8, 10, null), 1.25);
  assert.ok(Number.isNaN(figureOf("waste", 0, 10, null)));
  assert.equal(figureOf("limit", 8, 10, 20), 0.5);
  assert.ok(Number.isNaN(figureOf("limit", 8, 10, null)));
  const grid = gridOf(fleet([{ rank: 0, live: 8, reserved: 10, levels: [[0, 5, 6]] }]));
  assert.deepEqual([...values(grid, "waste", null)], [1.25, 1.2]);
  assert.deepEqual(span(values(grid, "reserved", null)), { least: 6, most: 10 });
  assert.equal(span(Float64Array.of(NaN)), null);
  assert.deepEqual([figureText("waste", 1.25), figureText("limit", 0.951), figureText("reserved", 3 * MIB), figureText("live", NaN)], ["1.25", "95.1 %", "3.00 MiB", "not known"]);
});

const RANKS = [
  { rank: 3, pp: 1, group: 0, reserved: 5 },
  { rank: 1, pp: 0, group: 1, reserved: 9 },
  { rank: 2, pp: 1, group: 1, reserved: 7 },
  { address: "z", error: "broken" },
  { rank: 0, pp: 0, group: 0, reserved: 1 },
];

function order(sort: "rank" | "most", by: "none" | "pp" | "alike" | "node") {
  const of = fleet(RANKS);
  const grid = gridOf(of);
  return ordered(of, grid, (row) => of.reserved[row], sort, by);
}

test("ranks are sorted by number or by figure, and what has neither comes last", () => {
  assert.deepEqual([...order("rank", "none").rows], [4, 1, 2, 0, 3]);
  assert.deepEqual([...order("most", "none").rows], [1, 2, 0, 4, 3]);
  const { rows, place } = order("most", "none");
  rows.forEach((row, at) => assert.equal(place[row], at));
});

test("groups are neighbours, sorted within", () => {
  const byStage = order("most", "pp");
  assert.deepEqual([...byStage.rows], [1, 4, 2, 0, 3]);
  assert.deepEqual(byStage.groups, [{ label: "pp 0", from: 0, to: 2 }, { label: "pp 1", from: 2, to: 4 }, { label: "no pp", from: 4, to: 5 }]);
  const alike = order("rank", "alike");
  assert.deepEqual([...alike.rows], [4, 0, 1, 2, 3]);
  assert.deepEqual(alike.groups.map((it) => it.label), ["group 1", "group 2", "not read"]);
  assert.deepEqual([isTold(fleet(RANKS), "pp"), isTold(fleet(RANKS), "node"), isTold(fleet(RANKS), "alike")], [true, false, true]);
});

test("the gravest mark of a rank is the one that is shown", () => {
  const of = fleet(RANKS, { failed: [1], outliers: [1, 2], near: [0, 2, 99] });
  const marks = marksOf(of, gridOf(of));
  assert.deepEqual([...marks].map((it) => MARKS[it].sign), ["!", "×", "≠", "?", ""]);
});

test("levels are steps from the least to the most, and beyond a threshold a warning", () => {
  assert.deepEqual([...levels(Float64Array.of(10, 20, NaN, 15), 10, 20, Infinity)], [1, LEVELS, NONE, 33]);
  assert.deepEqual([...levels(Float64Array.of(0.5, 0.95, 1.2), 0.5, 0.95, 0.95)], [1, HOT, HOT]);
  assert.deepEqual([...levels(Float64Array.of(7, 7), 7, 7, Infinity)], [1, 1]);
});

test("of cells that share a pixel the most is shown, and that one is pointed at", () => {
  // Four ranks with two steps, of which the third has one that stands out.
  const of = Uint8Array.of(1, 2, 1, 2, 1, 60, 1, 2);
  const sorted = Int32Array.of(3, 2, 1, 0);
  const look = { from: 0, each: 2, height: 2 };
  assert.deepEqual([...pooled(of, 2, [0, 2], sorted, look, 2)], [1, 60, 1, 2]);
  assert.deepEqual([...pooled(of, 2, [0, 2], sorted, look, 1)], [60, 2]);
  assert.deepEqual(shownAt(of, 2, sorted, covered(look, 0, 4), [0, 2]), [1, 1]);
  assert.deepEqual(shownAt(of, 2, sorted, [0, 1], [0, 1]), [0, 0]);
  assert.deepEqual([...pooled(of, 2, [1, 1], sorted, look, 1)], [0, 0]);
});

test("every cell is within the picture, however many share a pixel", () => {
  for (const [rows, height] of [[4096, 500], [7, 3], [500, 499], [3, 3]]) {
    const seen = new Set<number>();
    const look = { from: 0, each: rows / height, height };
    for (let y = 0; y < height; y++) for (let [at, end] = covered(look, y, rows); at < end; at++) seen.add(at);
    assert.equal(seen.size, rows);
    const columns = new Set<number>();
    for (let x = 0; x < height; x++) for (let [at, end] = across([1, rows + 1], height, x); at < end; at++) columns.add(at);
    assert.equal(columns.size, rows);
  }
});

test("a cell is told in words, with nothing that hides in names", () => {
  const of = fleet([{ rank: 5, pp: 1, dp: 2, live: 4 * MIB, reserved: 5 * MIB, levels: [[7, 2 * MIB, 4 * MIB]] }, { rank: 6, shares: 0 }, { address: "runs/\u202eelkcip.a", error: "no" }], { limit: 10 * MIB });
  const grid = gridOf(of);
  assert.deepEqual(cellLines(of, grid, 0, 1, 10 * MIB), ["rank 5 (pp 1, dp 2), iteration 7", "4.00 MiB reserved", "2.00 MiB live requested", "waste 2.00", "40.0 % of the limit of 10.00 MiB"]);
  assert.deepEqual(cellLines(of, grid, 1, 1, null), ["rank 6, iteration 7", "nothing is kept of this", "shares the run of rank 5"]);
  assert.deepEqual(cellLines(of, grid, 2, 0, null), ["runs/\ufffdelkcip.a, peak", "the file could not be read"]);
  assert.equal(nameOf(of.files[2]), "runs/\ufffdelkcip.a");
  assert.equal(placeOf(of.files[0]), "pp 1, dp 2");
  const [section] = readable([{ kind: "failed", title: "a\u0007", lines: [{ file: "raw\u202e", name: "b\u202e", words: ["c\u0000"] }] }]);
  assert.deepEqual(section, { kind: "failed", title: "a\ufffd", lines: [{ file: "raw\u202e", name: "b\ufffd", words: ["c\ufffd"] }] });
});

test("a gap is where iterations are left out, and snapshots have none", () => {
  assert.deepEqual([...gapsOf({ steps: "iterations", columns: [null, 5, 6, 90, 91] })], [3]);
  assert.deepEqual([...gapsOf({ steps: "snapshots", columns: [null, 5, 90] })], []);
  assert.deepEqual([...gapsOf({ steps: "none", columns: [null] })], []);
});

test("sentences that name two long addresses are whole, and what hides in them is shown", () => {
  const address = `s3://bucket/${"folder/".repeat(40)}snapshot.pickle`;
  const words = [`${address} reserves most, and \u202e${address} least; the mean is 5 GiB.`];
  const [section] = readable([{ kind: "near", title: "", lines: [{ file: null, name: "", words }] }]);
  assert.deepEqual(section.lines[0].words, [words[0].replace("\u202e", "\ufffd")]);
  const [endless] = readable([{ kind: "near", title: "", lines: [{ file: null, name: "", words: ["x".repeat(1e6)] }] }]);
  assert.equal(endless.lines[0].words[0].length, 2_001);
});

test("steps of an axis are round", () => {
  assert.deepEqual([0, 1, 3, 7, 11, 60, 400].map(niceStep), [1, 1, 5, 10, 20, 100, 500]);
});
