// What a cause means, above the timeline that shows it.
import type { App } from "../app.ts";
import { fill, h } from "../dom.ts";

export function mountLit(element: HTMLElement, app: App): void {
  element.setAttribute("role", "status");
  app.store.subscribe(({ lit }, before) => {
    if (lit === before.lit) return;
    if (lit === null) {
      fill(element);
      return;
    }
    const clear = h("button", { type: "button", text: "Clear" });
    clear.addEventListener("click", () => app.store.unlight());
    fill(
      element,
      h("div", { class: "heading" }, h("h2", { text: lit.title }), clear),
      h("p", { class: "name", text: lit.text }),
      h("p", { class: "muted", text: lit.words }),
    );
    // A cause may have been clicked far below.
    element.scrollIntoView({ block: "nearest" });
  });
}
