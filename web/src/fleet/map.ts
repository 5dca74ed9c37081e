// The heat map's canvases. In: a scene. Out: pixels, and which cell lies under a place.
//
// Cells are on one canvas, which is drawn again when someone scrolls, comes closer or sorts, and then only as far as they can
// be seen; what the pointer and the keys move lies on another above it.
import { FONT, contextOf, fitCanvas, onceAFrame } from "../canvas.ts";
import { h } from "../dom.ts";
import { css, mix, onScheme, pixel } from "../palette.ts";
import { shortened } from "../timeline/chart.ts";
import { frameTook } from "../timeline/measure.ts";
import { type Grid } from "./grid.ts";
import { MARKS } from "./marks.ts";
import type { Order } from "./order.ts";
import { type Columns, HOT, LEVELS, NONE, across, covered, pooled, shownAt } from "./raster.ts";

export interface Scene {
  grid: Grid;
  order: Order;
  /** The level of each cell, by row, */
  levels: Uint8Array;
  /** and the mark of each row. */
  marks: Uint8Array;
  /** What rows are called beside the map. */
  label: (row: number) => string;
  /** The cell that the keys are at. */
  cursor: Cell | null;
  /** Rows that are to be compared. */
  chosen: number[];
}

export interface Cell {
  row: number;
  column: number;
}

export interface Wishes {
  point(cell: Cell | null, x: number, y: number): void;
  choose(cell: Cell, shift: boolean): void;
}

/** The height of a rank that one can hit, and the least that a rank is shown with beside others when one comes closer. */
const TALLEST = 22;
/** From this height on every rank has its label. */
const LABELLED = 11;
const AXIS = 34;
const TITLE = 18;
const STRIP = 12;
const PEAK = 34;
const GAP = 6;
/** Labels stand no closer than this. */
const CLOSEST = 15;
/** Lines between cells stand no closer than this. */
const PARTED = 6;

/** Places of the map, in CSS pixels. */
interface Box {
  left: number;
  width: number;
  height: number;
  /** Where the peaks and the steps begin. */
  peak: number;
  peakWidth: number;
  steps: number;
  stepsWidth: number;
}

export class RankMap {
  readonly element: HTMLElement;
  readonly canvas: HTMLCanvasElement;
  readonly #over = h("canvas", { class: "over", "aria-hidden": "true" });
  readonly #sticky: HTMLElement;
  readonly #room: HTMLElement;
  readonly #wishes: Wishes;
  #scene: Scene | null = null;
  /** CSS pixels of a rank, if someone asked for it; else all of them are shown. */
  #asked: number | null = null;
  #pointed: Cell | null = null;
  #picture = document.createElement("canvas");
  #draw = onceAFrame(() => this.#paint());
  #drawOver = onceAFrame(() => this.#paintOver());

