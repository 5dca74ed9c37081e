// The flame graph and the largest blocks: who holds what is live at the moment, among what the filter takes.
//
// A click on a box makes it as wide as the page and filters by its frame, so that the timeline shows the same.
import type { Module } from "../api.ts";
import type { App } from "../app.ts";
import { FONT, contextOf, fitCanvas } from "../canvas.ts";
import { fill, h } from "../dom.ts";
import { quoted } from "../filter/parse.ts";
import { base, bytes, count } from "../format.ts";
import { css, onScheme } from "../palette.ts";
import type { Recording } from "../recording.ts";
import { whenShown } from "../shown.ts";
import { type Paths, isStacked, loadStacks, moduleName, stacksOf } from "../stacks.ts";
import { shortened } from "../timeline/chart.ts";
import { momentOf } from "../timeline/live.ts";
import { Tooltip } from "../timeline/tooltip.ts";
import { lifeOf, lineOf, momentText, purposeOf } from "../timeline/words.ts";
import { percent } from "../what-if/meaning.ts";
import { type Box, EVERYTHING, NO_STACK, boxes, isWithin, largestAt, liveAt } from "./tree.ts";

/** The height of a box, with the gap below it. */
const ROW = 20;

/** More rows than anyone follows; the boxes below are left out. */
const DEEPEST = 48;

/** So many of the largest blocks are listed. */
const LARGEST = 10;

const HEADS = ["Requested", "Share", "Purpose", "Lived", "Line"];

/** Milliseconds for which the moment rests before all is summed up anew. */
const PAUSE = 120;

class Flame {
  readonly #app: App;
  readonly #canvas = h("canvas", { class: "flame", tabindex: 0, role: "application", "aria-label": "Flame graph of what is live at the moment", "aria-describedby": "flame-said" });
  readonly #said = h("p", { id: "flame-said", class: "muted", "aria-live": "polite" });
  readonly #when = h("p", { class: "muted" });
  readonly #all = h("button", { type: "button", text: "Show all" });
  readonly #panel: HTMLDetailsElement;
  readonly #graph = h("div", { class: "graph" });
  readonly #none = h("p", { class: "muted", text: "No stacks were recorded: torch.cuda.memory._record_memory_history(stacks=\"python\") records them." });
  readonly #rows = h("tbody");
  readonly #tooltip = new Tooltip();
  #list: Box[] = [];
  readonly #by = h("select", {}, h("option", { value: "stack", text: "stack" }), h("option", { value: "module", text: "module" }));
  /** What the boxes are made of: all stacks, or all paths of modules. */
  #stacks: Paths | null = null;
  #modules: Paths<Module> | null = null;
  /** Requested bytes of all that is live at the moment: the whole that shares are of, also under a filter. */
  #live = 0;
  #zoomed = 0;
  #current = 0;
  #timer: number | undefined;
  /** The filter that a click has set. */
  #asked = "";

