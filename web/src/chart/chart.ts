// uPlot, at home here: colours by the page's variables, sizes by the place, a pointer that keys move too.
import uPlot from "uplot";
import { h } from "../dom.ts";
import { STEPS, labels } from "./scale.ts";

export type Data = (readonly (number | null)[])[];

export interface ChartOptions {
  /** Bytes by default. */
  values?: "bytes" | "plain";
  height: number;
  series: uPlot.Series[];
  /** The range of y, from what is in the data. */
  range: (u: uPlot) => [number, number];
  /** Where x ends, if not with the data. */
  until?: () => number;
  /** Words for places on x; without them x has no axis. */
  along?: (values: number[]) => string[];
  /** The places on x that have words, if not round numbers. */
  splits?: () => number[];
  /** What the axes count. */
  titles?: { x?: string; y?: string };
  /** What is at a point, in words. */
  says?: (index: number) => string;
  hooks?: uPlot.Hooks.Arrays;
  /** Charts of one name share the pointer. */
  together?: string;
  /** Neither axes nor pointer. */
  small?: boolean;
}

/** A colour of the page, such as "--mark". */
export function colour(name: string): string {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim() || "#888";
}

const FONT = "12px system-ui, -apple-system, 'Segoe UI', Roboto, Arial, sans-serif";

/** Calls back when the colours change: light, dark, paper. Ends with the signal. */
function onColours(listener: () => void, signal: AbortSignal): void {
  for (const query of ["(prefers-color-scheme: dark)", "print"]) {
    matchMedia(query).addEventListener("change", listener, { signal });
  }
}

export class Chart {
  readonly element: HTMLElement;
  #said: HTMLElement;
  #options: ChartOptions;
  #plot: uPlot;
  #drawn: HTMLElement;
  #gone = new AbortController();

  constructor(options: ChartOptions) {
    this.#options = options;
    this.#drawn = h("div", { class: "drawn", role: "img", tabindex: options.says ? 0 : null });
    this.#said = h("p", { class: "readout", "aria-live": "polite" });
    this.element = h("div", { class: "chart" }, this.#drawn, options.says ? this.#said : null);
    this.#plot = new uPlot(this.#layout(), [[0], ...options.series.map(() => [null])], this.#drawn);
    const observer = new ResizeObserver(() => this.#fit());
    observer.observe(this.#drawn);
    this.#gone.signal.addEventListener("abort", () => observer.disconnect());
    onColours(() => this.#plot.redraw(true, true), this.#gone.signal);
    if (options.says) {
      this.#drawn.addEventListener("keydown", (event) => this.#key(event));
    }
  }

  /** Shows other data; `label` says it to those who do not see it. */
  set(data: Data, label: string): void {
    this.#drawn.setAttribute("aria-label", this.#options.says ? `${label} Arrow keys read values.` : label);
    this.#plot.setData(data as uPlot.AlignedData);
    this.#said.textContent = "";
  }

  /** Lets go of everything; the element is of no use any more. */
  close(): void {
    this.#gone.abort();
    this.#plot.destroy();
  }

  #fit(): void {
    const width = this.#drawn.clientWidth;
    if (width > 0 && width !== this.#plot.width) {
      this.#plot.setSize({ width, height: this.#options.height });
    }
  }

  /** Left and right move the pointer, with Shift in larger steps; Home and End to the ends. */
  #key(event: KeyboardEvent): void {
    const last = this.#plot.data[0].length - 1;
    const from = this.#plot.cursor.idx ?? 0;
    const step = event.shiftKey ? Math.max(1, Math.round(last / 20)) : 1;
    const to = { ArrowLeft: from - step, ArrowRight: from + step, Home: 0, End: last }[event.key];
    if (to === undefined || event.ctrlKey || event.metaKey || event.altKey) {
      return;
    }
    event.preventDefault();
    const x = this.#plot.data[0][Math.min(last, Math.max(0, to))] ?? 0;
    this.#plot.setCursor({ left: this.#plot.valToPos(x, "x"), top: this.#plot.over.clientHeight / 2 });
  }

  #axes(): uPlot.Axis[] {
    const { small, along, splits, titles, values } = this.#options;
    const line = { stroke: () => colour("--line"), width: 1 };
    const common = { stroke: () => colour("--muted"), font: FONT, ticks: { show: false }, show: small !== true };
    const x: uPlot.Axis = { ...common, grid: { show: false }, size: 26, gap: 4, space: 80 };
    if (along) {
      x.values = (_, at) => along(at);
      if (splits) x.splits = () => splits();
    } else {
      x.show = false;
    }
    const y: uPlot.Axis = { ...common, grid: line, size: 66, gap: 6, space: 36 };
    for (const [axis, title] of [[x, titles?.x], [y, titles?.y]] as const) {
      if (title !== undefined) Object.assign(axis, { label: title, labelSize: 20, labelGap: 2, labelFont: FONT });
    }
    if (values !== "plain") {
      y.incrs = STEPS;
      y.values = (_, at) => labels(at);
    }
    return [x, y];
  }

  #layout(): uPlot.Options {
    const { height, series, range, until, along, says, hooks, together, small } = this.#options;
    const cursor: uPlot.Cursor = {
      show: small !== true,
      y: false,
      drag: { x: false, y: false, setScale: false },
      points: { size: 6 },
    };
    if (together !== undefined) {
      cursor.sync = { key: together, setSeries: false };
    }
    const listeners: uPlot.Hooks.Arrays = { ...hooks };
    if (says) {
      const say = (u: uPlot) => {
        const { idx, left } = u.cursor;
        const off = idx === null || idx === undefined || left === undefined || left < 0;
        this.#said.textContent = off ? "" : says(idx);
      };
      listeners.setCursor = [say];
    }
    return {
      // The place says its width once it is on the page.
      width: 300,
      height,
      series: [{}, ...series],
      scales: {
        x: { time: false, ...(until ? { range: () => [0, Math.max(until(), Number.MIN_VALUE)] } : {}) },
        y: { range: (u) => range(u) },
      },
      axes: this.#axes(),
      legend: { show: false },
      padding: small === true ? [2, 2, 2, 2] : [8, 8, along ? 0 : 8, 0],
      cursor,
      hooks: listeners,
    };
  }
}

/** A level that stays until the next point. */
export const steps = (): uPlot.Series.PathBuilder => uPlot.paths.stepped!({ align: 1 });

/** A legend: a swatch and a word for each. */
export function legend(...entries: { word: string; swatch: string }[]): HTMLElement {
  return h(
    "ul",
    { class: "keys" },
    ...entries.map(({ word, swatch }) => h("li", {}, h("i", { class: `sample ${swatch}`, "aria-hidden": "true" }), word)),
  );
}
