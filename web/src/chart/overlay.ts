// Two recordings over each other, and their difference below. In: two recordings and a clock. Out: two charts.
import { fill, h } from "../dom.ts";
import { bytes, count, duration } from "../format.ts";
import type { Recording } from "../recording.ts";
import { Chart, colour, legend, steps } from "./chart.ts";
import { type Clock, columns, difference, largest, length, ticks, ticksOf } from "./columns.ts";
import { around, upTo } from "./scale.ts";

/** More columns than a wide window has points. */
const COLUMNS = 1600;

const WORDS: Record<Clock, string> = {
  allocations: "allocations made so far",
  entries: "entries of the history",
  time: "time since the first entry",
};

/** A place on a clock, in words. */
export function place(clock: Clock, at: number): string {
  return clock === "time" ? duration(at) : count(at);
}

export class Overlay {
  readonly element: HTMLElement;
  #names: [string, string] = ["", ""];
  #clock: Clock = "allocations";
  #at: number[] = [];
  #levels: (number | null)[][] = [[], [], [], []];
  #apart: (number | null)[] = [];
  #above: Chart;
  #below: Chart;
  #key = h("div");
  #axis = h("p", { class: "axis muted" });

  constructor(name: string) {
    const along = (values: number[]) => values.map((it) => place(this.#clock, it));
    const line = (name: string, width: number) => ({
      stroke: () => colour(name), width, paths: steps(), points: { show: false },
    });
    this.#above = new Chart({
      height: 260,
      titles: { y: "Bytes" },
      along,
      together: name,
      says: (index) => this.#say(index),
      range: () => upTo(largest(this.#levels.flat())),
      series: [
        { ...line("--unknown", 1), fill: () => colour("--free") },
        { ...line("--mark", 1), fill: () => `${colour("--mark")}26` },
        { ...line("--reserved", 1.5), dash: [5, 3] },
        line("--mark", 2),
      ],
    });
    this.#below = new Chart({
      height: 120,
      titles: { y: "Bytes" },
      along,
      together: name,
      range: () => {
        const known = this.#apart.filter((it) => it !== null);
        return around(-largest(known.map((it) => -it)), largest(known));
      },
      series: [
        { ...line("--less", 1), fill: () => `${colour("--less")}55`, fillTo: 0 },
        { ...line("--more", 1), fill: () => `${colour("--more")}55`, fillTo: 0 },
      ],
    });
    this.element = h(
      "div", { class: "overlay" }, this.#key, this.#above.element,
      h("h4", { text: "Difference of what is reserved" }), this.#below.element, this.#axis,
    );
  }

  /** Lays a what-if over what it was made from. `whole` if it went through to the end. */
  setWhatIf(source: Recording, whatIf: Recording, whole: boolean): void {
    const names: [string, string] = ["as recorded", "what if"];
    if (source.head.timed) {
      this.#set(source, whatIf, "entries", names, ticksOf(whatIf, source, whole), source.entries);
    } else {
      this.set(source, whatIf, "allocations", names);
    }
  }

  /** Lays `second` over `first`, each by its own clock. */
  set(first: Recording, second: Recording, clock: Clock, names: [string, string]): void {
    const until = Math.max(length(first, clock), length(second, clock));
    this.#set(first, second, clock, names, ticks(second, clock), until);
  }

  #set(
    first: Recording, second: Recording, clock: Clock, names: [string, string], when: Float64Array | Uint32Array, until: number,
  ): void {
    this.#clock = clock;
    this.#names = names;
    const one = columns(first, ticks(first, clock), until, COLUMNS);
    const two = columns(second, when, until, COLUMNS);
    this.#at = one.at;
    this.#levels = [one.allocated, two.allocated, one.reserved, two.reserved];
    this.#apart = difference(one.reserved, two.reserved);
    const [a, b] = names;
    fill(this.#key, legend(
      { word: `${a}: reserved`, swatch: "stroke first" }, { word: "allocated", swatch: "first" },
      { word: `${b}: reserved`, swatch: "stroke second" }, { word: "allocated", swatch: "second" },
    ));
    this.#axis.textContent = `Along: ${WORDS[clock]}.`;
    const peaks = `${a} peaks at ${bytes(largest(one.reserved))} reserved, ${b} at ${bytes(largest(two.reserved))}`;
    this.#above.set([this.#at, ...this.#levels], `Memory over ${WORDS[clock]}: ${peaks}.`);
    const less = this.#apart.map((it) => (it === null || it > 0 ? null : it));
    const more = this.#apart.map((it) => (it === null || it <= 0 ? null : it));
    this.#below.set([this.#at, less, more], `Reserved memory of ${b} less that of ${a}, over ${WORDS[clock]}.`);
  }

  #say(index: number): string {
    const level = (series: number) => {
      const value = this.#levels[series][index];
      return value === null || value === undefined ? "ended" : bytes(value);
    };
    const [a, b] = this.#names;
    const apart = this.#apart[index];
    const by = apart === null || apart === undefined || apart === 0 ? "" : ` (${apart > 0 ? "+" : ""}${bytes(apart)})`;
    return `${place(this.#clock, this.#at[index])}: reserved ${level(2)} ${a}, ${level(3)} ${b}${by}; allocated ${level(0)}, ${level(1)}`;
  }
}
