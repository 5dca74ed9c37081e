import assert from "node:assert/strict";
import { test } from "node:test";
import type { Column, RecordingInfo, TimelineHead } from "../src/api.ts";
import { decode } from "../src/recording.ts";

const INFO = { id: 0, name: "a", kind: "file", entries: 2 } as unknown as RecordingInfo;

const TYPES: Record<string, Column["type"]> = {
  "time": "f64", "allocated": "f64", "reserved": "f64",
  "allocations.address": "f64", "allocations.requested": "f64", "allocations.size": "f64",
  "allocations.begin": "u32", "allocations.end": "u32", "allocations.done": "u32",
  "allocations.stream": "u16", "allocations.site": "u32", "allocations.stack": "u32",
  "allocations.purpose": "u8", "allocations.segment": "u32",
  "segments.address": "f64", "segments.size": "f64", "segments.begin": "u32", "segments.end": "u32",
  "segments.stream": "u16", "segments.pool": "u16",
};

const WIDTH = { f64: 8, u32: 4, u16: 2, u8: 1 };

/** A timeline as the server sends it: `values` are written into the columns that they name. */
function encode(values: Record<string, number[]>): ArrayBuffer {
  const columns: Column[] = [];
  let offset = 0;
  for (const [name, type] of Object.entries(TYPES)) {
    const length = values[name]?.length ?? 0;
    columns.push({ name, type, length, offset });
    offset += Math.ceil((length * WIDTH[type]) / 8) * 8;
  }
  const head = { columns } as unknown as TimelineHead;
  let text = JSON.stringify(head);
  text = text.padEnd(Math.ceil(text.length / 8) * 8);
  const bytes = new ArrayBuffer(8 + text.length + offset);
  const view = new DataView(bytes);
  new Uint8Array(bytes, 0, 4).set(new TextEncoder().encode("TNV1"));
  view.setUint32(4, text.length, true);
  new Uint8Array(bytes, 8, text.length).set(new TextEncoder().encode(text));
  for (const { name, type, offset: at } of columns) {
    (values[name] ?? []).forEach((value, row) => {
      const place = 8 + text.length + at + row * WIDTH[type];
      if (type === "f64") view.setFloat64(place, value, true);
      if (type === "u32") view.setUint32(place, value, true);
      if (type === "u16") view.setUint16(place, value, true);
      if (type === "u8") view.setUint8(place, value);
    });
  }
  return bytes;
}

test("columns are read as they were sent", () => {
  const sent = {
    "time": [0, 5], "allocated": [0, 512, 0],
    "allocations.address": [2 ** 47 - 512], "allocations.size": [512], "allocations.purpose": [3],
  };
  const recording = decode(INFO, encode(sent));
  assert.equal(recording.entries, 2);
  assert.deepEqual([...recording.allocated], [0, 512, 0]);
  assert.equal(recording.allocations.length, 1);
  assert.equal(recording.allocations.address[0], 2 ** 47 - 512);
  assert.equal(recording.allocations.purpose[0], 3);
});

test("what is cut off or something else is refused", () => {
  const whole = encode({ "time": [0, 5] });
  for (const length of [0, 7, 12, whole.byteLength - 8]) {
    assert.throws(() => decode(INFO, whole.slice(0, length)), /timeline/, `${length} bytes`);
  }
});
