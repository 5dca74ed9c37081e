import assert from "node:assert/strict";
import { test } from "node:test";
import { bytes, count, duration, exactBytes, exactly } from "../src/format.ts";

test("bytes read as the command prints them", () => {
  assert.deepEqual(
    [0, 1, 512, 1024, 1536, 20 * 1024 ** 2, 2.9 * 1024 ** 3, -1536].map(bytes),
    ["0 bytes", "1 byte", "512 bytes", "1.00 KiB", "1.50 KiB", "20.00 MiB", "2.90 GiB", "−1.50 KiB"],
  );
});

test("1024 of a unit are one of the next, also when it takes rounding", () => {
  assert.deepEqual(
    [1023, 1_048_570, 1_048_571, 1024 ** 2, 1024 ** 3 - 1, 1024 ** 4, 1024 ** 5].map(bytes),
    ["1023 bytes", "1023.99 KiB", "1.00 MiB", "1.00 MiB", "1.00 GiB", "1.00 TiB", "1.00 PiB"],
  );
  assert.deepEqual([1, 512, 1024].map(exactly), ["1 byte", "512 bytes", "1.00 KiB (1,024 bytes)"]);
});

test("exact bytes name one number only", () => {
  assert.deepEqual(
    [512, 1536, 218_103_808, 218_103_807, 24 * 1024 ** 3 + 1].map(exactBytes),
    ["512 bytes", "1.50 KiB", "208.00 MiB", "218103807 bytes", "25769803777 bytes"],
  );
});

test("counts are grouped by three", () => {
  assert.deepEqual([0, 999, 1000, 1234567].map(count), ["0", "999", "1,000", "1,234,567"]);
});

test("durations are in the unit that fits", () => {
  assert.deepEqual([5, 1500, 2_500_000].map(duration), ["5 µs", "1.50 ms", "2.50 s"]);
});
