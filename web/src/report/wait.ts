// A replay that takes a while: how long it has taken, and a way to do without.
import { h } from "../dom.ts";

export class Wait {
  #abort = new AbortController();
  #words = h("span");
  #element: HTMLElement;
  #timer: number;
  #since = performance.now();

  /** Shows itself at the top of an element. */
  constructor(within: HTMLElement) {
    const cancel = h("button", { type: "button", text: "Cancel" });
    cancel.addEventListener("click", () => this.#abort.abort());
    this.#element = h("div", { class: "waits", role: "status" }, this.#words, h("progress", { "aria-label": "Replaying" }), cancel);
    within.prepend(this.#element);
    this.#timer = window.setInterval(() => this.#tell(), 500);
    this.#tell();
  }

  /** Aborted once someone would rather do without. */
  get signal(): AbortSignal {
    return this.#abort.signal;
  }

  /** Also for who asks for something else: what was asked for is not waited for any more. */
  end(): void {
    this.#abort.abort();
    clearInterval(this.#timer);
    this.#element.remove();
  }

  #tell(): void {
    this.#words.textContent = `The history is replayed, to try settings: ${Math.floor((performance.now() - this.#since) / 1000)} s so far.`;
  }
}
