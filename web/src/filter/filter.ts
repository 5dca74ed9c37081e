// The filter: a field, what is wrong with what was typed, what it takes.
//
// In:  text in the field, or a query that another panel set. Out: `shown` and `query` of the state.
import type { App } from "../app.ts";
import { fill, h } from "../dom.ts";
import { bytes, count } from "../format.ts";
import type { Recording } from "../recording.ts";
import { isStacked, loadStacks, stacksOf } from "../stacks.ts";
import { momentOf } from "../timeline/live.ts";
import { lineOf, purposeOf } from "../timeline/words.ts";
import { builder } from "./builder.ts";
import { type Matched, match } from "./match.ts";
import { type Complaint, needsStacks, parse } from "./parse.ts";

/** Typing goes on: wait this long, in milliseconds, before everything is coloured anew. */
const PAUSE = 120;

class Filter {
  readonly #app: App;
  readonly #field = h("input", {
    type: "search", id: "query", spellcheck: "false", autocomplete: "off", "aria-describedby": "query-said", placeholder: "any word of a stack  line:train.py:12  frame:attention  size:>1MiB",
  });
  readonly #said = h("div", { id: "query-said", class: "said", role: "status" });
  readonly #largest = h("ol", { class: "largest" });
  readonly #list = h("details", { class: "matches", hidden: true }, h("summary", { text: "Largest ten" }), this.#largest);
  readonly #builder: HTMLElement & { show(recording: Recording): void };
  #timer: number | undefined;

  constructor(element: HTMLElement, app: App) {
    this.#app = app;
    this.#builder = builder((term) => {
      const query = `${app.store.state.query.trim()} ${term}`.trim();
      app.store.set({ query });
    });
    const clear = h("button", { type: "button", text: "Clear", on: { click: () => app.store.set({ query: "", lit: null, blamed: null, pieces: null }) } });
    element.append(
      h("div", { class: "query" }, h("label", { for: "query", text: "Filter" }), this.#field, clear),
      this.#said,
      h("div", { class: "below" }, this.#builder, this.#list),
    );
    this.#field.addEventListener("input", () => {
      clearTimeout(this.#timer);
      this.#timer = window.setTimeout(() => app.store.set({ query: this.#field.value }), PAUSE);
    });
    this.#field.addEventListener("keydown", (event) => {
      if (event.key === "Escape" && this.#field.value !== "") {
        event.preventDefault();
        app.store.set({ query: "" });
      }
    });
    app.store.subscribe((state, before) => {
      if (state.recording !== before.recording && state.recording !== null) this.#builder.show(state.recording);
      if (state.query !== before.query || state.recording !== before.recording) {
        if (this.#field.value !== state.query) this.#field.value = state.query;
        this.#apply();
      }
    });
  }

  #apply(): void {
    const { recording, query } = this.#app.store.state;
    if (recording === null) return;
    const { terms, complaints } = parse(query);
    if (needsStacks(terms) && stacksOf(recording) === null && isStacked(recording)) {
      this.#app.attempt(loadStacks(recording).then(() => this.#again(recording, query)));
      return;
    }
    const found = match(recording, terms, stacksOf(recording));
    const wrong = [...complaints, ...found.complaints];
    const { matched } = found;
    // A term that is not understood takes everything; the rest of them still hold.
    const isFiltered = terms.length > found.complaints.length;
    this.#tell(query, wrong, isFiltered ? matched : null);
    this.#show(recording, isFiltered ? matched : null);
    this.#field.setAttribute("aria-invalid", String(wrong.length > 0));
    if (isFiltered || this.#app.store.state.shown !== null) {
      this.#app.store.set({ shown: isFiltered ? matched.shown : null });
    }
    // Whoever waits for the query to be shown looks here.
    this.#field.dataset["applied"] = query;
  }

  /** The stacks are there; something else may have been typed or opened since. */
  #again(recording: Recording, query: string): void {
    const { state } = this.#app.store;
    if (state.recording === recording && state.query === query) this.#apply();
  }

  #tell(query: string, wrong: Complaint[], matched: Matched | null): void {
    const lines = wrong.map(({ from, to, text }) =>
      h(
        "p",
        { class: "wrong" },
        h("code", { class: "name" }, query.slice(Math.max(from - 40, 0), from), h("mark", { text: query.slice(from, Math.min(to, from + 80)) }), query.slice(to, to + 40)),
        ` ${text}`,
      ),
    );
    const sums = matched && h("p", {
      text: matched.count === 0
        ? "No allocation matches."
        : `${count(matched.count)} ${matched.count === 1 ? "allocation matches" : "allocations match"}: ${bytes(matched.bytes)} in all, ${bytes(matched.atPeak)} at the peak`,
    });
    fill(this.#said, ...lines, sums);
  }

  #show(recording: Recording, matched: Matched | null): void {
    this.#list.hidden = matched === null || matched.count === 0;
    const rows = matched?.largest ?? [];
    fill(
      this.#largest,
      ...rows.map((row) => {
        const text = `${bytes(recording.allocations.size[row])} · ${purposeOf(recording, row)} · ${lineOf(recording, row)}`;
        const button = h("button", { type: "button", class: "link name", text });
        button.addEventListener("click", () => {
          const moment = momentOf(recording, row, this.#app.store.state.moment);
          this.#app.store.set({ chosen: row, moment });
        });
        return h("li", {}, button);
      }),
    );
  }
}

export function mountFilter(element: HTMLElement, app: App): void {
  new Filter(element, app);
}
