import assert from "node:assert/strict";
import { test } from "node:test";
import { exportLine } from "../src/copy.ts";

test("settings become a line for a shell", () => {
  const conf = "expandable_segments:True,roundup_power2_divisions:[256:1,>:4]";
  assert.equal(exportLine(conf), `export PYTORCH_CUDA_ALLOC_CONF='${conf}'`);
  assert.equal(exportLine(""), "unset PYTORCH_CUDA_ALLOC_CONF");
});

test("what a shell might not take as one word is not offered", () => {
  for (const hostile of ["x'; rm -rf ~; '", "a b", "$(id)", "a\nb", "`id`", "x".repeat(600)]) {
    assert.equal(exportLine(hostile), null, hostile);
  }
});