  constructor(element: HTMLElement, app: App) {
    this.#app = app;
    const heads = HEADS.map((text, place) => h("th", { scope: "col", class: place < 2 ? "number" : "", text }));
    const key = (name: string, text: string) => h("li", {}, h("i", { class: `sample ${name}`, "aria-hidden": "true" }), text);
    this.#graph.append(
      h("div", { class: "toolbar" }, h("ul", { class: "keys" }, key("program", "your program"), key("library", "libraries")), h("label", {}, h("span", { class: "muted", text: "By" }), this.#by), this.#all),
      h("div", { class: "plot" }, this.#canvas, this.#tooltip.element),
      this.#said,
    );
    this.#panel = h("details", { class: "flame-panel", open: true }, h("summary", {}, h("h2", { text: "Who holds it" })), this.#when, this.#graph, this.#none,
      h("h3", { text: "Largest blocks" }),
      h("div", { class: "scrolls" }, h("table", { class: "figures-table cards largest-blocks" }, h("thead", {}, h("tr", {}, ...heads)), this.#rows)));
    element.append(this.#panel);
    this.#listen();
    app.store.subscribe((state, before) => {
      if (state.recording?.info.id !== before.recording?.info.id) this.#opened(state.recording);
      if (state.query !== before.query && state.query !== this.#asked) this.#zoomed = 0;
      if (state.recording !== before.recording || state.moment !== before.moment || state.shown !== before.shown) this.#later();
    });
    new ResizeObserver(() => this.#paint()).observe(this.#canvas);
    // While it is hidden nothing is summed up.
    whenShown(this.#panel, () => this.#later());
    this.#panel.addEventListener("toggle", () => this.#later());
    onScheme(() => this.#paint());
  }

  #opened(recording: Recording | null): void {
    this.#zoomed = 0;
    this.#stacks = this.#modules = null;
    this.#list = [];
    this.#when.textContent = "";
    fill(this.#rows);
    this.#canvas.style.height = "0";
    const stacked = recording !== null && isStacked(recording);
    this.#graph.hidden = !stacked;
    this.#none.hidden = stacked;
  }

  /** Once the moment rests: while it moves, everything would be summed up for nothing. */
  #later(): void {
    clearTimeout(this.#timer);
    this.#canvas.dataset["drawn"] = "false";
    this.#timer = window.setTimeout(() => this.#sum(), PAUSE);
  }

  #sum(): void {
    const { recording, moment, shown } = this.#app.store.state;
    if (recording === null || !this.#panel.open || this.#panel.clientWidth === 0) return;
    const filtered = shown === null ? "" : ", of what the filter takes";
    this.#when.textContent = `What is live ${momentText(recording, moment)}${filtered}.`;
    this.#live = liveAt(recording, moment);
    this.#largest(recording, moment, shown);
    if (!isStacked(recording)) return;
    const stacks = stacksOf(recording);
    if (stacks === null) {
      this.#app.attempt(loadStacks(recording).then(() => this.#app.store.state.recording === recording && this.#sum()));
      return;
    }
    this.#modules = this.#byModule ? stacks.modules : null;
    this.#stacks = this.#modules ?? stacks;
    const zoomed = this.#list[this.#zoomed];
    const path = zoomed === undefined ? [] : this.#path(this.#zoomed);
    this.#list = boxes(recording, this.#stacks, moment, shown);
    this.#zoomed = this.#find(path);
    this.#current = this.#zoomed;
    this.#paint();
    this.#canvas.dataset["boxes"] = String(this.#list.length);
    this.#canvas.dataset["drawn"] = "true";
  }

  /** The frames that lead to a box, from the outermost. */
  #path(place: number): number[] {
    const path: number[] = [];
    for (let at = place; at !== 0; at = this.#list[at].parent) path.unshift(this.#list[at].frame);
    return path;
  }

  /** The box to which these frames lead; everything if there is none any more. */
  #find(path: number[]): number {
    let at = 0;
    for (const frame of path) {
      at = this.#list.findIndex((it, place) => place !== 0 && it.parent === at && it.frame === frame);
      if (at < 0) return 0;
    }
    return at;
  }

  /** Where a box lies on the canvas; null if it is not to be seen. */
  #place(place: number): { left: number; width: number; top: number } | null {
    const box = this.#list[place];
    const zoomed = this.#list[this.#zoomed];
    const whole = this.#canvas.clientWidth;
    if (box.depth >= DEEPEST) return null;
    if (isWithin(this.#list, this.#zoomed, place)) return { left: 0, width: whole, top: box.depth * ROW };
    if (!isWithin(this.#list, place, this.#zoomed)) return null;
    return { left: ((box.at - zoomed.at) / zoomed.wide) * whole, width: (box.wide / zoomed.wide) * whole, top: box.depth * ROW };
  }

  #name(box: Box): string {
    const frame = this.#stacks?.names[box.frame];
    if (box.frame === EVERYTHING) return "everything";
    if (box.frame === NO_STACK || frame === undefined) return this.#byModule ? "no module" : "no stack";
    const module = this.#modules?.names[box.frame];
    if (module !== undefined) return moduleName(module);
    return `${frame.function} ${base(frame.file)}:${frame.line}`;
  }

  #paint(): void {
    if (this.#list.length === 0 || this.#canvas.clientWidth === 0) return;
    const rows = Math.min(Math.max(...this.#list.map((it) => it.depth)) + 1, DEEPEST);
    this.#canvas.style.height = `${rows * ROW}px`;
    fitCanvas(this.#canvas);
    const context = contextOf(this.#canvas);
    context.clearRect(0, 0, this.#canvas.clientWidth, this.#canvas.clientHeight);
    context.font = FONT;
    context.textBaseline = "middle";
    this.#list.forEach((box, place) => {
      const at = this.#place(place);
      if (at === null || at.width < 0.5) return;
      const frame = this.#stacks?.names[box.frame];
      const isProgram = frame !== undefined && !frame.library;
      context.fillStyle = css(isProgram ? "--program" : "--library");
      context.fillRect(at.left, at.top, Math.max(at.width - 1, 0.5), ROW - 1);
      if (place === this.#current && document.activeElement === this.#canvas) {
        context.strokeStyle = css("--chosen");
        context.lineWidth = 2;
        context.strokeRect(at.left + 1, at.top + 1, Math.max(at.width - 3, 1), ROW - 3);
      }
      if (at.width > 24) {
        context.fillStyle = css(isProgram ? "--program-text" : "--text");
        context.fillText(shortened(this.#name(box), at.width - 8, (text) => context.measureText(text).width), at.left + 4, at.top + ROW / 2);
      }
    });
    this.#all.disabled = this.#zoomed === 0;
  }

  #words(box: Box): string[] {
    const frame = this.#stacks?.names[box.frame];
    const size = `${bytes(box.bytes)}, ${percent(box.bytes, this.#live)} of what is live, in ${count(box.blocks)} ${box.blocks === 1 ? "block" : "blocks"}`;
    if (frame === undefined) return [this.#name(box), size];
    return this.#byModule ? [this.#name(box), size, frame.file] : [frame.function, size, `${frame.file}:${frame.line}`];
  }

  #under(x: number, y: number): number {
    const depth = Math.floor(y / ROW);
    return this.#list.findIndex((box, place) => {
      if (box.depth !== depth) return false;
      const at = this.#place(place);
      return at !== null && x >= at.left && x < at.left + at.width;
    });
  }

  #zoom(place: number): void {
    const box = this.#list[place];
    if (box === undefined) return;
    this.#zoomed = this.#current = place;
    const frame = this.#stacks?.names[box.frame];
    this.#asked = frame === undefined ? "" : this.#byModule ? this.#moduleQuery(place) : `frame:${quoted(`${frame.file}:${frame.line}`)}`;
    this.#app.store.set({ query: this.#asked });
    this.#said.textContent = this.#words(box).join(": ");
    this.#paint();
  }

  get #byModule(): boolean {
    return this.#by.value === "module";
  }

  /** The filter for what a box of modules has. */
  #moduleQuery(place: number): string {
    const names = this.#path(place).flatMap((it) => this.#modules?.names[it] ?? []);
    return `module:${quoted(names.map(moduleName).join(" > "))}`;
  }

  #listen(): void {
    const canvas = this.#canvas;
    this.#by.addEventListener("change", () => {
      this.#zoomed = 0;
      this.#list = [];
      this.#later();
    });
    this.#all.addEventListener("click", () => this.#zoom(0));
    canvas.addEventListener("pointermove", (event) => {
      const place = this.#under(event.offsetX, event.offsetY);
      canvas.style.cursor = place < 0 ? "" : "pointer";
      if (place < 0) this.#tooltip.hide();
      else this.#tooltip.show(event.offsetX, event.offsetY, this.#words(this.#list[place]));
    });
    canvas.addEventListener("pointerleave", () => this.#tooltip.hide());
    canvas.addEventListener("click", (event) => {
      this.#tooltip.hide();
      this.#zoom(this.#under(event.offsetX, event.offsetY));
    });
    canvas.addEventListener("focus", () => this.#paint());
    canvas.addEventListener("blur", () => this.#paint());
    canvas.addEventListener("keydown", (event) => {
      if (this.#key(event)) event.preventDefault();
    });
  }

  #key(event: KeyboardEvent): boolean {
    if (event.ctrlKey || event.metaKey || event.altKey || this.#list.length === 0) return false;
    const here = this.#list[this.#current];
    const beside = (takes: (it: Box) => boolean, nearest: (a: Box, b: Box) => number) => {
      const found = this.#list.filter((it, place) => takes(it) && this.#place(place) !== null).sort(nearest)[0];
      return found === undefined ? -1 : this.#list.indexOf(found);
    };
    const left = (a: Box, b: Box) => a.at - b.at;
    const next: Record<string, () => number> = {
      ArrowUp: () => here.parent,
      ArrowDown: () => beside((it) => it.parent === this.#current && it.depth === here.depth + 1, left),
      ArrowRight: () => beside((it) => it.depth === here.depth && it.at > here.at, left),
      ArrowLeft: () => beside((it) => it.depth === here.depth && it.at < here.at, (a, b) => b.at - a.at),
      Enter: () => this.#current,
      Escape: () => 0,
    };
    const to = next[event.key]?.();
    if (to === undefined) return false;
    if (to >= 0) {
      if (event.key === "Enter" || event.key === "Escape") this.#zoom(to);
      this.#current = to;
      this.#said.textContent = this.#words(this.#list[to]).join(": ");
      this.#paint();
    }
    return true;
  }

  #largest(recording: Recording, moment: number, shown: Uint8Array | null): void {
    const rows = largestAt(recording, moment, shown, LARGEST);
    fill(this.#rows, ...rows.map((row) => {
      const { requested } = recording.allocations;
      const open = h("button", { type: "button", class: "link", text: bytes(requested[row]), title: `${count(requested[row])} bytes: choose it` });
      open.addEventListener("click", () => this.#app.store.set({ chosen: row, moment: momentOf(recording, row, this.#app.store.state.moment) }));
      const cell = (word: string, text: string, kind = "number") => h("td", { class: kind, "data-word": word, text });
      return h("tr", {},
        h("th", { scope: "row", class: "number" }, open), cell(HEADS[1], percent(requested[row], this.#live)), cell(HEADS[2], purposeOf(recording, row), ""),
        cell(HEADS[3], lifeOf(recording, row), ""), cell(HEADS[4], lineOf(recording, row), "name"));
    }));
  }
}

export function mountFlame(element: HTMLElement, app: App): void {
  new Flame(element, app);
}
