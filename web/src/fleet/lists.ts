// What the fleet says, in lists that lead to ranks. In: its sections. Out: elements.
import type { FleetSection } from "../api.ts";
import { fill, h } from "../dom.ts";
import { count } from "../format.ts";

/** Lines that are shown at first, and at most: `tonnage fleet report --json` has all. */
const FIRST = 5;
const MOST = 200;

type Line = FleetSection["lines"][number];

/** Lists that begin folded: they are long, and say the least. */
const FOLDED = ["near", "unreadable"];

function line({ file, name, words }: Line, go: (address: string) => void): HTMLElement {
  const button = file === null ? null : h("button", { type: "button", class: "link name", text: name, on: { click: () => go(file) } });
  const [first, ...rest] = words;
  return h("li", {}, h("p", { class: "name" }, button, button && " ", h("span", { text: first ?? "" })),
    ...rest.map((text) => h("p", { class: "muted name", text })));
}

function list(section: FleetSection, go: (address: string) => void): HTMLElement {
  const { lines } = section;
  const items = h("ul", {}, ...lines.slice(0, FIRST).map((it) => line(it, go)));
  const more = h("button", { type: "button", text: `Show ${lines.length > MOST ? `${count(MOST)} of ` : "all "}${count(lines.length)}` });
  more.addEventListener("click", () => {
    const shown = lines.slice(FIRST, MOST).map((it) => line(it, go));
    items.append(...shown);
    more.remove();
    shown[0]?.querySelector("button")?.focus();
  });
  return h("details", { open: !FOLDED.includes(section.kind), "data-kind": section.kind },
    h("summary", {}, h("h3", { text: section.title })), items, lines.length > FIRST ? more : null);
}

/** Fills an element with lists; `go` is told the address of the file whose line is chosen. */
export function showLists(element: HTMLElement, sections: FleetSection[], go: (address: string) => void): void {
  fill(element, ...sections.map((it) => list(it, go)));
}
