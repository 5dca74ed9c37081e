// What can be set about the timeline: axis, colours, height, distance.
import { h } from "../dom.ts";
import type { Axis, ColourBy } from "../store.ts";

export interface Choices {
  axis(axis: Axis): void;
  colourBy(by: ColourBy): void;
  depth(depth: number): void;
  fit(): void;
  scrub(): void;
  zoom(factor: number): void;
  whole(): void;
  help(): void;
}

export interface Shown {
  axis: Axis;
  by: ColourBy;
  depth: number;
  timed: boolean;
  /** Whether stacks were recorded. */
  isStacked: boolean;
  isFit: boolean;
  isScrub: boolean;
}

const COLOURS: [ColourBy, string][] = [
  ["purpose", "purpose"],
  ["site", "call site"],
  ["module", "module"],
  ["layer", "layer"],
  ["frame", "frame"],
  ["stream", "stream"],
  ["size", "size"],
];

const AXES: [Axis, string][] = [
  ["entries", "entries"],
  ["time", "time"],
];

function choose<T extends string>(label: string, options: [T, string][], chosen: (value: T) => void): { element: HTMLElement; select: HTMLSelectElement } {
  const select = h("select", {}, ...options.map(([value, text]) => h("option", { value, text })));
  select.addEventListener("change", () => chosen(select.value as T));
  return { element: h("label", {}, h("span", { class: "muted", text: label }), select), select };
}

function button(text: string, label: string, press: () => void): HTMLButtonElement {
  return h("button", { type: "button", text, title: label, "aria-label": label, on: { click: press } });
}

export class Toolbar {
  readonly element: HTMLElement;
  readonly #axis: HTMLSelectElement;
  readonly #colours: HTMLSelectElement;
  readonly #depth = h("input", { type: "number", min: 0, max: 999, step: 1, class: "depth" });
  readonly #deep: HTMLElement;
  readonly #fit: HTMLButtonElement;
  readonly #scrub: HTMLButtonElement;

  constructor(choices: Choices) {
    const axis = choose("Along", AXES, choices.axis);
    const colours = choose("Colour by", COLOURS, choices.colourBy);
    this.#axis = axis.select;
    this.#colours = colours.select;
    this.#deep = h("label", { title: "1 is the outermost call, 0 the innermost" }, h("span", { class: "muted", text: "Depth" }), this.#depth);
    this.#depth.addEventListener("input", () => choices.depth(Math.min(Math.max(Math.round(Number(this.#depth.value)) || 0, 0), 999)));
    this.#fit = button("Fit height", "Fit the height to what is shown", choices.fit);
    this.#scrub = button("Drag moment", "A drag moves the moment instead of the view", choices.scrub);
    this.element = h(
      "div",
      { class: "toolbar", role: "toolbar", "aria-label": "Timeline" },
      axis.element,
      colours.element,
      this.#deep,
      this.#fit,
      this.#scrub,
      h(
        "span",
        { class: "group" },
        button("−", "Go away", () => choices.zoom(2)),
        button("+", "Come closer", () => choices.zoom(0.5)),
        button("Whole", "Show the whole recording", choices.whole),
        button("?", "Keys and gestures", choices.help),
      ),
    );
  }

  show({ axis, by, depth, timed, isStacked, isFit, isScrub }: Shown): void {
    this.#axis.value = timed ? axis : "entries";
    this.#axis.disabled = !timed;
    this.#colours.value = by;
    for (const option of this.#colours.options) option.disabled = !isStacked && ["module", "layer", "frame"].includes(option.value);
    this.#deep.hidden = by !== "frame";
    if (Number(this.#depth.value) !== depth || this.#depth.value === "") this.#depth.value = String(depth);
    this.#fit.setAttribute("aria-pressed", String(isFit));
    this.#scrub.setAttribute("aria-pressed", String(isScrub));
  }
}
