// The entries around the moment, as a list: the last that has happened is marked. A click goes there.
import type { App } from "../app.ts";
import { onceAFrame } from "../canvas.ts";
import { fill, h } from "../dom.ts";
import { bytes, count, duration } from "../format.ts";
import type { Recording } from "../recording.ts";
import { type Entry, entriesAround } from "./events.ts";
import { lineOf } from "./words.ts";

/** So many are listed. */
const MOST = 15;

class EventList {
  readonly #app: App;
  readonly #body = h("tbody");
  readonly #element: HTMLDetailsElement;
  readonly #show = onceAFrame(() => this.#fill());

  constructor(element: HTMLElement, app: App) {
    this.#app = app;
    const heads = ["Entry", "Time", "What", "Bytes", "Line"].map((text, place) => h("th", { scope: "col", class: place === 3 ? "number" : "", text }));
    this.#element = h("details", { class: "events" }, h("summary", {}, h("h2", { text: "Entries around the moment" })),
      h("div", { class: "scrolls" }, h("table", { class: "figures-table" }, h("thead", {}, h("tr", {}, ...heads)), this.#body)));
    element.append(this.#element);
    this.#element.addEventListener("toggle", () => {
      app.address.changed();
      this.#show();
    });
    app.store.subscribe((state, before) => {
      if (state.recording !== before.recording || state.moment !== before.moment) this.#show();
    });
    app.address.add({
      write: (into) => {
        if (this.#element.open) into.set("entries", "1");
      },
      read: (from) => {
        this.#element.open = from.get("entries") === "1";
      },
    });
  }

  #fill(): void {
    const { recording, moment } = this.#app.store.state;
    if (recording === null || !this.#element.open) return;
    fill(this.#body, ...entriesAround(recording, moment, MOST).map((it) => this.#row(recording, it, it.entry + 1 === moment)));
  }

  #row(recording: Recording, { entry, action, bytes: size, row, us }: Entry, isLast: boolean): HTMLElement {
    const go = h("button", { type: "button", class: "link", text: count(entry), "aria-label": `Go to entry ${count(entry)}` });
    go.addEventListener("click", () => this.#app.store.set({ moment: entry + 1, ...(row >= 0 ? { chosen: row } : {}) }));
    return h("tr", { "aria-current": isLast ? "true" : null },
      h("th", { scope: "row" }, go),
      h("td", { text: us === null ? "" : duration(us) }),
      h("td", { class: action === "out of memory" ? "more" : "", text: action }),
      h("td", { class: "number", title: `${count(size)} bytes`, text: size === 0 ? "" : bytes(size) }),
      h("td", { class: "line-cell name", text: row < 0 ? "" : lineOf(recording, row) }));
  }
}

export function mountEvents(element: HTMLElement, app: App): void {
  new EventList(element, app);
}
