// The segment map: every segment and block at the moment, and ways to move it.
//
// In:  the moment, the filter, what is blamed and chosen. Out: the map; changes of the moment and of what is chosen.
import { whole } from "../address.ts";
import type { App } from "../app.ts";
import { onceAFrame } from "../canvas.ts";
import { rowPixels } from "../colours.ts";
import { fill, h } from "../dom.ts";
import { bytes, count } from "../format.ts";
import { css, cssOf, mix, onScheme, pixel } from "../palette.ts";
import type { Recording } from "../recording.ts";
import type { Piece, State } from "../store.ts";
import { Tooltip } from "../timeline/tooltip.ts";
import { lifeOf, lineOf, momentText, purposeOf, sentence } from "../timeline/words.ts";
import { type Layout, layout } from "./layout.ts";
import { type Under, paintMap, under } from "./map.ts";
import { type Moment, momentAt } from "./moment.ts";
import { Player } from "./player.ts";

type Colours = "state" | "purpose" | "site";

const BY: readonly [Colours, string][] = [["state", "state"], ["purpose", "purpose"], ["site", "call site"]];

/** Room for a line more than the peak needs, in pixels: pools come and go. */
const SPARE = 20;

/** Lines that the largest reserved memory fills at first. */
const LINES = 12;

/** Bytes a pixel at first, at least: a small segment need not fill the page. */
const FINEST = 4096;

/** Steps of coming closer. */
const CLOSEST = 16;

const STATES: [string, string][] = [
  ["allocated", "--kind-0"],
  ["pending", "--kind-1"],
  ["free", "--free"],
];

function stateItem(name: string, colour: string): HTMLElement {
  const swatch = h("span", { class: "swatch" });
  swatch.style.background = colour;
  return h("li", {}, swatch, name);
}

class SegmentMap {
  readonly #app: App;
  readonly #canvas = h("canvas", { tabindex: 0, role: "application", "aria-label": "Segment map", "aria-describedby": "segments-figures" });
  readonly #figures = h("p", { id: "segments-figures", class: "figures" });
  readonly #said = h("p", { class: "unseen", "aria-live": "polite" });
  readonly #note = h("p", { class: "muted" });
  readonly #slider = h("input", { type: "range", min: 0, step: 1, "aria-label": "Moment" });
  readonly #where = h("output", { class: "muted" });
  readonly #play = h("button", { type: "button", text: "Play", title: "Go through what the timeline shows" });
  readonly #states = h("ul", { class: "states", "aria-label": "Colours" });
  readonly #choose = h("select", {}, ...BY.map(([value, text]) => h("option", { value, text })));
  readonly #tooltip = new Tooltip();
  readonly #player: Player;
  readonly #paint = onceAFrame(() => this.#draw());
  #by: Colours = "state";
  #closer = 1;
  #moment: Moment | null = null;
  #layout: Layout | null = null;
  #pixels: Uint32Array | null = null;
  #pointed = -1;
  /** Free memory that a cause means, by address. */
  #marked: Piece[] = [];
  #stateWords: HTMLElement[] = [];
  /** What the height of the map was worked out for. */
  #held = "";
  readonly #map = h("div", { class: "map" });
  readonly #markedWords = stateItem("free, and meant by the cause", "color-mix(in srgb, var(--failed) 50%, var(--free))");