  constructor(wishes: Wishes) {
    this.#wishes = wishes;
    this.canvas = h("canvas", {
      class: "ranks", tabindex: 0, role: "application", "aria-label": "All ranks, by step", "aria-describedby": "fleet-said fleet-keys",
    });
    this.#sticky = h("div", { class: "ranks-sticky" }, this.canvas, this.#over);
    this.#room = h("div", { class: "ranks-room" }, this.#sticky);
    this.element = h("div", { class: "ranks-scroll" }, this.#room);
    this.element.addEventListener("scroll", () => {
      this.#draw();
      this.#drawOver();
    });
    this.#listen();
    new ResizeObserver(() => this.#fit()).observe(this.element);
    onScheme(() => {
      this.#draw();
      this.#drawOver();
    });
  }

  show(scene: Scene): void {
    const before = this.#scene;
    this.#scene = scene;
    if (before?.order.rows.length !== scene.order.rows.length) this.#fit();
    this.#pointed = null;
    this.#draw();
    this.#drawOver();
  }

  /** Moves what lies above the cells. */
  move(change: Pick<Scene, "cursor" | "chosen">): void {
    if (this.#scene === null) return;
    Object.assign(this.#scene, change);
    this.#drawOver();
  }

  /** CSS pixels of a rank. */
  get rowHeight(): number {
    const rows = this.#scene?.order.rows.length ?? 1;
    return Math.max(this.#asked ?? 0, Math.min(this.#inner() / Math.max(rows, 1), TALLEST));
  }

  /** Comes closer around a height of the canvas, or goes away; null shows all. */
  zoom(factor: number | null, y = this.#inner() / 2): void {
    const before = this.rowHeight;
    const place = (this.element.scrollTop + y) / before;
    this.#asked = factor === null ? null : Math.min(before * factor, TALLEST);
    this.#fit();
    this.element.scrollTop = place * this.rowHeight - y;
    this.#draw();
    this.#drawOver();
  }

  /** Scrolls until a place can be seen. */
  reveal(place: number): void {
    const each = this.rowHeight;
    const [top, bottom] = [place * each, (place + 1) * each];
    if (top < this.element.scrollTop) this.element.scrollTop = top;
    else if (bottom > this.element.scrollTop + this.#inner()) this.element.scrollTop = bottom - this.#inner();
  }

  /** Ranks that a page of the map has. */
  get page(): number {
    return Math.max(Math.floor(this.#inner() / this.rowHeight) - 1, 1);
  }

  /** Pixels that the ranks have at most. */
  #inner(): number {
    return Math.max(Math.min(window.innerHeight * 0.62, 760) - AXIS - TITLE, 160);
  }

  #fit(): void {
    const rows = this.#scene?.order.rows.length ?? 0;
    const all = rows * this.rowHeight;
    const height = Math.min(this.#inner(), all) + AXIS + TITLE;
    this.element.style.height = `${height}px`;
    this.#sticky.style.height = `${height}px`;
    this.#room.style.height = `${Math.max(all + AXIS + TITLE, height)}px`;
    this.#draw();
    this.#drawOver();
  }

  #box(): Box {
    const wide = this.canvas.clientWidth;
    const narrow = wide < 500;
    const grouped = (this.#scene?.order.groups.length ?? 0) > 0;
    const left = (narrow ? 44 : 60) + (grouped ? (narrow ? 44 : 62) : 0) + STRIP;
    const width = Math.max(wide - left - 4, 1);
    const height = Math.max(this.canvas.clientHeight - AXIS - TITLE, 1);
    const steps = this.#scene?.grid.steps ?? "none";
    const peakWidth = steps === "none" ? Math.min(width, 160) : PEAK;
    const begin = left + peakWidth + GAP;
    return { left, width, height, peak: left, peakWidth, steps: begin, stepsWidth: steps === "none" ? 0 : Math.max(wide - begin - 4, 1) };
  }

  /** The places that can be seen, as pixels of the screen show them. */
  #look(box: Box): { from: number; each: number; height: number; pixels: number } {
    const ratio = window.devicePixelRatio || 1;
    const each = this.rowHeight;
    const from = this.element.scrollTop / each;
    if (each * ratio < 1) {
      const height = Math.max(Math.round(box.height * ratio), 1);
      return { from, each: 1 / (each * ratio), height, pixels: box.height };
    }
    const first = Math.floor(from);
    const rows = this.#scene?.order.rows.length ?? 0;
    const end = Math.min(Math.ceil(from + box.height / each), rows);
    return { from: first, each: 1, height: Math.max(end - first, 0), pixels: (end - first) * each };
  }

  #paint(): void {
    const scene = this.#scene;
    if (scene === null || this.canvas.clientWidth === 0) return;
    const began = performance.now();
    fitCanvas(this.canvas);
    const context = contextOf(this.canvas);
    const box = this.#box();
    context.clearRect(0, 0, this.canvas.clientWidth, this.canvas.clientHeight);
    context.font = FONT;
    context.save();
    context.beginPath();
    context.rect(0, TITLE, this.canvas.clientWidth, box.height);
    context.clip();
    this.#cells(context, scene, box);
    this.#rows(context, scene, box);
    context.restore();
    this.#axis(context, scene, box);
    // For whoever waits for it, as tests do.
    this.canvas.dataset["drawn"] = String(Number(this.canvas.dataset["drawn"] ?? 0) + 1);
    frameTook(performance.now() - began);
  }

  #cells(context: CanvasRenderingContext2D, { grid, order, levels, marks }: Scene, box: Box): void {
    const look = this.#look(box);
    if (look.height === 0) return;
    const columns = grid.columns.length;
    const top = TITLE + (look.from - this.element.scrollTop / this.rowHeight) * this.rowHeight;
    const colours = ramp();
    context.imageSmoothingEnabled = false;
    const draw = (pixels: Uint8Array, lookup: Uint32Array, width: number, x: number, wide: number) => {
      this.#picture.width = width;
      this.#picture.height = look.height;
      const inner = this.#picture.getContext("2d");
      if (inner === null) return;
      const image = new ImageData(width, look.height);
      const out = new Uint32Array(image.data.buffer);
      for (let at = 0; at < out.length; at++) out[at] = lookup[pixels[at]];
      inner.putImageData(image, 0, 0);
      context.drawImage(this.#picture, x, top, wide, look.pixels);
    };
    draw(pooled(levels, columns, [0, 1], order.rows, look, 1), colours, 1, box.peak, box.peakWidth);
    if (columns > 1) {
      const width = stepPixels(box, columns);
      draw(pooled(levels, columns, [1, columns], order.rows, look, width), colours, width, box.steps, box.stepsWidth);
    }
    // Where ranks have no room for a sign, a colour stands for it.
    if (this.rowHeight < LABELLED) {
      const signs = Uint32Array.from(MARKS, ({ colour }) => pixel(css(colour)));
      draw(pooled(marks, 1, [0, 1], order.rows, look, 1), signs, 1, box.left - STRIP + 2, STRIP - 5);
    }
  }

  /** Labels of ranks and groups, and signs of what ranks are marked for. */
  #rows(context: CanvasRenderingContext2D, { order, label, marks }: Scene, box: Box): void {
    const each = this.rowHeight;
    const scroll = this.element.scrollTop;
    const y = (place: number) => TITLE + place * each - scroll;
    const first = Math.floor(scroll / each);
    const end = Math.min(Math.ceil((scroll + box.height) / each), order.rows.length);
    const grouped = order.groups.length > 0;
    const right = box.left - STRIP - 2;
    const every = Math.max(niceStep(CLOSEST / each), 1);
    context.textBaseline = "middle";
    context.textAlign = "right";
    for (let place = Math.ceil(first / every) * every; place < end; place += every) {
      const middle = y(place) + Math.min(each, CLOSEST) / 2;
      const at = place === 0 ? Math.max(middle, TITLE + 6 - scroll) : middle;
      if (at > TITLE + box.height - 4 || at < TITLE + 4) continue;
      context.fillStyle = css("--muted");
      const room = box.left - STRIP - 6 - (grouped ? (box.left > 100 ? 62 : 44) : 0);
      context.fillText(shortened(label(order.rows[place]), room, (text) => context.measureText(text).width), right, at);
      if (each >= LABELLED) {
        const mark = MARKS[marks[order.rows[place]]];
        context.fillStyle = css(mark.colour);
        context.textAlign = "center";
        context.fillText(mark.sign, box.left - STRIP / 2, at);
        context.textAlign = "right";
      }
    }
    context.textAlign = "left";
    let [last, before] = [-Infinity, 0];
    for (const group of order.groups) {
      const [begin, over] = [y(group.from), y(group.to)];
      // Between groups of a few pixels lines would hide the cells.
      const parts = Math.max(over - begin, before) >= PARTED;
      before = over - begin;
      if (over < TITLE || begin > TITLE + box.height) continue;
      context.fillStyle = css("--text");
      if (parts && group.from > 0 && begin > TITLE) context.fillRect(0, Math.round(begin), this.canvas.clientWidth, 1);
      const at = Math.max(begin, TITLE) + 8;
      if (at - last >= 13 && over - begin >= 9) {
        context.fillText(shortened(group.label, box.left > 100 ? 60 : 42, (text) => context.measureText(text).width), 3, at);
        last = at;
      }
    }
  }

  /** Numbers of steps below, and what rows and columns are above. */
  #axis(context: CanvasRenderingContext2D, { grid, order }: Scene, box: Box): void {
    const columns = grid.columns.length - 1;
    const below = TITLE + box.height;
    context.fillStyle = css("--muted");
    context.textBaseline = "top";
    context.textAlign = "left";
    context.fillText(order.groups.length > 0 ? "group" : "", 3, 3);
    context.textAlign = "right";
    context.fillText("rank", box.left - STRIP - 2, 3);
    context.textAlign = "center";
    context.fillText("peak", box.peak + box.peakWidth / 2, below + 5);
    if (columns === 0) return;
    const each = box.stepsWidth / columns;
    const every = Math.max(niceStep(44 / each), 1);
    const gaps = gapsOf(grid);
    // Where numbers are hardly ever neighbours, nothing is left out, and lines would hide the cells.
    const parts = gaps.size * PARTED <= box.stepsWidth;
    let last = -Infinity;
    for (let column = 1; column <= columns; column++) {
      const x = box.steps + (column - 0.5) * each;
      const gap = parts && gaps.has(column);
      if (gap) context.fillRect(Math.round(x - each / 2), TITLE, 1, box.height + 4);
      if (((column - 1) % every === 0 || gap) && x - last >= 40 && x < this.canvas.clientWidth - 12) {
        const text = String(grid.columns[column] ?? 0);
        context.fillText(text, x, below + 5);
        // A number of twenty digits is a stranger's.
        last = x + Math.max(context.measureText(text).width - 32, 0);
      }
    }
    context.textAlign = "left";
    context.fillText(grid.steps === "snapshots" ? "step of the snapshot" : "iteration of the recording", box.steps, below + 19);
  }

  #paintOver(): void {
    const scene = this.#scene;
    if (scene === null || this.canvas.clientWidth === 0) return;
    const began = performance.now();
    fitCanvas(this.#over);
    const context = contextOf(this.#over);
    const box = this.#box();
    context.clearRect(0, 0, this.#over.clientWidth, this.#over.clientHeight);
    context.save();
    context.beginPath();
    context.rect(0, TITLE, this.#over.clientWidth, box.height);
    context.clip();
    for (const row of scene.chosen) this.#bar(context, scene, box, row);
    if (this.#pointed !== null) this.#frame(context, scene, box, this.#pointed, css("--text"), 1);
    if (scene.cursor !== null) this.#frame(context, scene, box, scene.cursor, css("--chosen"), 2);
    context.restore();
    frameTook(performance.now() - began);
  }

  /** A rank that is to be compared. */
  #bar(context: CanvasRenderingContext2D, { order }: Scene, box: Box, row: number): void {
    const each = this.rowHeight;
    const y = TITLE + order.place[row] * each - this.element.scrollTop;
    context.strokeStyle = css("--mark");
    context.lineWidth = 2;
    context.strokeRect(box.left - 1, y - 1, box.width + 2, Math.max(each, 2) + 2);
  }

  #frame(context: CanvasRenderingContext2D, scene: Scene, box: Box, cell: Cell, colour: string, thick: number): void {
    const { x, y, width, height } = this.#cellBox(scene, box, cell);
    const [wide, high] = [Math.max(width, 4), Math.max(height, 4)];
    context.lineWidth = thick;
    // Whatever colour is below, one of two lines is seen.
    context.strokeStyle = css("--back");
    context.strokeRect(x + width / 2 - wide / 2 - thick, y + height / 2 - high / 2 - thick, wide + 2 * thick, high + 2 * thick);
    context.strokeStyle = colour;
    context.strokeRect(x + width / 2 - wide / 2, y + height / 2 - high / 2, wide, high);
  }

  #cellBox({ grid, order }: Scene, box: Box, { row, column }: Cell): { x: number; y: number; width: number; height: number } {
    const height = this.rowHeight;
    const y = TITLE + order.place[row] * height - this.element.scrollTop;
    if (column === 0) return { x: box.peak, y, width: box.peakWidth, height };
    const width = box.stepsWidth / (grid.columns.length - 1);
    return { x: box.steps + (column - 1) * width, y, width, height };
  }

  /** Where a cell's middle is, from the corner of the canvas. */
  middle(cell: Cell): { x: number; y: number } {
    if (this.#scene === null) return { x: 0, y: 0 };
    const { x, y, width, height } = this.#cellBox(this.#scene, this.#box(), cell);
    return { x: x + width / 2, y: y + height / 2 };
  }

  /** The cell at a place: where several share a pixel, the one that it shows. */
  at(x: number, y: number): Cell | null {
    const scene = this.#scene;
    if (scene === null) return null;
    const box = this.#box();
    const { grid, order, levels } = scene;
    const down = y - TITLE;
    if (x < 0 || down < 0 || down >= box.height || order.rows.length === 0) return null;
    const columns = grid.columns.length;
    const ratio = window.devicePixelRatio || 1;
    let some: Columns = [0, 1];
    if (x >= box.steps && columns > 1) {
      const width = stepPixels(box, columns);
      const at = Math.min(Math.floor(((x - box.steps) / box.stepsWidth) * width), width - 1);
      some = across([1, columns], width, at);
    }
    const place = (this.element.scrollTop + down) / this.rowHeight;
    if (place >= order.rows.length) return null;
    const look = this.#look(box);
    const own: Columns = [Math.floor(place), Math.floor(place) + 1];
    const places = look.each > 1 ? covered(look, Math.floor(down * ratio), order.rows.length) : own;
    const [found, column] = shownAt(levels, columns, order.rows, places, some);
    return { row: order.rows[found], column };
  }

  #listen(): void {
    const place = (event: MouseEvent): [number, number] => {
      const { left, top } = this.canvas.getBoundingClientRect();
      return [event.clientX - left, event.clientY - top];
    };
    let last: [number, number] = [0, 0];
    const point = onceAFrame(() => {
      this.#pointed = this.at(...last);
      this.canvas.style.cursor = this.#pointed === null ? "" : "pointer";
      this.#wishes.point(this.#pointed, ...last);
      this.#paintOver();
    });
    this.canvas.addEventListener("pointermove", (event) => {
      if (event.pointerType === "touch") return;
      last = place(event);
      point();
    });
    this.canvas.addEventListener("pointerleave", () => {
      last = [-1, -1];
      point();
    });
    this.canvas.addEventListener("click", (event) => {
      const cell = this.at(...place(event));
      if (cell !== null) this.#wishes.choose(cell, event.shiftKey);
    });
    // Without Ctrl the wheel scrolls, as it does everywhere.
    this.element.addEventListener(
      "wheel",
      (event) => {
        if (!event.ctrlKey) return;
        event.preventDefault();
        this.zoom(2 ** (-event.deltaY / 200), place(event)[1] - TITLE);
      },
      { passive: false },
    );
  }
}

/** Columns before which iterations are left out. */
export function gapsOf({ steps, columns }: Pick<Grid, "steps" | "columns">): Set<number> {
  const apart = (column: number) => (columns[column] ?? 0) - (columns[column - 1] ?? 0) > 1;
  return new Set(steps === "iterations" ? [...columns.keys()].slice(2).filter(apart) : []);
}

/** Pixels of the picture of steps: as many as there are steps, or as the screen has. */
function stepPixels(box: Box, columns: number): number {
  return Math.min(columns - 1, Math.max(Math.round(box.stepsWidth * (window.devicePixelRatio || 1)), 1));
}

/** A pixel for each level. */
function ramp(): Uint32Array {
  const stops = Array.from({ length: 7 }, (_, place) => pixel(css(`--size-${place}`)));
  const found = new Uint32Array(HOT + 1);
  found[NONE] = pixel(css("--free"));
  for (let level = 1; level <= LEVELS; level++) {
    const along = ((level - 1) / (LEVELS - 1)) * (stops.length - 1);
    const from = Math.min(Math.floor(along), stops.length - 2);
    found[level] = mix(stops[from + 1], stops[from], along - from);
  }
  found[HOT] = pixel(css("--failed"));
  return found;
}

/** 1, 2, 5, 10, 20, 50 …: the first that is not less. */
export function niceStep(least: number): number {
  let step = 1;
  for (let place = 0; step < least; place++) step = [1, 2, 5][place % 3] * 10 ** Math.floor(place / 3);
  return step;
}
