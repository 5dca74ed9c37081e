import assert from "node:assert/strict";
import { test } from "node:test";
import { Store } from "../src/store.ts";

test("everyone hears of changes in the order in which they were made", () => {
  const store = new Store();
  const heard: string[] = [];
  store.subscribe((state, before) => {
    heard.push(`one ${before.query}>${state.query}`);
    if (state.query === "a") store.set({ query: "b" });
  });
  store.subscribe((state, before) => heard.push(`two ${before.query}>${state.query}`));
  store.set({ query: "a" });
  assert.deepEqual(heard, ["one >a", "two >a", "one a>b", "two a>b"]);
  assert.equal(store.state.query, "b");
  store.set({ query: "c" });
  assert.equal(heard.at(-1), "two b>c");
});

test("a listener that fails does not keep the others from what comes next", () => {
  const store = new Store();
  let fails = true;
  let heard = 0;
  store.subscribe(() => {
    if (fails) throw new Error("no");
  });
  store.subscribe(() => (heard += 1));
  assert.throws(() => store.set({ query: "a" }), /no/);
  fails = false;
  store.set({ query: "b" });
  assert.equal(heard, 1);
});
