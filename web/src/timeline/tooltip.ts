// A few words beside the pointer.
import { fill, h } from "../dom.ts";

export class Tooltip {
  readonly element = h("div", { class: "tooltip", "aria-hidden": "true", hidden: true });

  /** Shows lines of text at a place of the element that it lies in; the first is the title. */
  show(x: number, y: number, lines: string[]): void {
    fill(this.element, ...lines.map((text, place) => h("div", { class: place === 0 ? "title name" : "name", text })));
    this.element.hidden = false;
    // Measured where it has room: at the edge it would be squeezed.
    this.element.style.left = "0";
    const within = this.element.offsetParent as HTMLElement | null;
    const { offsetWidth, offsetHeight } = this.element;
    const room = within?.clientWidth ?? window.innerWidth;
    const left = x + 14 + offsetWidth > room ? x - 14 - offsetWidth : x + 14;
    this.element.style.left = `${Math.max(left, 0)}px`;
    this.element.style.top = `${Math.max(y - offsetHeight - 8, 0)}px`;
  }

  hide(): void {
    this.element.hidden = true;
  }
}
