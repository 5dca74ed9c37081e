// The sizes and techniques of a recipe: sliders with numbers, and choices. In: what a recipe takes. Out: a request.
import type { PredictRequest, RecipeInfo, SizeInfo } from "../api.ts";
import { fill, h } from "../dom.ts";
import { PLACES, neighbour, snap, toPlace, toValue } from "./slider.ts";

const NAMES: Record<SizeInfo["name"], string> = {
  layers: "Depth (layers)", width: "Width", batch: "Batch", seq: "Sequence", image: "Image, pixels a side",
  antennas: "Antennas", users: "Users", subcarriers: "Subcarriers",
};

const CHOICES = [["amp", "Precision"], ["checkpoint", "Checkpoints"], ["optimizer", "Optimizer"], ["accumulate", "Accumulation"]] as const;

const WORDS: Record<string, string> = { none: "none", sqrt: "√n", bf16: "bf16 mixed", f16: "f16 mixed", f32: "f32" };

/** A choice as people call it. */
export function choiceWord(kind: string, value: string): string {
  if (kind === "amp" && (value === "none" || value === "")) {
    return "f32";
  }
  if (kind === "accumulate") {
    return value === "1" ? "none" : `${value} parts`;
  }
  const every = /^every:(\d+)$/.exec(value);
  return every ? `every ${every[1]} blocks` : (WORDS[value] ?? value);
}

export class Controls {
  readonly element = h("form", { class: "sliders" });
  #onChange: () => void;
  #recipes: RecipeInfo[];
  #recipe = h("select", { id: "recipe" });
  #about = h("p", { class: "about muted" });
  #sizes = h("div", { class: "sizes" });
  #choices = h("div", { class: "techniques" });
  #request: PredictRequest;

  constructor(recipes: RecipeInfo[], onChange: () => void) {
    this.#recipes = recipes;
    this.#onChange = onChange;
    // The network of checkpoints comes first, if it is there.
    const first = recipes.find((it) => it.name === "deepnet") ?? recipes[0];
    this.#request = { recipe: first?.name ?? "" };
    fill(this.#recipe, ...recipes.map((it) => h("option", { value: it.name, text: it.name, selected: it === first })));
    fill(this.element, h("label", { for: "recipe", text: "Recipe" }), this.#recipe, this.#about, this.#sizes, this.#choices);
    this.element.addEventListener("submit", (event) => event.preventDefault());
    this.#recipe.addEventListener("change", () => this.#take(this.#recipe.value));
    if (first !== undefined) {
      this.#take(first.name);
    }
  }

  request(): PredictRequest {
    return { ...this.#request };
  }

  /** Sets what an address says, as far as the recipe has it. */
  set(asked: ReadonlyMap<string, string>): void {
    const name = asked.get("recipe") ?? "";
    if (this.#recipes.some((it) => it.name === name)) {
      this.#recipe.value = name;
      this.#take(name, asked);
    }
  }

  #take(name: string, asked: ReadonlyMap<string, string> = new Map()): void {
    const recipe = this.#recipes.find((it) => it.name === name);
    if (recipe === undefined) {
      return;
    }
    this.#request = { recipe: name };
    this.#about.textContent = recipe.about;
    fill(this.#sizes, ...recipe.sizes.map((it) => this.#slider(it, asked.get(it.name))));
    fill(this.#choices, ...CHOICES.map(([kind, label]) => this.#choice(kind, label, recipe[kind], asked.get(kind))));
    this.#onChange();
  }

  #slider(size: SizeInfo, asked: string | undefined): HTMLElement {
    const id = `size-${size.name}`;
    const label = NAMES[size.name] ?? size.name;
    const slider = h("input", { type: "range", id, min: 0, max: PLACES, step: 1 });
    const number = h("input", { type: "number", min: size.least, max: size.most, step: size.step, "aria-label": `${label}, typed` });
    const show = (value: number) => {
      slider.value = String(toPlace(size, value));
      slider.setAttribute("aria-valuetext", String(value));
      number.value = String(value);
      this.#request[size.name] = value;
    };
    const move = (value: number) => {
      if (value !== this.#request[size.name]) {
        show(value);
        this.#onChange();
      }
    };
    slider.addEventListener("input", () => move(toValue(size, Number(slider.value))));
    slider.addEventListener("keydown", (event) => {
      const way = { ArrowRight: 1, ArrowUp: 1, PageUp: 1, ArrowLeft: -1, ArrowDown: -1, PageDown: -1 }[event.key];
      if (way !== undefined) {
        event.preventDefault();
        move(neighbour(size, this.#request[size.name] ?? size.value, way as 1 | -1, event.key.startsWith("Page")));
      }
    });
    number.addEventListener("change", () => {
      move(snap(size, Number(number.value)));
      show(this.#request[size.name] ?? size.value);
    });
    show(asked === undefined ? size.value : snap(size, Number(asked)));
    return h("div", { class: "size" }, h("label", { for: id, text: label }), number, slider);
  }

  #choice(kind: (typeof CHOICES)[number][0], label: string, values: string[], asked: string | undefined): HTMLElement | null {
    if (values.length === 0) {
      return null;
    }
    const id = `choice-${kind}`;
    const select = h("select", { id }, ...values.map((value) => h("option", { value, text: choiceWord(kind, value) })));
    select.value = values.find((it) => it === asked) ?? values[0] ?? "";
    const put = () => {
      if (kind === "accumulate") this.#request[kind] = Number(select.value);
      else this.#request[kind] = select.value;
    };
    put();
    select.addEventListener("change", () => {
      put();
      this.#onChange();
    });
    return h("div", { class: "choice" }, h("label", { for: id, text: label }), select);
  }
}
