import assert from "node:assert/strict";
import { test } from "node:test";
import type { Candidate } from "../src/api.ts";
import { parse, valueOf, withValue, write } from "../src/what-if/conf.ts";
import { meaning, percent } from "../src/what-if/meaning.ts";
import { listed, share } from "../src/what-if/ranking.ts";
import { parseSize } from "../src/what-if/size.ts";

const MIB = 1024 ** 2;

test("settings come back as they were", () => {
  for (const conf of ["", "expandable_segments:True", "a:1,b:[256:1,512:2,>:4],c:0.6", "unknown"]) {
    assert.equal(write(parse(conf)), conf);
  }
  assert.deepEqual(parse(" a : 1 ,, b:[1:2,>:3] "), [["a", "1"], ["b", "[1:2,>:3]"]]);
});

test("brackets that never close are one value, and take no time", () => {
  assert.equal(parse(`a:[${"1,".repeat(100_000)}`).length, 1);
  assert.equal(parse(`a:]${",b".repeat(3)}`).length, 4);
});

test("a knob changes its own key and nothing else", () => {
  const conf = "max_split_size_mb:64,other:[1:2,3:4],max_split_size_mb:128";
  assert.equal(valueOf(conf, "max_split_size_mb"), "128");
  assert.equal(withValue(conf, "max_split_size_mb", "256"), "max_split_size_mb:256,other:[1:2,3:4]");
  assert.equal(withValue(conf, "max_split_size_mb", ""), "other:[1:2,3:4]");
  assert.equal(withValue("", "expandable_segments", "True"), "expandable_segments:True");
  assert.equal(valueOf("", "expandable_segments"), "");
});

test("sizes are read in binary and decimal units", () => {
  const sizes = ["24GiB", "24 GB", "1048576", "1.5 kib", "80g", "24Gi", "512B", ""].map(parseSize);
  assert.deepEqual(sizes, [24 * 1024 * MIB, 24e9, MIB, 1536, 80 * 1024 * MIB, 24 * 1024 * MIB, 512, null]);
  for (const wrong of ["much", "-1", "0", "1e9GiB", "24 parsecs", "GiB", "9999999999999 TiB"]) {
    assert.throws(() => parseSize(wrong), /is no size: write bytes/, wrong);
  }
  assert.throws(() => parseSize("24"), /“24” would be 24 bytes: write 24GiB, or 24B/);
});

test("the sentence says what changes", () => {
  const outcome = { policy: "pytorch", limit: null, was: 400 * MIB, now: 100 * MIB, failed: 0, oom: null };
  assert.equal(
    meaning("a:1", outcome),
    "Under a:1 the job reserves 100.00 MiB at its peak instead of 400.00 MiB: 300.00 MiB (75 %) less.",
  );
  assert.match(meaning("a:1", { ...outcome, now: 410 * MIB }), /10\.00 MiB \(2\.5 %\) more\.$/);
  assert.match(meaning("", { ...outcome, now: 400 * MIB }), /^Under PyTorch’s defaults the job reserves as much as it did/);
  assert.match(meaning("a:1", { ...outcome, limit: 500 * MIB }), /^Under a:1 and a limit of 500\.00 MiB the job/);
  assert.match(meaning("", { ...outcome, policy: "pages" }), /^Under the policy pages the job/);
  assert.match(meaning("a:1", { ...outcome, failed: 1 }), /The request that failed goes through\.$/);
  assert.match(meaning("a:1", { ...outcome, failed: 3 }), /The 3 requests that failed go through\.$/);
});

test("a job that fails is never called a saving", () => {
  const oom = { entry: 1234, bytes: 20 * MIB };
  const fails = meaning("a:1", { policy: "pytorch", limit: null, was: 400 * MIB, now: 100 * MIB, failed: 0, oom });
  assert.match(fails, /the job fails: at entry 1,234 a request of 20\.00 MiB finds no room/);
  assert.doesNotMatch(fails, /less/);
  assert.match(meaning("a:1", { policy: "pytorch", limit: null, was: 1, now: 1, failed: 2, oom }), /still fails/);
});

test("shares have digits where they matter", () => {
  assert.deepEqual([percent(1, 3), percent(1, 30), percent(-1, 2), percent(1, 0)], ["33 %", "3.3 %", "50 %", "0.0 %"]);
});

test("the recorded setting is listed wherever it stands", () => {
  const candidates = Array.from({ length: 30 }, (_, place) => ({ conf: `${place}`, reservedPeak: place, recorded: place === 25 }) as Candidate);
  assert.deepEqual(listed(candidates, false).map((it) => it.conf), [..."0123456789", "25"]);
  assert.equal(listed(candidates, true).length, 30);
});

test("of settings that come to the same, the shortest is listed", () => {
  const candidate = (conf: string, reservedPeak: number) => ({ conf, reservedPeak }) as Candidate;
  const candidates = [candidate("a,b", 1), candidate("a", 1), candidate("b", 2), candidate("b,c", 2)];
  assert.deepEqual(listed(candidates, false).map((it) => it.conf), ["a", "b"]);
});

test("bars end where the largest does", () => {
  assert.deepEqual([share(5, 10), share(20, 10), share(1, 0)], [50, 100, 0]);
});
