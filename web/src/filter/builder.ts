// A filter for those who do not know its language: choices that become terms.
//
// In:  what a recording has. Out: terms as text, which the field then shows: so the language is learned by using it.
import { fill, h } from "../dom.ts";
import { base, siteText } from "../format.ts";
import type { Recording } from "../recording.ts";
import { quoted } from "./parse.ts";

/** So many lines are offered. */
const LINES = 60;

type Add = (term: string) => void;

/** A choice that becomes a term at once. */
function choice(label: string, key: string, add: Add): { element: HTMLElement; offer(values: [string, string][]): void } {
  const select = h("select", {});
  select.addEventListener("change", () => {
    if (select.value !== "") add(`${key}:${select.value}`);
    select.value = "";
  });
  return {
    element: h("label", {}, h("span", { text: label }), select),
    offer: (values) => fill(select, h("option", { value: "", text: "choose…" }), ...values.map(([value, text]) => h("option", { value, text }))),
  };
}

/** A comparison: sign, number, unit. */
function comparison(label: string, key: string, units: [string, string][], add: Add): HTMLElement {
  const sign = h("select", { "aria-label": `${label}: comparison` }, h("option", { value: ">", text: "more than" }), h("option", { value: "<", text: "less than" }));
  const number = h("input", { type: "number", min: 0, step: "any", value: 1, "aria-label": `${label}: number` });
  const unit = h("select", { "aria-label": `${label}: unit` }, ...units.map(([value, text]) => h("option", { value, text })));
  const button = h("button", { type: "submit", text: "Add" });
  const form = h("form", {}, h("span", { text: label }), sign, number, unit, button);
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    if (number.value !== "") add(`${key}:${sign.value}${Number(number.value)}${unit.value}`);
  });
  return form;
}

/** The lines that ask most often, by their number of allocations. */
function frequentLines({ allocations, head }: Recording): [string, string][] {
  const counts = new Uint32Array(head.sites.length);
  for (let row = 0; row < allocations.length; row++) counts[allocations.site[row]]++;
  const places = [...counts.keys()].filter((site) => head.sites[site] !== null && counts[site] > 0);
  places.sort((a, b) => counts[b] - counts[a]);
  return places.slice(0, LINES).map((place) => {
    const site = head.sites[place];
    return site === null ? ["", ""] : [quoted(`${base(site.file)}:${site.line}`), siteText(site)];
  });
}

export function builder(add: Add): HTMLElement & { show(recording: Recording): void } {
  const line = choice("Line", "line", add);
  const purpose = choice("Purpose", "purpose", add);
  const stream = choice("Stream", "stream", add);
  const pool = choice("Pool", "pool", add);
  const element = h(
    "details",
    { class: "builder" },
    h("summary", { text: "Build a filter" }),
    h(
      "div",
      { class: "choices" },
      line.element,
      purpose.element,
      stream.element,
      pool.element,
      comparison("Size", "size", [["MiB", "MiB"], ["KiB", "KiB"], ["GiB", "GiB"], ["B", "bytes"]], add),
      comparison("Life", "life", [["", "entries"], ["ms", "ms"], ["s", "s"], ["us", "µs"]], add),
    ),
    h("p", {
      class: "muted",
      text: "Several terms must all hold; - before one turns it around. A word alone is looked for in every frame, those of libraries too. "
        + "Also: frame:linear.py:125, module:nn.linear, size:1MiB..4MiB, live:peak, live:1200, address:0x7f….",
    }),
  );
  const names = (list: string[]): [string, string][] => list.map((name) => [quoted(name), name]);
  return Object.assign(element, {
    show(recording: Recording) {
      line.offer(frequentLines(recording));
      purpose.offer(names(recording.head.purposes));
      stream.offer(names(recording.head.streams));
      pool.offer(names(recording.head.pools));
    },
  });
}
