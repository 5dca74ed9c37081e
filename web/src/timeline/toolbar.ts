// What can be set about the timeline: axis, colours, height, distance.
import { h } from "../dom.ts";
import type { Axis, ColourBy } from "../store.ts";

export interface Choices {
  axis(axis: Axis): void;
  colourBy(by: ColourBy): void;
  fit(): void;
  scrub(): void;
  zoom(factor: number): void;
  whole(): void;
  help(): void;
}

const COLOURS: [ColourBy, string][] = [
  ["purpose", "purpose"],
  ["site", "call site"],
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
  readonly #fit: HTMLButtonElement;
  readonly #scrub: HTMLButtonElement;

  constructor(choices: Choices) {
    const axis = choose("Along", AXES, choices.axis);
    const colours = choose("Colour by", COLOURS, choices.colourBy);
    this.#axis = axis.select;
    this.#colours = colours.select;
    this.#fit = button("Fit height", "Fit the height to what is shown", choices.fit);
    this.#scrub = button("Drag moment", "A drag moves the moment instead of the view", choices.scrub);
    this.element = h(
      "div",
      { class: "toolbar", role: "toolbar", "aria-label": "Timeline" },
      axis.element,
      colours.element,
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

  show(axis: Axis, by: ColourBy, timed: boolean, isFit: boolean, isScrub: boolean): void {
    this.#axis.value = timed ? axis : "entries";
    this.#axis.disabled = !timed;
    this.#colours.value = by;
    this.#fit.setAttribute("aria-pressed", String(isFit));
    this.#scrub.setAttribute("aria-pressed", String(isScrub));
  }
}
