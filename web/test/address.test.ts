import assert from "node:assert/strict";
import { test } from "node:test";
import { brief, join, split, whole } from "../src/address.ts";
import type { RecordingInfo } from "../src/api.ts";
import { asked, written } from "../src/shown-state.ts";
import { type State, Store } from "../src/store.ts";
import { recordingOf } from "./made.ts";

const RECORDING = recordingOf(100, [{ size: 1 }, { size: 2 }]);
const info = (more: Partial<RecordingInfo>): RecordingInfo =>
  ({ id: 3, name: "a", kind: "file", device: 0, entries: 100, allocations: 2, version: 0, conf: "", of: null, policy: "", limit: null, row: null, ...more });

function state(change: Partial<State>): Readonly<State> {
  const store = new Store();
  store.set({ recording: { ...RECORDING, info: info({}) }, to: 101, ...change });
  return store.state;
}

function address(change: Partial<State>): URLSearchParams {
  const values = new URLSearchParams();
  written(state(change), values);
  return new URLSearchParams(split(join("memory", values)).values ?? "");
}

test("an address is a view, with values or without", () => {
  assert.deepEqual(split("#what-if"), { view: "what-if", values: null });
  assert.equal(split("#memory?a=1&b=x%3Fy").values?.get("b"), "x?y");
  assert.equal(split("").view, "");
  assert.equal(join("memory", new URLSearchParams()), "#memory");
});

test("what is shown comes back from its address", () => {
  const shown: Partial<State> = {
    from: 12.346, to: 40, moment: 33, colourBy: "stream", axis: "time", query: 'line:"my file.py:3" size:>1MiB & #?', chosen: 1,
  };
  const back = asked(address(shown), RECORDING);
  assert.deepEqual(back, { ...shown, from: 12.35, to: 40 });
  const whole = asked(address({ moment: 5 }), RECORDING);
  assert.deepEqual(whole, { moment: 5, colourBy: "purpose", axis: "entries", query: "", chosen: -1 });
});

test("what the recording does not have is left out", () => {
  const back = asked(new URLSearchParams("from=90&to=9999&at=5000&chosen=7&colour=taste&axis=deep"), RECORDING);
  assert.deepEqual(back, { from: 0, to: 101, moment: 100, axis: "entries", query: "", chosen: -1 });
  for (const text of ["from=9&to=3", "from=x&to=y", "at=-1", "at=1e9", "from=3"]) {
    assert.deepEqual(asked(new URLSearchParams(text), RECORDING), { axis: "entries", query: "", chosen: -1 }, text);
  }
});

test("a what-if is named by its question, since the server keeps few", () => {
  const made = { ...RECORDING, info: info({ id: 9, kind: "what-if", of: 2, conf: "expandable_segments:True", limit: 4096, policy: "pytorch" }) };
  const values = new URLSearchParams();
  written(state({ recording: made }), values);
  assert.equal(values.get("recording"), "2");
  assert.equal(values.get("if"), "expandable_segments:True");
  assert.equal(values.get("limit"), "4096");
  assert.equal(values.get("policy"), null);
});

test("a what-if of a rank is named by the rank, whose file can be opened again", () => {
  const made = { ...RECORDING, info: info({ id: 9, kind: "what-if", of: 2, conf: "expandable_segments:True", policy: "pytorch", row: 7 }) };
  const values = new URLSearchParams();
  written(state({ recording: made }), values);
  assert.deepEqual([values.get("rank"), values.get("recording"), values.get("if")], ["7", null, "expandable_segments:True"]);
});

test("numbers are whole or nothing", () => {
  assert.deepEqual(["0", "17", "-1", "1.5", "x", "", null].map(whole), [0, 17, null, null, null, null, null]);
  assert.equal(brief(1 / 3), "0.33");
});
