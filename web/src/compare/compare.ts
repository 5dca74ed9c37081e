// Several recordings side by side: ranks, runs, what-ifs. The same scales for all, a table, and the difference of two.
import { type RecordingInfo, api } from "../api.ts";
import type { App } from "../app.ts";
import { Chart, colour, legend, steps } from "../chart/chart.ts";
import type { Clock } from "../chart/columns.ts";
import { Overlay, place } from "../chart/overlay.ts";
import { upTo } from "../chart/scale.ts";
import { fill, h } from "../dom.ts";
import { bytes, count } from "../format.ts";
import { fullName, shortName } from "../names.ts";
import { decode } from "../recording.ts";
import { whenShown } from "../shown.ts";
import { onCompare } from "./ask.ts";
import { COLUMNS, type Order, found, ordered } from "./order.ts";
import { change, meansFor } from "./words.ts";
import { CLOCKS, type Summary, scales, summary, tightest } from "./summary.ts";

/** More drawings than one can compare by eye; the table has all. */
const DRAWN = 36;

export function mountCompare(element: HTMLElement, app: App): void {
  new Compare(element, app);
}

class Compare {
  #app: App;
  #element: HTMLElement;
  #known = new Map<string, Summary>();
  /** Those that the server has let go: it keeps few what-ifs. */
  #gone = new Set<string>();
  #loading = false;
  #clock: Clock = "entries";
  #clocks = h("select", { id: "compare-clock" },
    h("option", { value: "entries", text: "entries" }), h("option", { value: "time", text: "time" }), h("option", { value: "allocations", text: "allocations made" }));
  #order: Order = { by: "opened", down: false };
  #find = h("input", { type: "search", id: "compare-find", autocomplete: "off", spellcheck: "false", placeholder: "name, device or settings" });
  #status = h("p", { class: "muted", role: "status" });
  #table = h("div", { class: "scrolls" });
  #drawings = h("div", { class: "multiples" });
  #charts: Chart[] = [];
  #first = h("select", { id: "compare-first" });
  #second = h("select", { id: "compare-second" });
  #apart = h("p", { class: "lead" });
  #overlay = new Overlay("compare");
  #two = h("section", { class: "two", "aria-labelledby": "two-h" });
  /** The two that an address names, until the list is there. */
  #wanted: [string, string] | null = null;
  #name = (it: Summary): string => shortName(it.info, this.#app.recordings);
  #full = (it: Summary): string => fullName(it.info, this.#app.recordings);
  /** What the difference shows, so that it is not made twice. */
  #shown = "";

  constructor(element: HTMLElement, app: App) {
    this.#app = app;
    this.#element = element;
    fill(
      element,
      h("div", { class: "head" }, h("h2", { text: "Side by side" }),
        h("span", { class: "pair" },
          h("label", { for: "compare-find", text: "Find" }), this.#find,
          h("label", { for: "compare-clock", text: "Along" }), this.#clocks)),
      this.#status,
      this.#table,
      legend({ word: "reserved", swatch: "stroke reserved" }, { word: "allocated", swatch: "area" }),
      this.#drawings,
      this.#two,
    );
    fill(
      this.#two,
      h("div", { class: "head" }, h("h2", { id: "two-h", text: "Two of them" }),
        h("span", { class: "pair" }, h("label", { for: "compare-first", class: "unseen", text: "First" }), this.#first, " and ",
          h("label", { for: "compare-second", class: "unseen", text: "Second" }), this.#second)),
      this.#apart,
      this.#overlay.element,
    );
    this.#clocks.addEventListener("change", () => {
      this.#clock = this.#clocks.value as Clock;
      app.address.changed();
      this.#draw();
    });
    this.#find.addEventListener("input", () => {
      app.address.changed();
      this.#draw();
    });
    for (const select of [this.#first, this.#second]) {
      select.addEventListener("change", () => {
        app.address.changed();
        app.attempt(this.#difference());
      });
    }
    app.address.add({ write: (into) => this.#write(into), read: (from) => this.#read(from) });
    onCompare((pair) => {
      this.#wanted = [String(pair[0]), String(pair[1])];
      app.address.changed();
      if (!element.hidden) app.attempt(this.#load());
    });
    whenShown(element, () => app.attempt(this.#load()));
    app.onRecordings(() => app.attempt(this.#load()));
  }

  #write(into: URLSearchParams): void {
    if (this.#clock !== "entries") into.set("c.along", this.#clock);
    if (this.#find.value !== "") into.set("c.find", this.#find.value);
    if (this.#order.by !== "opened") into.set("c.sort", `${this.#order.down ? "-" : ""}${this.#order.by}`);
    const pair = this.#wanted ?? [this.#first.value, this.#second.value];
    if (pair[0] !== "") into.set("c.pair", pair.join("."));
  }

  #read(from: URLSearchParams): void {
    this.#clock = CLOCKS.find((it) => it === from.get("c.along")) ?? "entries";
    this.#clocks.value = this.#clock;
    this.#find.value = from.get("c.find") ?? "";
    const sort = from.get("c.sort") ?? "";
    const by = COLUMNS.find((it) => it.by === sort.replace(/^-/, ""))?.by;
    this.#order = by === undefined ? { by: "opened", down: false } : { by, down: sort.startsWith("-") };
    const pair = /^(\d+)\.(\d+)$/.exec(from.get("c.pair") ?? "");
    this.#wanted = pair === null ? null : [pair[1], pair[2]];
    if (!this.#element.hidden) this.#draw();
  }

  /** Sums up what is not yet known, one after the other: each may be large. */
  async #load(): Promise<void> {
    if (this.#loading || this.#element.hidden) {
      return;
    }
    this.#loading = true;
    try {
      for (let next = this.#missing()[0]; next !== undefined; next = this.#missing()[0]) {
        const left = this.#missing().length;
        this.#status.textContent = `Reading ${next.name}; ${count(left)} to go…`;
        try {
          this.#known.set(key(next), summary(decode(next, await api.timeline(next.id))));
        } catch (error) {
          this.#gone.add(key(next));
          if (next.kind !== "what-if") {
            this.#app.attempt(Promise.reject(error));
          }
        }
      }
    } finally {
      this.#loading = false;
    }
    const there = new Set(this.#app.recordings.map(key));
    for (const known of this.#known.keys()) {
      if (!there.has(known)) {
        this.#known.delete(known);
      }
    }
    this.#draw();
  }

  #missing(): RecordingInfo[] {
    return this.#app.recordings.filter((it) => !this.#known.has(key(it)) && !this.#gone.has(key(it)));
  }

  #all(): Summary[] {
    return this.#app.recordings.map((it) => this.#known.get(key(it))).filter((it) => it !== undefined);
  }

  #draw(): void {
    const all = this.#all();
    const limit = tightest(all);
    const few = all.length < 2;
    this.#status.textContent = few
      ? this.#app.start.fleet
        ? "One recording has nothing beside it. Choose two of all ranks."
        : "One recording has nothing beside it. Start `tonnage view` with several files, or ask a what-if."
      : meansFor(all, limit, this.#name);
    this.#clocks.querySelector<HTMLOptionElement>('[value="time"]')!.disabled = !all.every((it) => it.timed);
    const shown = ordered(found(all, this.#find.value, this.#full), this.#order, this.#full);
    fill(this.#table, all.length === 0 ? null : shown.length === 0
      ? h("p", { class: "muted", text: `None of ${count(all.length)} recordings has “${this.#find.value}” in its name, device or settings.` })
      : this.#tableOf(shown, limit, all.length));
    const shared = scales(all, this.#clock);
    this.#charts.splice(0).forEach((it) => it.close());
    fill(this.#drawings, ...shown.slice(0, DRAWN).map((it) => this.#drawing(it, shared, it === limit)));
    this.#two.hidden = few;
    if (!few) {
      this.#choices(all, limit);
      this.#app.attempt(this.#difference());
    }
  }

  #drawing(it: Summary, { until, most }: { until: number; most: number }, tight: boolean): HTMLElement {
    const { at, reserved, allocated } = it.columns[this.#clock];
    const clock = this.#clock;
    const chart = new Chart({
      height: 130,
      along: (values) => values.map((value) => place(clock, value)),
      until: () => until,
      range: () => upTo(most),
      says: (index) => `${place(clock, at[index])}: ${bytes(reserved[index] ?? 0)} reserved, ${bytes(allocated[index] ?? 0)} allocated`,
      series: [
        { stroke: () => colour("--mark"), fill: () => colour("--area"), width: 1, paths: steps(), points: { show: false } },
        { stroke: () => colour("--reserved"), width: 1.5, paths: steps(), points: { show: false } },
      ],
    });
    chart.set([at, allocated, reserved], `${this.#full(it)}: ${bytes(it.reserved)} reserved at the peak, ${bytes(it.allocated)} allocated.`);
    this.#charts.push(chart);
    const name = h("button", { type: "button", class: "link name", text: this.#name(it), title: this.#full(it) });
    name.addEventListener("click", () => this.#open(it));
    return h("figure", { class: tight ? "tight" : "" }, h("figcaption", {}, name, h("span", { class: "size", text: bytes(it.reserved) })), chart.element);
  }

  #sort(by: Order["by"]): void {
    // Figures are wanted largest first; the second click turns them around.
    const first = by !== "name";
    this.#order = this.#order.by === by ? { by, down: !this.#order.down } : { by, down: first };
    this.#app.address.changed();
    this.#draw();
    this.#table.querySelector<HTMLElement>(`[data-by="${by}"]`)?.focus();
  }

  #tableOf(shown: Summary[], limit: Summary | null, all: number): HTMLElement {
    const heads = COLUMNS.map(({ by, word }) => {
      const sorted = this.#order.by === by ? (this.#order.down ? "descending" : "ascending") : "none";
      const button = h("button", { type: "button", class: "sort", "data-by": by }, word, h("span", { "aria-hidden": "true", text: { none: "", ascending: " ↑", descending: " ↓" }[sorted] }));
      button.addEventListener("click", () => this.#sort(by));
      return h("th", { scope: "col", class: by === "name" ? "" : "number", "aria-sort": sorted }, button);
    });
    const row = (it: Summary) => {
      const button = h("button", { type: "button", text: "Open", "aria-label": `Open ${this.#full(it)}` });
      button.addEventListener("click", () => this.#open(it));
      const cells = COLUMNS.slice(1).map(({ word, text, wrong }) =>
        h("td", { class: wrong?.(it) ? "number more" : "number", "data-word": word, text: text(it) }));
      return h("tr", { class: it === limit ? "tight" : "" },
        h("th", { scope: "row", class: "name", title: this.#full(it) }, this.#name(it), it === limit && all > 1 ? h("span", { class: "tag", text: "reserves most" }) : null),
        ...cells, h("td", { class: "number" }, button));
    };
    return h("table", { class: "figures-table cards" },
      h("thead", {}, h("tr", {}, ...heads, h("th", {}, h("span", { class: "unseen", text: "Open" })))),
      h("tbody", {}, ...shown.map(row)));
  }

  #open(it: Summary): void {
    location.hash = "memory";
    this.#app.attempt(this.#app.show(it.info.id));
  }

  #choices(all: Summary[], limit: Summary | null): void {
    const known = (value: string) => (all.some((it) => String(it.info.id) === value) ? value : "");
    const before = (this.#wanted ?? [this.#first.value, this.#second.value]).map(known);
    // One that is still being read may yet come.
    if (!this.#loading || !before.includes("")) this.#wanted = null;
    for (const select of [this.#first, this.#second]) {
      fill(select, ...all.map((it) => h("option", { value: it.info.id, text: this.#name(it), title: this.#full(it) })));
    }
    // At first: the tightest, beside the one that needs least.
    const least = all.reduce((best, it) => (it.reserved < best.reserved ? it : best));
    const other = least === limit ? all.find((it) => it !== limit) : least;
    this.#first.value = before[0] || String(limit?.info.id);
    this.#second.value = before[1] || String(other?.info.id);
  }

  #pair(): number[] {
    return [Number(this.#first.value), Number(this.#second.value)];
  }

  /** Which difference the page asks for. */
  #question(): string {
    const versions = this.#pair().map((id) => this.#app.recordings.find((it) => it.id === id)?.version);
    return `${this.#pair().join()} ${this.#clock} ${versions.join()}`;
  }

  async #difference(): Promise<void> {
    const ids = this.#pair();
    const asked = this.#question();
    if (asked === this.#shown) {
      return;
    }
    const [first, second] = await Promise.all(ids.map((id) => this.#app.load(id)));
    // Others may have been chosen meanwhile, and have come already.
    if (asked !== this.#question()) return;
    this.#shown = asked;
    const names = [first, second].map((it) => shortName(it.info, this.#app.recordings)) as [string, string];
    this.#apart.textContent = change(first, second, names);
    this.#overlay.set(first, second, this.#clock, names);
  }
}

function key(info: RecordingInfo): string {
  return `${info.id}.${info.version}`;
}
