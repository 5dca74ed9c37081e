// The settings to ask about: a knob for each that matters, and the string that they make. Either changes the other.
import type { WhatIfRequest } from "../api.ts";
import { copyLine, exportLine } from "../copy.ts";
import { fill, h } from "../dom.ts";
import { exactBytes, plain } from "../format.ts";
import { valueOf, withValue } from "./conf.ts";
import { parseSize } from "./size.ts";

interface Knob {
  key: string;
  label: string;
  about: string;
  /** Values to choose from; without them it is a number. */
  options?: [value: string, word: string][];
  number?: { min: number; max?: number; step: number };
}

const KNOBS: Knob[] = [
  {
    key: "expandable_segments",
    label: "Expandable segments",
    about: "Segments grow page by page, so that free memory between blocks can be given back.",
    options: [["", "default"], ["True", "on"], ["False", "off"]],
  },
  {
    key: "max_split_size_mb",
    label: "Split blocks up to, MiB",
    about: "Larger blocks are kept whole. Often makes things worse.",
    number: { min: 21, step: 1 },
  },
  {
    key: "roundup_power2_divisions",
    label: "Rounding divisions",
    about: "Parts between powers of two: sizes that differ a little share blocks.",
    options: [["", "default"], ["1", "1"], ["2", "2"], ["4", "4"], ["8", "8"], ["16", "16"]],
  },
  {
    key: "garbage_collection_threshold",
    label: "Collect above this share",
    about: "Of the limit: what lay unused is given back before it is reached.",
    number: { min: 0.05, max: 0.95, step: 0.05 },
  },
  {
    key: "large_segment_size_mb",
    label: "Large segments, MiB",
    about: "Requests of 1 to 10 MiB share segments of this size.",
    number: { min: 2, step: 2 },
  },
];

/** What the fields say, as it was written. */
export interface Wish {
  conf: string;
  policy: string;
  limit: string;
}

export class Form {
  readonly element: HTMLFormElement;
  #controls: { knob: Knob; control: HTMLSelectElement | HTMLInputElement }[];
  #conf = h("input", {
    type: "text", id: "what-if-conf", spellcheck: "false", autocomplete: "off", class: "code", placeholder: "PyTorch’s defaults",
  });
  #policy = h(
    "select", { id: "what-if-policy" },
    h("option", { value: "pytorch", text: "pytorch" }), h("option", { value: "pages", text: "pages" }),
  );
  #limit = h("input", { type: "text", id: "what-if-limit", spellcheck: "false", autocomplete: "off", placeholder: "none, or 24GiB" });
  #button = h("button", { type: "submit", class: "main", text: "What if?" });
  #line = h("div", { class: "paste" });

  constructor(onRun: (request: WhatIfRequest) => void, onError: (text: string) => void) {
    this.#controls = KNOBS.map((knob) => ({ knob, control: control(knob) }));
    for (const { knob, control } of this.#controls) {
      control.addEventListener("input", () => {
        this.#conf.value = withValue(this.#conf.value, knob.key, control.value);
        this.#showLine();
      });
    }
    this.#conf.addEventListener("input", () => this.#turnKnobs());
    this.element = h(
      "form",
      { class: "knobs" },
      ...this.#controls.map(({ knob, control }) => field(control.id, knob.label, control, knob.about)),
      field("what-if-policy", "Placement policy", this.#policy, "pytorch: its own rules. pages: Tonnage’s, where physical pages go where they are needed."),
      field("what-if-limit", "Limit on reserved memory", this.#limit, "What if the device had only this much?"),
      h("div", { class: "whole" }, h("label", { for: "what-if-conf", text: "Settings" }), this.#conf),
      h("div", { class: "whole" }, this.#button, this.#line),
    );
    this.element.addEventListener("submit", (event) => {
      event.preventDefault();
      try {
        onRun(this.request());
      } catch (error) {
        this.#limit.focus();
        onError(error instanceof Error ? error.message : String(error));
      }
    });
    this.#turnKnobs();
  }

  request(): WhatIfRequest {
    return { conf: this.#conf.value.trim(), policy: this.#policy.value, limit: parseSize(this.#limit.value) };
  }

  set(conf: string, policy = "pytorch", limit: number | null = null): void {
    this.#conf.value = conf;
    this.#limit.value = limit === null ? "" : exactBytes(limit).replace(" bytes", "B").replace(" ", "");
    this.policies([policy]);
    this.#policy.value = policy;
    this.#turnKnobs();
  }

  /** What the fields say, unchecked. */
  wish(): Wish {
    return { conf: this.#conf.value.trim(), policy: this.#policy.value, limit: this.#limit.value.trim() };
  }

  put({ conf, policy, limit }: Wish): void {
    this.set(conf, policy);
    this.#limit.value = limit;
  }

  /** Adds policies that the server knows. */
  policies(names: Iterable<string>): void {
    const known = new Set([...this.#policy.options].map((it) => it.value));
    for (const name of new Set(names)) {
      if (!known.has(name)) {
        this.#policy.append(h("option", { value: name, text: name }));
      }
    }
  }

  busy(busy: boolean): void {
    this.#button.disabled = busy;
    this.#button.textContent = busy ? "Replaying…" : "What if?";
  }

  #turnKnobs(): void {
    for (const { knob, control } of this.#controls) {
      const value = valueOf(this.#conf.value, knob.key);
      if (control instanceof HTMLSelectElement) {
        control.querySelector("[data-typed]")?.remove();
        if (![...control.options].some((it) => it.value === value)) {
          control.append(h("option", { value, text: plain(value), "data-typed": true }));
        }
      }
      // A field for numbers takes nothing else.
      control.value = control instanceof HTMLInputElement && Number.isNaN(Number(value)) ? "" : value;
    }
    this.#showLine();
  }

  #showLine(): void {
    const line = exportLine(this.#conf.value.trim());
    fill(this.#line, line === null ? null : copyLine(line));
  }
}

function control(knob: Knob): HTMLSelectElement | HTMLInputElement {
  const id = `knob-${knob.key}`;
  const named = { id, "aria-describedby": `${id}-about` };
  if (knob.options) {
    return h("select", named, ...knob.options.map(([value, text]) => h("option", { value, text })));
  }
  return h("input", { ...named, type: "number", placeholder: "default", ...knob.number });
}

function field(id: string, label: string, control: HTMLElement, about: string): HTMLElement {
  return h(
    "div", { class: "field" },
    h("label", { for: id, text: label }), control,
    h("p", { id: `${id}-about`, class: "about muted", text: about }),
  );
}
