// Live memory along a recording, each allocation in its place: the panel.
//
// In:  the state. Out: the canvas, the overview, the legend; changes of the view, the moment and what is chosen.
import type { App } from "../app.ts";
import { onceAFrame } from "../canvas.ts";
import { rowPixels } from "../colours.ts";
import { h } from "../dom.ts";
import { bytes, count } from "../format.ts";
import { onScheme } from "../palette.ts";
import type { Recording } from "../recording.ts";
import { isStacked, loadStacks, stacksOf } from "../stacks.ts";
import type { Axis, State } from "../store.ts";
import { Chart, type Scene } from "./chart.ts";
import { listen } from "./gestures.ts";
import { help } from "./help.ts";
import { Legend } from "./legend.ts";
import { beside, isLive, momentOf } from "./live.ts";
import { marksOf } from "./marks.ts";
import { frameTook, pictureTook } from "./measure.ts";
import { Overview } from "./overview.ts";
import { type Span, bandOf } from "./phases.ts";
import { type Drawn, Pictures, type View } from "./pictures.ts";
import { type Scale, columns, scaleOf } from "./scale.ts";
import { Toolbar } from "./toolbar.ts";
import { Tooltip } from "./tooltip.ts";
import { type Bounds, heights, panned, within, zoomed } from "./window.ts";
import { lifeOf, lineOf, momentText, purposeOf, sentence } from "./words.ts";

/** A key moves the view by this part of its width. */
const STEP = 0.15;

/** The dot of the moment is caught this near, in pixels. */
const NEAR = 8;

