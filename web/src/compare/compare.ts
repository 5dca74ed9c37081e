// Several recordings side by side: ranks, runs, what-ifs. The same scales for all, a table, and the difference of two.
import { type RecordingInfo, api } from "../api.ts";
import type { App } from "../app.ts";
import { Chart, colour, legend, steps } from "../chart/chart.ts";
import type { Clock } from "../chart/columns.ts";
import { Overlay, place } from "../chart/overlay.ts";
import { upTo } from "../chart/scale.ts";
import { fill, h } from "../dom.ts";
import { bytes, count, plain } from "../format.ts";
import { decode } from "../recording.ts";
import { whenShown } from "../shown.ts";
import { change, meansFor } from "./words.ts";
import { type Summary, scales, summary, tightest } from "./summary.ts";

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
  #status = h("p", { class: "muted", role: "status" });
  #table = h("div", { class: "scrolls" });
  #drawings = h("div", { class: "multiples" });
  #charts: Chart[] = [];
  #first = h("select", { id: "compare-first" });
  #second = h("select", { id: "compare-second" });
  #apart = h("p", { class: "lead" });
  #overlay = new Overlay("compare");
  #two = h("section", { class: "two", "aria-labelledby": "two-h" });
  /** What the difference shows, so that it is not made twice. */
  #shown = "";

  constructor(element: HTMLElement, app: App) {
    this.#app = app;
    this.#element = element;
    fill(
      element,
      h("div", { class: "head" }, h("h2", { text: "Side by side" }), h("label", { for: "compare-clock", text: "Along " }, this.#clocks)),
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
      this.#draw();
    });
    for (const select of [this.#first, this.#second]) {
      select.addEventListener("change", () => app.attempt(this.#difference()));
    }
    whenShown(element, () => app.attempt(this.#load()));
    app.onRecordings(() => app.attempt(this.#load()));
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
      ? "One recording has nothing beside it. Start `tonnage view` with several files, or ask a what-if."
      : meansFor(all, limit);
    this.#clocks.querySelector<HTMLOptionElement>('[value="time"]')!.disabled = !all.every((it) => it.timed);
    fill(this.#table, table(all, limit, (it) => this.#open(it)));
    const shared = scales(all, this.#clock);
    this.#charts.splice(0).forEach((it) => it.close());
    fill(this.#drawings, ...all.slice(0, DRAWN).map((it) => this.#drawing(it, shared, it === limit)));
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
    chart.set([at, allocated, reserved], `${it.info.name}: ${bytes(it.reserved)} reserved at the peak, ${bytes(it.allocated)} allocated.`);
    this.#charts.push(chart);
    const name = h("button", { type: "button", class: "link name", text: label(it.info) });
    name.addEventListener("click", () => this.#open(it));
    return h("figure", { class: tight ? "tight" : "" }, h("figcaption", {}, name, h("span", { class: "size", text: bytes(it.reserved) })), chart.element);
  }

  #open(it: Summary): void {
    location.hash = "memory";
    this.#app.attempt(this.#app.show(it.info.id));
  }

  #choices(all: Summary[], limit: Summary | null): void {
    const before = [this.#first.value, this.#second.value];
    for (const select of [this.#first, this.#second]) {
      fill(select, ...all.map((it) => h("option", { value: it.info.id, text: label(it.info) })));
    }
    // At first: the tightest, beside the one that needs least.
    const least = all.reduce((best, it) => (it.reserved < best.reserved ? it : best));
    const other = least === limit ? all.find((it) => it !== limit) : least;
    this.#first.value = before[0] || String(limit?.info.id);
    this.#second.value = before[1] || String(other?.info.id);
  }

  async #difference(): Promise<void> {
    const ids = [Number(this.#first.value), Number(this.#second.value)];
    const shown = `${ids.join()} ${this.#clock} ${ids.map((id) => this.#app.recordings.find((it) => it.id === id)?.version).join()}`;
    if (shown === this.#shown) {
      return;
    }
    const [first, second] = await Promise.all(ids.map((id) => this.#app.load(id)));
    this.#shown = shown;
    this.#apart.textContent = change(first, second);
    this.#overlay.set(first, second, this.#clock, ["first", "second"]);
  }
}

function key(info: RecordingInfo): string {
  return `${info.id}.${info.version}`;
}

function label(info: RecordingInfo): string {
  return `${plain(info.name)} · device ${info.device}`;
}

function table(all: Summary[], limit: Summary | null, open: (it: Summary) => void): HTMLElement {
  const head = ["Recording", "Reserved at the peak", "Allocated at the peak", "Reserved, not allocated", "Failed requests", "Limit", ""];
  const row = (it: Summary) => {
    const button = h("button", { type: "button", text: "Open", "aria-label": `Open ${label(it.info)}` });
    button.addEventListener("click", () => open(it));
    const number = (text: string) => h("td", { class: "number", text });
    return h("tr", { class: it === limit ? "tight" : "" },
      h("th", { scope: "row", class: "name" }, label(it.info), it === limit && all.length > 1 ? h("span", { class: "tag", text: "reserves most" }) : null),
      number(bytes(it.reserved)), number(bytes(it.allocated)), number(bytes(it.unused)),
      h("td", { class: it.failed > 0 ? "number more" : "number", text: count(it.failed) }),
      number(it.limit === null ? "none" : bytes(it.limit)), h("td", { class: "number" }, button));
  };
  return h("table", { class: "figures-table" },
    h("thead", {}, h("tr", {}, ...head.map((text, place) => h("th", { scope: "col", class: place === 0 ? "" : "number", text })))),
    h("tbody", {}, ...all.map(row)));
}