  constructor(element: HTMLElement, app: App) {
    this.#app = app;
    this.#player = new Player((entries) => this.#advance(entries), (isPlaying) => {
      this.#play.textContent = isPlaying ? "Stop" : "Play";
    });
    element.append(
      h("div", { class: "heading" }, h("h2", { text: "Segments" }), this.#figures),
      this.#controls(),
      this.#map,
      this.#note,
      this.#said,
    );
    this.#map.append(this.#canvas, this.#tooltip.element);
    this.#listen();
    app.store.subscribe((state, before) => this.#changed(state, before));
    app.address.add({
      write: (into) => {
        if (this.#by !== "state") into.set("map", this.#by);
        if (this.#closer !== 1) into.set("closer", String(this.#closer));
      },
      read: (from) => {
        this.#by = BY.find(([value]) => value === from.get("map"))?.[0] ?? "state";
        this.#choose.value = this.#by;
        this.#closer = Math.min(Math.max(whole(from.get("closer")) ?? 1, 1), CLOSEST);
        this.#pixels = null;
        this.#paint();
      },
    });
    new ResizeObserver(() => this.#paint()).observe(element);
    onScheme(() => {
      this.#pixels = null;
      this.#draw();
    });
  }

  #controls(): HTMLElement {
    this.#choose.addEventListener("change", () => {
      this.#by = this.#choose.value as Colours;
      this.#pixels = null;
      this.#app.address.changed();
      this.#paint();
    });
    const button = (text: string, label: string, press: () => void) => h("button", { type: "button", text, title: label, "aria-label": label, on: { click: press } });
    const closer = (factor: number) => {
      this.#closer = Math.min(Math.max(this.#closer * factor, 1), CLOSEST);
      this.#app.address.changed();
      this.#paint();
    };
    this.#slider.addEventListener("input", () => this.#go(Number(this.#slider.value)));
    this.#play.addEventListener("click", () => {
      const { recording, from, to, moment } = this.#app.store.state;
      if (recording === null) return;
      // From the end, a film begins again.
      if (!this.#player.isPlaying && (moment < from || moment >= Math.min(to, recording.entries) - 1)) this.#go(Math.ceil(from));
      this.#player.toggle(to - from);
    });
    this.#markedWords.hidden = true;
    this.#stateWords = STATES.map(([name, colour]) => stateItem(name, `var(${colour})`));
    this.#states.append(...this.#stateWords, this.#markedWords);
    return h(
      "div",
      { class: "toolbar", role: "toolbar", "aria-label": "Segment map" },
      h("span", { class: "scrub" }, this.#play, button("‹", "One entry back", () => this.#step(-1)), this.#slider, button("›", "One entry on", () => this.#step(1)), this.#where),
      h("label", {}, h("span", { class: "muted", text: "Colour by" }), this.#choose),
      this.#states,
      h("span", { class: "group" }, button("−", "Shorter strips", () => closer(0.5)), button("+", "Longer strips", () => closer(2))),
    );
  }

  #go(moment: number): void {
    const { recording } = this.#app.store.state;
    if (recording !== null) this.#app.store.set({ moment: Math.min(Math.max(moment, 0), recording.entries) });
  }

  #step(step: number): void {
    this.#go(this.#app.store.state.moment + step);
  }

  #advance(entries: number): boolean {
    const { recording, moment, to } = this.#app.store.state;
    if (recording === null) return false;
    const end = Math.min(Math.ceil(to) - 1, recording.entries);
    this.#go(Math.min(moment + entries, end));
    return moment + entries < end;
  }

  #changed(state: Readonly<State>, before: Readonly<State>): void {
    const { recording } = state;
    if (recording === null) return;
    const isNew = recording !== before.recording;
    if (isNew) {
      this.#player.stop();
      this.#slider.max = String(recording.entries);
    }
    if (isNew || state.moment !== before.moment) {
      this.#moment = null;
      this.#pointed = -1;
      this.#slider.value = String(state.moment);
      const text = momentText(recording, state.moment);
      this.#slider.setAttribute("aria-valuetext", text);
      this.#where.textContent = text;
    }
    if (isNew || state.shown !== before.shown || state.blamed !== before.blamed) this.#pixels = null;
    if (state.pieces !== before.pieces) {
      this.#marked = [...(state.pieces ?? [])].sort((a, b) => a.address - b.address);
      this.#markedWords.hidden = this.#marked.length === 0;
    }
    if (this.#moment === null || this.#pixels === null || state.chosen !== before.chosen) this.#paint();
  }

  /** A block's colour. */
  #colour(recording: Recording, moment: number): (row: number) => string {
    const { shown, blamed } = this.#app.store.state;
    if (this.#by !== "state") {
      this.#pixels ??= rowPixels(recording, this.#by, 0, shown, blamed);
      const pixels = this.#pixels;
      return (row) => cssOf(pixels[row + 1]);
    }
    const ground = pixel(css("--free"));
    const [live, pending] = STATES.map(([, colour]) => pixel(css(colour)));
    const texts = [live, pending].map((it) => [cssOf(it), cssOf(mix(it, ground, 0.2))]);
    const failed = css("--failed");
    return (row) => {
      if (blamed?.has(row)) return failed;
      const isDim = blamed !== null || (shown !== null && shown[row] === 0);
      return texts[moment < recording.allocations.end[row] ? 0 : 1][isDim ? 1 : 0];
    };
  }

  #draw(): void {
    const { recording, moment, chosen } = this.#app.store.state;
    const width = this.#canvas.clientWidth;
    if (recording === null || width === 0) return;
    this.#moment ??= momentAt(recording, moment);
    // The same for every moment, so that nothing changes its length while one goes through them.
    const perPixel = Math.max(recording.head.peak.reserved / (width * LINES), FINEST) / this.#closer;
    const found = layout(this.#moment, width, perPixel);
    this.#layout = found;
    this.#hold(recording, width, perPixel);
    for (const it of this.#stateWords) it.hidden = this.#by !== "state";
    paintMap(this.#canvas, recording, this.#moment, found, { colour: this.#colour(recording, moment), chosen, pointed: this.#pointed, marked: this.#marked });
    this.#tell(this.#moment, found);
  }

  /** Gives the map the height that it needs where most is reserved, whatever the moment: nothing below moves. */
  #hold(recording: Recording, width: number, perPixel: number): void {
    const key = `${recording.info.id} ${recording.info.version} ${width} ${perPixel}`;
    if (key === this.#held) return;
    this.#held = key;
    const { height } = layout(momentAt(recording, recording.head.peak.reservedAt), width, perPixel);
    this.#map.style.height = `min(${Math.ceil(height) + SPARE}px, 26rem)`;
  }

  #tell({ sums }: Moment, { left }: Layout): void {
    const figures: [string, string][] = [
      [count(sums.segments), sums.segments === 1 ? "segment" : "segments"],
      [bytes(sums.reserved), "reserved"],
      [bytes(sums.allocated), "allocated"],
      [bytes(sums.pending), "pending"],
      [bytes(sums.free), "free"],
      [bytes(sums.largestFree), "largest free block"],
    ];
    fill(this.#figures, ...figures.map(([value, name]) => h("span", {}, h("b", { text: value }), ` ${name}`)));
    const notes = [
      left > 0 ? `${count(left)} more segments are not drawn.` : "",
      sums.homeless > 0 ? `${count(sums.homeless)} allocations are not drawn: their segments are not in the recording.` : "",
    ];
    this.#note.textContent = notes.join(" ").trim();
    this.#note.hidden = this.#note.textContent === "";
  }

  #listen(): void {
    const canvas = this.#canvas;
    canvas.addEventListener("pointermove", (event) => {
      const { recording } = this.#app.store.state;
      if (recording === null || this.#moment === null || this.#layout === null) return;
      const found = under(recording, this.#moment, this.#layout, event.offsetX, event.offsetY);
      canvas.style.cursor = found !== null && found.row >= 0 ? "pointer" : "default";
      if (found === null) this.#tooltip.hide();
      else this.#tooltip.show(event.offsetX, event.offsetY, this.#words(recording, found));
      if ((found?.row ?? -1) !== this.#pointed) {
        this.#pointed = found?.row ?? -1;
        this.#paint();
      }
    });
    canvas.addEventListener("pointerleave", () => {
      this.#tooltip.hide();
      this.#pointed = -1;
      this.#paint();
    });
    canvas.addEventListener("click", (event) => {
      const { recording } = this.#app.store.state;
      if (recording === null || this.#moment === null || this.#layout === null) return;
      const found = under(recording, this.#moment, this.#layout, event.offsetX, event.offsetY);
      this.#app.store.set({ chosen: found?.row ?? -1 });
    });
    canvas.addEventListener("keydown", (event) => {
      if (this.#key(event)) event.preventDefault();
    });
  }

  #words(recording: Recording, { row, strip, free }: Under): string[] {
    const home = `segment of ${bytes(strip.size)}`;
    if (row < 0) return [`${bytes(free)} free`, home];
    const { moment } = this.#app.store.state;
    const state = moment < recording.allocations.end[row] ? "" : ", pending: freed, but another stream may still use it";
    return [`${bytes(recording.allocations.size[row])}${state}`, purposeOf(recording, row), lineOf(recording, row), `live for ${lifeOf(recording, row)}`, home];
  }

  /** Goes through blocks in the order of the map. */
  #walk(step: 1 | -1): void {
    const { recording, chosen } = this.#app.store.state;
    if (recording === null || this.#moment === null || this.#layout === null) return;
    const { blocks: rows } = this.#moment;
    const here = rows.indexOf(this.#pointed >= 0 ? this.#pointed : chosen);
    const next = rows[here < 0 ? 0 : Math.min(Math.max(here + step, 0), rows.length - 1)];
    if (next === undefined) return;
    this.#pointed = next;
    this.#said.textContent = sentence(recording, next);
    this.#paint();
  }

  #key(event: KeyboardEvent): boolean {
    if (event.ctrlKey || event.metaKey || event.altKey) return false;
    const actions: Record<string, () => void> = {
      ArrowRight: () => this.#walk(1),
      ArrowLeft: () => this.#walk(-1),
      Enter: () => this.#pointed >= 0 && this.#app.store.set({ chosen: this.#pointed }),
      Escape: () => this.#app.store.set({ chosen: -1 }),
      ",": () => this.#step(-1),
      ".": () => this.#step(1),
      " ": () => this.#play.click(),
    };
    const action = actions[event.key];
    action?.();
    return action !== undefined;
  }
}

export function mountSegments(element: HTMLElement, app: App): void {
  new SegmentMap(element, app);
}
