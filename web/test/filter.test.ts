import assert from "node:assert/strict";
import { test } from "node:test";
import { match } from "../src/filter/match.ts";
import { parse, quoted } from "../src/filter/parse.ts";
import { type Row, recordingOf } from "./made.ts";

const MIB = 1024 ** 2;

const SITES = [
  null,
  { file: "/home/me/train.py", line: 12, function: "forward" },
  { file: "/home/me/train.py", line: 120, function: "Backward" },
  { file: "/home/me/pretrain.py", line: 12, function: "step" },
  { file: "/home/my models/net.py", line: 3, function: "<script>" },
];

const ROWS: Row[] = [
  { begin: 1, end: 5, size: 2 * MIB, site: 1, purpose: 1, segment: 1 },
  { begin: 2, end: 90, size: MIB, site: 2, purpose: 2, stream: 1, segment: 2 },
  { begin: 3, size: 512, site: 3, address: 4096 },
  { begin: 4, end: 5, size: 3 * MIB, site: 4, segment: 2 },
  { begin: 0, size: 100 },
];

const RECORDING = recordingOf(
  100,
  ROWS,
  [{ address: 0, size: 20 * MIB, pool: 0 }, { address: 0, size: 20 * MIB, pool: 1 }],
  { sites: SITES, streams: ["0", "0x55aa"] },
);

function taken(query: string): number[] {
  const { terms, complaints } = parse(query);
  assert.deepEqual(complaints, [], query);
  const found = match(RECORDING, terms);
  assert.deepEqual(found.complaints, [], query);
  return ROWS.map((_, row) => row).filter((row) => found.matched.shown[row] === 1);
}

test("each term takes what it says", () => {
  const cases: [string, number[]][] = [
    ["", [0, 1, 2, 3, 4]],
    ["line:train.py:12", [0]],
    ["line:train.py", [0, 1]],
    ["line:me/train.py:120", [1]],
    ["line:/home/me/train.py:12", [0]],
    ['line:"my models/net.py":3', [3]],
    ["train.py:12", [0, 1, 2]],
    ["FORWARD", [0]],
    ["<script>", [3]],
    ["-line:train.py", [2, 3, 4]],
    ["size:>1MiB", [0, 3]],
    ["size:>=1MiB", [0, 1, 3]],
    ["size:512", [2]],
    ["size:1MiB..2MiB", [0, 1]],
    ["size:<0.5k", [4]],
    ["-size:>=1m", [2, 4]],
    ["life:<=4", [0, 3]],
    ["life:1", [3]],
    ["life:>0.5ms", [1, 2, 4]],
    ["stream:0x55AA", [1]],
    ["-stream:0x55aa", [0, 2, 3, 4]],
    ["pool:large", [1, 3]],
    ["-pool:large", [0, 2, 4]],
    ["purpose:activ", [0]],
    ["-purpose:unknown", [0, 1]],
    ["live:peak", [0, 1, 2, 3, 4]],
    ["live:95", [2, 4]],
    ["live:3", [0, 1, 2, 3, 4]],
    ["live:4", [1, 2, 4]],
    ["address:0x1080", [2]],
    ["size:>1MiB life:<2 -purpose:activations", [3]],
  ];
  for (const [query, rows] of cases) {
    assert.deepEqual(taken(query), rows, query);
  }
});

test("sums and the largest are of what is taken", () => {
  const { matched } = match(RECORDING, parse("size:>=1MiB").terms);
  assert.equal(matched.count, 3);
  assert.equal(matched.bytes, 6 * MIB);
  assert.equal(matched.atPeak, 6 * MIB);
  assert.deepEqual(matched.largest, [3, 0, 1]);
});

test("of many, the ten largest are listed in order", () => {
  const rows = Array.from({ length: 500 }, (_, row) => ({ size: (row * 7919) % 1009 }));
  const { matched } = match(recordingOf(2, rows), []);
  const expected = rows.map((it, row) => [it.size, row]).sort((a, b) => b[0] - a[0] || a[1] - b[1]).slice(0, 10);
  assert.deepEqual(matched.largest, expected.map((it) => it[1]));
});

test("what is wrong is said in words, at its place", () => {
  const cases: [string, number, number, RegExp][] = [
    ["size:>1XiB", 0, 10, /“XiB” is no unit of bytes/],
    ["forward size:>", 8, 14, /a number is missing/],
    ["size:abc", 0, 8, /“abc” is no number/],
    ["size:2m..1m", 0, 11, /2m is more than 1m/],
    ["life:5parsecs", 0, 13, /no unit of time/],
    ["life:5..6ms", 0, 11, /both ends/],
    ["lien:train.py", 0, 13, /there is no “lien:”; line: is meant\?/],
    ["zzz:1", 0, 5, /there are line: frame: module: size:/],
    ["line::12", 0, 8, /a file is missing/],
    ["pool:", 0, 5, /a name is missing/],
    ['a "b c', 2, 6, /closing quote/],
    ["address:0xzz", 0, 12, /an address is missing/],
  ];
  for (const [query, from, to, text] of cases) {
    const { complaints } = parse(query);
    assert.equal(complaints.length, 1, query);
    assert.deepEqual([complaints[0].from, complaints[0].to], [from, to], query);
    assert.match(complaints[0].text, text);
  }
});

test("names that the recording does not have are complained about with those it has", () => {
  for (const [query, text] of [
    ["stream:7", /no stream is called “7”; there are 0, 0x55aa/],
    ["purpose:fun", /no purpose is called “fun”; there are unknown/],
    ["pool:huge", /there are small, large/],
  ] as const) {
    const { complaints } = match(RECORDING, parse(query).terms);
    assert.match(complaints[0].text, text);
  }
  const untimed = recordingOf(3, ROWS, [], { timed: false });
  assert.match(match(untimed, parse("life:>1ms").terms).complaints[0].text, /no times/);
});

test("a text of any length is read in little time", () => {
  const { terms, complaints } = parse("size:>1 ".repeat(100_000));
  assert.equal(terms.length, 50);
  assert.match(complaints[0].text, /more than 50/);
});

test("a quoted value is read as it was", () => {
  for (const value of ["plain", "with space", "a:b", ""]) {
    const { terms, complaints } = parse(`stream:${quoted(value)}`);
    assert.deepEqual(terms.map((it) => it.test), value === "" ? [] : [{ kind: "stream", text: value }]);
    assert.equal(complaints.length, value === "" ? 1 : 0);
  }
});
