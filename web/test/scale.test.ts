import assert from "node:assert/strict";
import { test } from "node:test";
import { around, labels, upTo } from "../src/chart/scale.ts";

const MIB = 1024 ** 2;

test("lines of an axis share a unit", () => {
  assert.deepEqual(labels([0, 512 * MIB, 1024 * MIB, 1536 * MIB]), ["0", "0.5 GiB", "1 GiB", "1.5 GiB"]);
  assert.deepEqual(labels([-2 * MIB, 0, 2 * MIB]), ["−2 MiB", "0", "2 MiB"]);
  assert.deepEqual(labels([0, 256]), ["0", "256 B"]);
});

test("an axis begins at 0 and is never empty", () => {
  assert.deepEqual(upTo(0), [0, 1]);
  assert.ok(upTo(100)[1] > 100);
});

test("0 is on the axis of differences", () => {
  for (const [least, most] of [[0, 0], [-5, 0], [0, 5], [-5, 5], [3, 5], [-5, -3]] as const) {
    const [low, high] = around(least, most);
    assert.ok(low <= Math.min(0, least) && high >= Math.max(0, most) && low < high, `${least} ${most}`);
  }
});
