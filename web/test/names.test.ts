import assert from "node:assert/strict";
import { test } from "node:test";
import type { RecordingInfo } from "../src/api.ts";
import type { Summary } from "../src/compare/summary.ts";
import { found, ordered } from "../src/compare/order.ts";
import { fromEnd } from "../src/format.ts";
import { fullName, shortName } from "../src/names.ts";

const info = (id: number, name: string, more: Partial<RecordingInfo> = {}): RecordingInfo =>
  ({ id, name, kind: "file", device: 0, entries: 0, allocations: 0, version: 0, conf: "", of: null, policy: "", limit: null, row: null, ...more });

test("of a path its end is shown, in whole parts", () => {
  assert.equal(fromEnd("short.pickle", 40), "short.pickle");
  assert.equal(fromEnd("/home/me/experiments/long-name/rank7.pickle", 26), "…/long-name/rank7.pickle");
  assert.equal(fromEnd("x".repeat(50), 10), `…${"x".repeat(9)}`);
});

test("recordings are named with their device, what-ifs with their source", () => {
  const all = [info(0, "/very/long/path/of/some/experiment/number/one/rank0.pickle", { device: 3 }), info(1, "what if: a:1", { kind: "what-if", of: 0, device: 3 })];
  assert.equal(fullName(all[0], all), "/very/long/path/of/some/experiment/number/one/rank0.pickle · device 3");
  assert.equal(shortName(all[0], all), "…/experiment/number/one/rank0.pickle · device 3");
  assert.equal(shortName(all[1], all), "what if: a:1 of …/experiment/number/one/rank0.pickle · device 3");
  assert.match(shortName(all[1], []), /of a recording that is gone/);
});

const SUMMARIES = ["rank10", "rank2", "rank1"].map((name, place) =>
  ({ info: info(place, name, { conf: place === 1 ? "expandable_segments:True" : "" }), reserved: [5, 9, 5][place], failed: place }) as Summary);
const name = (it: Summary) => fullName(it.info, []);
const names = (list: Summary[]) => list.map((it) => it.info.name);

test("the table is sorted by any column, numbers in names as numbers", () => {
  assert.deepEqual(names(ordered(SUMMARIES, { by: "opened", down: false }, name)), ["rank10", "rank2", "rank1"]);
  assert.deepEqual(names(ordered(SUMMARIES, { by: "name", down: false }, name)), ["rank1", "rank2", "rank10"]);
  assert.deepEqual(names(ordered(SUMMARIES, { by: "reserved", down: true }, name)), ["rank2", "rank10", "rank1"]);
  assert.deepEqual(names(ordered(SUMMARIES, { by: "failed", down: true }, name)), ["rank1", "rank2", "rank10"]);
});

test("recordings are found by words of their name, device and settings", () => {
  assert.deepEqual(names(found(SUMMARIES, "RANK1", name)), ["rank10", "rank1"]);
  assert.deepEqual(names(found(SUMMARIES, "expandable rank", name)), ["rank2"]);
  assert.deepEqual(names(found(SUMMARIES, "device 0", name)), ["rank10", "rank2", "rank1"]);
  assert.deepEqual(names(found(SUMMARIES, "nothing", name)), []);
});