class Timeline {
  readonly #app: App;
  readonly #canvas = h("canvas", {
    class: "chart", tabindex: 0, role: "application", "aria-label": "Timeline of live memory", "aria-describedby": "timeline-said timeline-keys",
  });
  readonly #said = h("p", { id: "timeline-said", class: "unseen", "aria-live": "polite" });
  readonly #chart = new Chart(this.#canvas);
  readonly #overview: Overview;
  readonly #tooltip = new Tooltip();
  readonly #toolbar: Toolbar;
  readonly #legend: Legend;
  readonly #help = help();
  readonly #pictures: Pictures;
  readonly #paint = onceAFrame(() => this.#frame());
  #scale: Scale = scaleOf(new Float64Array(0), false, "entries");
  #band: Span[][] = [];
  #fit = false;
  #scrub = false;
  #marked: [number, number] | null = null;
  #known: { key: string; bounds: Bounds } | null = null;
  /** The row under the pointer or found with the keys, and the moment there. */
  #pointed: { row: number; moment: number } | null = null;
  /** Whether a key pointed there: then it holds until the moment is another. */
  #byKey = false;
  /** When the view was last changed, until its picture is there. */
  #asked: number | null = null;
  /** The view whose picture is to be shown. */
  #wanted: View | null = null;

  constructor(element: HTMLElement, app: App) {
    this.#app = app;
    this.#pictures = new Pictures((drawn) => this.#drawn(drawn), (text) => app.say(text, true));
    this.#overview = new Overview(h("canvas", { class: "overview", role: "img", "aria-label": "The whole recording, and which part is shown" }), (from, to) => this.#look(from, to));
    this.#legend = new Legend((query) => app.store.set({ query }));
    this.#toolbar = new Toolbar({
      axis: (axis) => app.store.set({ axis }),
      colourBy: (colourBy) => app.store.set({ colourBy }),
      depth: (depth) => app.store.set({ depth }),
      fit: () => this.#setFit(!this.#fit),
      scrub: () => this.#setScrub(!this.#scrub),
      zoom: (factor) => this.#zoom(factor, 0.5),
      whole: () => this.#whole(),
      help: () => this.#help.showModal(),
    });
    element.append(
      this.#toolbar.element,
      h("div", { class: "plot" }, this.#canvas, this.#tooltip.element),
      this.#overview.canvas,
      this.#legend.element,
      this.#said,
      h("p", { id: "timeline-keys", class: "unseen", text: "Arrow keys move, plus and minus zoom, brackets go through allocations, question mark lists all keys." }),
      this.#help,
    );
    this.#gestures();
    this.#canvas.addEventListener("keydown", (event) => {
      if (this.#key(event)) event.preventDefault();
    });
    app.store.subscribe((state, before) => this.#changed(state, before));
    app.address.add({
      write: (into) => {
        if (this.#fit) into.set("fit", "1");
      },
      read: (from) => this.#setFit(from.get("fit") === "1"),
    });
    new ResizeObserver(() => {
      this.#tooltip.hide();
      this.#view();
    }).observe(this.#canvas);
    onScheme(() => {
      this.#colours();
      // A printer takes what is there now.
      this.#frame();
    });
  }

  get #state(): Readonly<State> {
    return this.#app.store.state;
  }

  #changed(state: Readonly<State>, before: Readonly<State>): void {
    const { recording } = state;
    if (recording === null) return;
    const isNew = recording !== before.recording;
    if (isNew || state.axis !== before.axis) {
      this.#scale = scaleOf(recording.time, recording.head.timed, state.axis);
      this.#pointed = null;
    }
    if (this.#byKey && this.#pointed !== null && state.moment !== before.moment && this.#pointed.moment !== state.moment) {
      this.#pointed = null;
      this.#tooltip.hide();
    }
    if (isNew) {
      this.#band = bandOf(recording.head, recording.entries);
      this.#pictures.open(recording);
    }
    this.#tools();
    if (isNew || state.colourBy !== before.colourBy || state.depth !== before.depth || state.shown !== before.shown || state.blamed !== before.blamed) {
      this.#colours();
    } else if (state.chosen !== before.chosen) {
      this.#pictures.choose(state.chosen);
      this.#view();
    } else if (state.from !== before.from || state.to !== before.to || state.axis !== before.axis) {
      this.#view();
    }
    if (state.chosen !== before.chosen) {
      this.#said.textContent = state.chosen < 0 ? "Nothing is chosen" : `Chosen: ${sentence(recording, state.chosen)}`;
    }
    this.#paint();
  }

  /** Colours anew, and draws. */
  #colours(): void {
    const { recording, colourBy, depth, shown, blamed, chosen } = this.#state;
    if (recording === null) return;
    if ((colourBy === "frame" || colourBy === "module" || colourBy === "layer") && stacksOf(recording) === null) {
      this.#app.attempt(loadStacks(recording).then(() => this.#state.recording === recording && this.#colours()));
    }
    this.#pictures.look(rowPixels(recording, colourBy, depth, shown, blamed), chosen);
    this.#view();
  }

  /** Asks for a picture of what is to be seen, and shows the last one there meanwhile. */
  #view(): void {
    const { recording, from, to } = this.#state;
    if (recording === null || this.#canvas.clientWidth === 0) return;
    this.#asked ??= performance.now();
    this.#canvas.dataset["drawn"] = "false";
    this.#chart.fit(this.#band.length);
    const ratio = window.devicePixelRatio || 1;
    const width = Math.max(Math.round(this.#chart.box.width * ratio), 1);
    const height = Math.max(Math.round(this.#chart.box.height * ratio), 1);
    const frame = { width, height, ...columns(this.#scale, from, to, width, recording.entries), ...this.#bounds(recording) };
    this.#wanted = { recording, from, to, axis: this.#axis(recording), frame };
    this.#pictures.draw(this.#wanted);
    this.#paint();
  }

  #drawn({ view }: Drawn): void {
    if (view === this.#wanted && this.#asked !== null) {
      pictureTook(performance.now() - this.#asked);
      this.#asked = null;
    }
    this.#paint();
  }

  /** The bytes that the height covers; worked out once for each view. */
  #bounds(recording: Recording): Bounds {
    const { from, to } = this.#state;
    const key = `${recording.info.id} ${recording.info.version} ${from} ${to} ${this.#fit}`;
    if (this.#known?.key !== key) {
      this.#known = { key, bounds: heights(recording, { from, to }, this.#fit) };
    }
    return this.#known.bounds;
  }

  /** The axis that was asked for, if the recording has it. */
  #axis(recording: Recording): Axis {
    return recording.head.timed ? this.#state.axis : "entries";
  }

  #scene(recording: Recording): Scene {
    const { from, to, moment, chosen } = this.#state;
    return {
      recording, scale: this.#scale, axis: this.#axis(recording), from, to, moment, chosen,
      ...this.#bounds(recording), drawn: this.#pictures.last, marked: this.#marked, band: this.#band,
    };
  }

  #frame(): void {
    const { recording, colourBy, depth, moment, from, to, chosen, lit } = this.#state;
    if (recording === null || this.#canvas.clientWidth === 0) return;
    const started = performance.now();
    this.#chart.fit(this.#band.length);
    this.#chart.paint(this.#scene(recording));
    this.#overview.paint(recording, this.#scale, from, to, moment);
    this.#legend.show(recording, colourBy, depth, this.#pointed?.moment ?? moment);
    this.#legend.mark(marksOf(recording, chosen >= 0, lit !== null));
    frameTook(performance.now() - started);
    // Whoever waits for the picture looks here.
    this.#canvas.dataset["drawn"] = String(this.#pictures.last?.view === this.#wanted);
  }

  #look(from: number, to: number): void {
    const { recording } = this.#state;
    if (recording !== null) this.#app.store.set(within({ from, to }, recording.entries));
  }

  #pan(part: number): void {
    const { recording, from, to } = this.#state;
    if (recording !== null) this.#app.store.set(panned({ from, to }, part, this.#scale, recording.entries));
  }

  #zoom(factor: number, at: number): void {
    const { recording, from, to } = this.#state;
    if (recording !== null) this.#app.store.set(zoomed({ from, to }, factor, at, this.#scale, recording.entries));
  }

  #whole(): void {
    const { recording } = this.#state;
    if (recording !== null) this.#app.store.set({ from: 0, to: recording.entries + 1 });
  }

  #setFit(fit: boolean): void {
    this.#fit = fit;
    this.#app.address.changed();
    this.#tools();
    this.#view();
  }

  #setScrub(scrub: boolean): void {
    this.#scrub = scrub;
    this.#tools();
    this.#canvas.classList.toggle("scrubbing", scrub);
  }

  #tools(): void {
    const { axis, colourBy, depth, recording } = this.#state;
    const stacked = recording !== null && isStacked(recording);
    this.#toolbar.show({ axis, by: colourBy, depth, timed: recording?.head.timed ?? false, isStacked: stacked, isFit: this.#fit, isScrub: this.#scrub });
  }

  /** The part of the width at which a pixel lies. */
  #part(x: number): number {
    const { left, width } = this.#chart.box;
    return Math.min(Math.max((x - left) / width, 0), 1);
  }

  /** The moment at a pixel: that of the picture's column where there is one, since that is what one sees. */
  #momentAt(x: number): number {
    const { recording, from, to } = this.#state;
    if (recording === null) return 0;
    const column = this.#columnAt(x);
    if (column !== null) return column.moment;
    const start = this.#scale.place(from);
    const place = start + this.#part(x) * (this.#scale.place(to) - start);
    return Math.min(Math.max(Math.floor(this.#scale.moment(place)), 0), recording.entries);
  }

  #columnAt(x: number): { column: number; moment: number } | null {
    const { recording } = this.#state;
    const drawn = this.#pictures.last;
    if (drawn === null || recording === null || drawn.view.recording !== recording) return null;
    const scene = this.#scene(recording);
    const left = this.#chart.x(scene, drawn.view.from);
    const right = this.#chart.x(scene, drawn.view.to);
    const column = Math.floor(((x - left) / (right - left)) * drawn.picture.width);
    if (column < 0 || column >= drawn.picture.width) return null;
    return { column, moment: drawn.picture.moments[column] };
  }

  /** What a pixel shows: a row, or -1. */
  #rowAt(x: number, y: number): number {
    const { recording } = this.#state;
    const at = this.#columnAt(x);
    const drawn = this.#pictures.last;
    if (recording === null || at === null || drawn === null) return -1;
    const scene = this.#scene(recording);
    const top = this.#chart.y(scene, drawn.view.frame.high);
    const bottom = this.#chart.y(scene, drawn.view.frame.low);
    const line = Math.floor(((bottom - y) / (bottom - top)) * drawn.picture.height);
    if (line < 0 || line >= drawn.picture.height) return -1;
    return drawn.picture.rows[at.column * drawn.picture.height + line] - 1;
  }

  /** Where a row's upper edge lies in the column at `x`; the middle if it is too thin to be seen. */
  #topOf(row: number, x: number): number {
    const { top, height } = this.#chart.box;
    const at = this.#columnAt(x);
    const drawn = this.#pictures.last;
    if (at === null || drawn === null) return top + height / 2;
    const start = at.column * drawn.picture.height;
    const line = drawn.picture.rows.subarray(start, start + drawn.picture.height).lastIndexOf(row + 1);
    return line < 0 ? top + height / 2 : top + height * (1 - (line + 1) / drawn.picture.height);
  }

  #tell(x: number, y: number, row: number, moment: number): void {
    const { recording } = this.#state;
    if (recording === null) return;
    const scene = this.#scene(recording);
    const failed = recording.head.ooms.find(({ entry }) => Math.abs(this.#chart.x(scene, entry + 0.5) - x) < 4);
    if (row >= 0) {
      this.#tooltip.show(x, y, [
        bytes(recording.allocations.size[row]), purposeOf(recording, row), lineOf(recording, row), `live for ${lifeOf(recording, row)}`,
      ]);
    } else if (failed !== undefined) {
      const free = failed.free === null ? "" : `, ${bytes(failed.free)} free on the device`;
      this.#tooltip.show(x, y, ["Out of memory", `${bytes(failed.requested)} asked for${free}`]);
    } else {
      this.#tooltip.show(x, y, [
        `${bytes(recording.allocated[moment])} allocated`, `${bytes(recording.reserved[moment])} reserved`, momentText(recording, moment),
      ]);
    }
  }

  /** The whole name of a phase, of which the band may show a part. */
  #tellPhase(x: number, y: number): void {
    const { recording } = this.#state;
    if (recording === null) return;
    const phase = this.#chart.phaseAt(this.#scene(recording), x, y);
    if (phase === null) return;
    const { name, begin, end } = phase;
    this.#tooltip.show(x, y + 40, [name, `entries ${count(begin)} to ${count(Math.max(end - 1, begin))}`]);
  }

  /** After a key: what is pointed at is told where it is now, if it is still to be seen. */
  #follow(): void {
    const { recording, from, to } = this.#state;
    const pointed = this.#pointed;
    if (recording === null || pointed === null) return;
    if (pointed.moment < from || pointed.moment >= to) {
      this.#pointed = null;
      this.#tooltip.hide();
      return;
    }
    const x = this.#chart.x(this.#scene(recording), pointed.moment + 0.5);
    const { top, height } = this.#chart.box;
    this.#tell(x, pointed.row < 0 ? top + height / 2 : this.#topOf(pointed.row, x), pointed.row, pointed.moment);
  }

  #gestures(): void {
    const { store } = this.#app;
    const clear = () => {
      this.#pointed = null;
      this.#tooltip.hide();
      this.#paint();
    };
    listen(this.#canvas, {
      pan: (pixels) => {
        this.#tooltip.hide();
        this.#pan(-pixels / this.#chart.box.width);
      },
      zoom: (factor, x) => {
        this.#tooltip.hide();
        this.#zoom(factor, this.#part(x));
      },
      mark: (range) => {
        this.#marked = range;
        this.#tooltip.hide();
        this.#paint();
      },
      zoomInto: (left, right) => {
        const { from, to } = this.#state;
        const start = this.#scale.place(from);
        const width = this.#scale.place(to) - start;
        this.#look(this.#scale.moment(start + this.#part(left) * width), this.#scale.moment(start + this.#part(right) * width));
      },
      whole: () => this.#whole(),
      point: (x, y) => {
        const { left, width, top, height } = this.#chart.box;
        if (x < left || x > left + width || y < top || y > top + height) {
          clear();
          if (y < top) this.#tellPhase(x, y);
          return;
        }
        const moment = this.#momentAt(x);
        const row = this.#rowAt(x, y);
        this.#pointed = { row, moment };
        this.#byKey = false;
        this.#tell(x, y, row, moment);
        this.#canvas.style.cursor = row >= 0 ? "pointer" : "";
        this.#paint();
      },
      leave: clear,
      click: (x, y) => {
        const row = this.#rowAt(x, y);
        store.set({ chosen: row, moment: this.#momentAt(x) });
      },
      scrub: (x) => {
        this.#tooltip.hide();
        this.#pointed = null;
        store.set({ moment: this.#momentAt(x) });
      },
      isScrubbing: (x, y) => {
        const { recording, moment } = this.#state;
        const isDot = recording !== null && y < this.#chart.box.top + 2 && Math.abs(this.#chart.x(this.#scene(recording), moment + 0.5) - x) <= NEAR;
        return this.#scrub || isDot;
      },
    });
  }

  /** Points at the allocation before or after, among those that are live at the moment. */
  #step(step: 1 | -1): void {
    const { recording, moment, chosen, shown } = this.#state;
    if (recording === null) return;
    const here = this.#pointed !== null && this.#pointed.row >= 0 ? this.#pointed.row : chosen;
    const row = beside(recording, here, moment, step, shown);
    if (row < 0) {
      this.#said.textContent = step > 0 ? "This was the last" : "This was the first";
      return;
    }
    this.#pointed = { row, moment };
    this.#byKey = true;
    this.#said.textContent = sentence(recording, row);
    const x = this.#chart.x(this.#scene(recording), moment + 0.5);
    this.#tell(x, this.#topOf(row, x), row, moment);
    this.#paint();
  }

  /** Moves the moment, and the view after it. */
  #moveMoment(moment: number): void {
    const { recording, from, to } = this.#state;
    if (recording === null) return;
    const next = Math.min(Math.max(moment, 0), recording.entries);
    const half = (to - from) / 2;
    const isOut = next < from || next >= to;
    const row = this.#pointed !== null && this.#pointed.row >= 0 && isLive(recording, this.#pointed.row, next) ? this.#pointed.row : -1;
    this.#pointed = { row, moment: next };
    this.#byKey = true;
    this.#app.store.set({ moment: next, ...(isOut ? within({ from: next - half, to: next + half }, recording.entries) : {}) });
    this.#said.textContent = `${momentText(recording, next)}: ${bytes(recording.allocated[next])} allocated, ${bytes(recording.reserved[next])} reserved`;
  }

  /** The next iteration in a direction, or a hundredth of the recording. */
  #leap(step: 1 | -1): number {
    const { recording, moment } = this.#state;
    if (recording === null) return 0;
    const { iterations } = recording.head;
    const next = step > 0 ? iterations.find((it) => it > moment) : iterations.findLast((it) => it < moment);
    return next ?? moment + step * Math.ceil(recording.entries / 100);
  }

  #key(event: KeyboardEvent): boolean {
    const { recording, moment, chosen } = this.#state;
    if (recording === null || event.ctrlKey || event.metaKey || event.altKey) return false;
    const actions: Record<string, () => void> = {
      ArrowLeft: () => (event.shiftKey ? this.#moveMoment(this.#leap(-1)) : this.#pan(-STEP)),
      ArrowRight: () => (event.shiftKey ? this.#moveMoment(this.#leap(1)) : this.#pan(STEP)),
      "+": () => this.#zoom(0.5, 0.5),
      "=": () => this.#zoom(0.5, 0.5),
      "-": () => this.#zoom(2, 0.5),
      "0": () => this.#whole(),
      Home: () => this.#whole(),
      f: () => this.#setFit(!this.#fit),
      "[": () => this.#step(-1),
      "]": () => this.#step(1),
      ",": () => this.#moveMoment(moment - 1),
      ".": () => this.#moveMoment(moment + 1),
      "<": () => this.#moveMoment(this.#leap(-1)),
      ">": () => this.#moveMoment(this.#leap(1)),
      p: () => this.#moveMoment(recording.head.peak.allocatedAt),
      Enter: () => {
        if (this.#pointed !== null && this.#pointed.row >= 0) {
          const { row } = this.#pointed;
          this.#app.store.set({ chosen: row, moment: momentOf(recording, row, moment) });
        }
      },
      Escape: () => {
        this.#pointed = null;
        this.#tooltip.hide();
        if (chosen >= 0) this.#app.store.set({ chosen: -1 });
        else this.#paint();
      },
      "?": () => this.#help.showModal(),
      "/": () => document.querySelector<HTMLInputElement>("#filter input[type=search]")?.focus(),
    };
    const action = actions[event.key];
    action?.();
    if (action !== undefined) this.#follow();
    return action !== undefined;
  }
}

export function mountTimeline(element: HTMLElement, app: App): void {
  new Timeline(element, app);
}
