// What the colours mean, and how much each holds at a moment. A click filters by it.
import { type Classes, classesOf } from "../colours.ts";
import { fill, h } from "../dom.ts";
import { bytes } from "../format.ts";
import type { Recording } from "../recording.ts";
import type { ColourBy } from "../store.ts";
import { heldBy } from "./live.ts";
import type { Mark } from "./marks.ts";
import { momentText } from "./words.ts";

export class Legend {
  readonly element = h("div", { class: "legend" });
  #said = h("p", { class: "muted" });
  #list = h("ul", { "aria-label": "Colours" });
  #marks = h("ul", { class: "marks", "aria-label": "Marks" });
  #drawn = "";
  #figures: HTMLElement[] = [];
  #classes: Classes | null = null;

  constructor(private readonly ask: (query: string) => void) {
    this.element.append(this.#said, this.#list, this.#marks);
  }

  /** Shows what is drawn besides allocations. */
  mark(marks: Mark[]): void {
    const drawn = marks.map((it) => it.word).join();
    if (drawn === this.#drawn) return;
    this.#drawn = drawn;
    fill(this.#marks, ...marks.map(({ word, swatch }) => h("li", {}, h("i", { class: `mark-sample ${swatch}`, "aria-hidden": "true" }), word)));
  }

  /** Shows the bytes at a moment. */
  show(recording: Recording, by: ColourBy, depth: number, moment: number): void {
    const classes = classesOf(recording, by, depth);
    if (classes !== this.#classes) {
      this.#classes = classes;
      this.#make(classes);
    }
    heldBy(recording, classes, moment).forEach((held, place) => {
      this.#figures[place].textContent = held > 0 ? bytes(held) : "–";
      this.#figures[place].parentElement?.classList.toggle("none", held === 0);
    });
    const allocated = recording.allocated[moment] ?? 0;
    const reserved = recording.reserved[moment] ?? 0;
    this.#said.textContent = `${momentText(recording, moment)}: ${bytes(allocated)} allocated, ${bytes(reserved)} reserved`;
  }

  #make(classes: Classes): void {
    this.#figures = classes.list.map(() => h("span", { class: "figure" }));
    const used = new Set(classes.of);
    fill(
      this.#list,
      ...classes.list.map(({ label, colour, query }, place) => {
        const swatch = h("span", { class: "swatch" });
        swatch.style.background = `var(${colour})`;
        const item = [swatch, h("span", { class: "label name", text: label }), this.#figures[place]];
        const button = h("button", { type: "button", title: query === null ? null : `Filter: ${query}`, disabled: query === null }, ...item);
        button.addEventListener("click", () => query !== null && this.ask(query));
        return used.has(place) && h("li", {}, button);
      }),
    );
  }
}
