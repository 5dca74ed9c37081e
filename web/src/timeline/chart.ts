// The timeline's canvas: the last picture, and what lies over it.
//
// In:  the view, the last picture, the recording's marks. Out: pixels on the canvas.
//
// The picture may have been drawn for another view: it is moved and scaled to where it belongs, until the next one is there.
import { FONT, contextOf, fitCanvas } from "../canvas.ts";
import { bytes, count, duration } from "../format.ts";
import { css } from "../palette.ts";
import type { Recording } from "../recording.ts";
import type { Axis } from "../store.ts";
import type { Span } from "./phases.ts";
import type { Drawn } from "./pictures.ts";
import type { Scale } from "./scale.ts";
import { byteTick, ticks } from "./ticks.ts";

/** The inner part of the canvas, in CSS pixels. */
export interface Box {
  left: number;
  top: number;
  width: number;
  height: number;
}

export interface Scene {
  recording: Recording;
  scale: Scale;
  axis: Axis;
  from: number;
  to: number;
  low: number;
  high: number;
  drawn: Drawn | null;
  moment: number;
  /** The chosen row, or -1. */
  chosen: number;
  /** Places of a range that is being marked. */
  marked: [number, number] | null;
  /** Phases, by lane. */
  band: Span[][];
}

/** A lane of phases above the picture. */
const LANE = 18;
const AXIS = 36;

/** The height of the axis' title above the picture, where phases leave no room for it. */
const TITLE = 16;

/** Lines closer than this, in pixels, say nothing. */
const CLOSEST = 7;

/** A phase is named if it has so many pixels. */
const NAMED = 24;

/** As much of a name as there is room for, with a sign that something is missing. */
export function shortened(name: string, room: number, measure: (text: string) => number): string {
  if (measure(name) <= room) return name;
  let [low, high] = [0, name.length - 1];
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (measure(`${name.slice(0, middle)}…`) <= room) low = middle;
    else high = middle - 1;
  }
  return low === 0 ? "" : `${name.slice(0, low)}…`;
}

const Y_TITLE = "Bytes: live allocations, oldest at the bottom";

function xTitle(axis: Axis): string {
  return axis === "time" ? "Time since the first entry" : "Entries of the history";
}

export class Chart {
  readonly canvas: HTMLCanvasElement;
  box: Box = { left: 0, top: 0, width: 1, height: 1 };

  constructor(canvas: HTMLCanvasElement) {
    this.canvas = canvas;
  }

  /** Takes the size that the page gives. */
  fit(lanes: number): void {
    fitCanvas(this.canvas);
    const { clientWidth, clientHeight } = this.canvas;
    const left = clientWidth < 500 ? 56 : 72;
    const width = Math.max(clientWidth - left - 8, 1);
    const top = TITLE + Math.max(lanes, 1) * LANE + 3;
    this.box = { left, top, width, height: Math.max(clientHeight - top - AXIS, 1) };
  }

  laneTop(lane: number): number {
    return TITLE + lane * LANE + 1;
  }

  /** The phase at a place above the picture, if there is one. */
  phaseAt(scene: Scene, x: number, y: number): Span | null {
    const lane = Math.floor((y - TITLE - 1) / LANE);
    const spans = lane < 0 ? undefined : scene.band[lane];
    // Of several that share a pixel, the longest.
    let found: Span | null = null;
    for (const span of spans ?? []) {
      const isHere = this.x(scene, span.begin) <= x + 0.5 && x - 0.5 < this.x(scene, span.end);
      if (isHere && (found === null || span.end - span.begin > found.end - found.begin)) found = span;
    }
    return found;
  }

  /** Where a moment lies. */
  x({ scale, from, to }: Scene, moment: number): number {
    const start = scale.place(from);
    return this.box.left + ((scale.place(moment) - start) / (scale.place(to) - start)) * this.box.width;
  }

  y({ low, high }: Scene, value: number): number {
    return this.box.top + this.box.height * (1 - (value - low) / (high - low));
  }

  paint(scene: Scene): void {
    const context = contextOf(this.canvas);
    const { left, top, width, height } = this.box;
    context.clearRect(0, 0, this.canvas.clientWidth, this.canvas.clientHeight);
    context.font = FONT;
    this.#grid(context, scene);
    context.save();
    context.beginPath();
    context.rect(left, top, width, height);
    context.clip();
    this.#picture(context, scene);
    this.#iterations(context, scene);
    this.#limit(context, scene);
    this.#chosen(context, scene);
    this.#marked(context, scene);
    context.restore();
    this.#phases(context, scene);
    this.#ooms(context, scene);
    this.#moment(context, scene);
  }

  #grid(context: CanvasRenderingContext2D, scene: Scene): void {
    const { left, top, width, height } = this.box;
    context.fillStyle = css("--muted");
    context.strokeStyle = css("--line");
    context.lineWidth = 1;
    context.textAlign = "right";
    context.textBaseline = "middle";
    for (const value of ticks(scene.low, scene.high, Math.max(height / 44, 2), true)) {
      const y = Math.round(this.y(scene, value)) + 0.5;
      context.beginPath();
      context.moveTo(left, y);
      context.lineTo(left + width, y);
      context.stroke();
      context.fillText(byteTick(value), left - 6, Math.max(y, top + 6));
    }
    context.textAlign = "center";
    context.textBaseline = "top";
    const start = scene.scale.place(scene.from);
    const end = scene.scale.place(scene.to);
    // Entry e, numbered from 0 as the command does, ends moment e and begins moment e + 1.
    const shift = scene.axis === "time" ? 0 : 1;
    const label = scene.axis === "time" ? duration : count;
    for (const mark of ticks(start - shift, end - shift, Math.max(width / 110, 2))) {
      if (scene.axis === "entries" && (!Number.isInteger(mark) || mark < 0)) continue;
      const place = mark + shift;
      const x = left + ((place - start) / (end - start)) * width;
      context.fillText(label(mark), Math.min(Math.max(x, left + 14), left + width - 24), top + height + 5);
      context.fillRect(Math.round(x), top + height, 1, 3);
    }
    this.#titles(context, scene);
  }

  /** What the axes count. */
  #titles(context: CanvasRenderingContext2D, scene: Scene): void {
    const { left, top, width, height } = this.box;
    context.fillStyle = css("--muted");
    context.textBaseline = "top";
    context.textAlign = "left";
    context.fillText(Y_TITLE, 0, 1);
    context.textAlign = "right";
    context.fillText(xTitle(scene.axis), left + width, top + height + 20);
  }

  #picture(context: CanvasRenderingContext2D, scene: Scene): void {
    const { drawn } = scene;
    if (drawn === null || drawn.view.axis !== scene.axis) return;
    const { from, to, frame } = drawn.view;
    const left = this.x(scene, from);
    const right = this.x(scene, to);
    const top = this.y(scene, frame.high);
    const bottom = this.y(scene, frame.low);
    context.imageSmoothingEnabled = false;
    context.drawImage(drawn.bitmap, left, top, right - left, bottom - top);
    const { reserved } = drawn.picture;
    const step = (right - left) / reserved.length;
    context.strokeStyle = css("--reserved");
    context.lineWidth = 1.25;
    context.beginPath();
    let y = NaN;
    for (let x = 0; x < reserved.length; x++) {
      // A step at each change: reserved memory comes and goes in whole segments.
      const next = this.y(scene, reserved[x]);
      if (next === y && x + 1 < reserved.length) continue;
      if (x > 0) context.lineTo(left + x * step, y);
      context.lineTo(left + x * step, next);
      y = next;
    }
    context.lineTo(right, y);
    context.stroke();
  }

  #iterations(context: CanvasRenderingContext2D, scene: Scene): void {
    const { iterations } = scene.recording.head;
    const inside = iterations.filter((it) => it >= scene.from && it <= scene.to);
    const { top, height, width } = this.box;
    if (inside.length === 0 || width / inside.length < CLOSEST) return;
    context.strokeStyle = css("--iteration");
    context.lineWidth = 1;
    context.setLineDash([2, 3]);
    context.beginPath();
    for (const moment of inside) {
      const x = Math.round(this.x(scene, moment)) + 0.5;
      context.moveTo(x, top);
      context.lineTo(x, top + height);
    }
    context.stroke();
    context.setLineDash([]);
  }

  #phases(context: CanvasRenderingContext2D, scene: Scene): void {
    context.textAlign = "left";
    context.textBaseline = "middle";
    scene.band.forEach((spans, lane) => {
      const top = this.laneTop(lane);
      let last = -Infinity;
      for (const { name, short, begin, end } of spans) {
        if (end <= scene.from || begin >= scene.to) continue;
        const left = Math.max(this.x(scene, begin), this.box.left);
        const right = Math.min(this.x(scene, end), this.box.left + this.box.width);
        // Whatever would only cover its neighbour's pixel is left out.
        if (right - last < 1) continue;
        last = right;
        context.fillStyle = css("--panel");
        context.fillRect(left, top, Math.max(right - left - 1, 1), LANE - 2);
        if (right - left > NAMED) this.#name(context, name, short, left + 5, right - 5, top + LANE / 2);
      }
    });
  }

  /** A name, as much of it as there is room for. */
  #name(context: CanvasRenderingContext2D, name: string, short: string | undefined, left: number, right: number, y: number): void {
    const measure = (text: string) => context.measureText(text).width;
    const said = short !== undefined && measure(name) > right - left ? short : name;
    context.save();
    context.beginPath();
    context.rect(left, y - LANE / 2, right - left, LANE);
    context.clip();
    context.fillStyle = css("--text");
    context.fillText(shortened(said, right - left, measure), left, y);
    context.restore();
  }

  #limit(context: CanvasRenderingContext2D, scene: Scene): void {
    const { limit } = scene.recording.head;
    if (limit === null) return;
    const y = Math.round(this.y(scene, limit)) + 0.5;
    const { left, top, width, height } = this.box;
    if (y < top || y > top + height) return;
    context.strokeStyle = css("--failed");
    context.lineWidth = 1;
    context.setLineDash([6, 4]);
    context.beginPath();
    context.moveTo(left, y);
    context.lineTo(left + width, y);
    context.stroke();
    context.setLineDash([]);
    context.fillStyle = css("--failed");
    context.textAlign = "right";
    context.textBaseline = "top";
    context.fillText(`limit ${bytes(limit)}`, left + width - 4, y + 3);
  }

  #ooms(context: CanvasRenderingContext2D, scene: Scene): void {
    const { top, height } = this.box;
    let last = -Infinity;
    let named = -Infinity;
    for (const { entry, requested } of scene.recording.head.ooms) {
      if (entry + 1 < scene.from || entry > scene.to) continue;
      const x = this.x(scene, Math.min(entry + 0.5, scene.to));
      if (x - last < 1) continue;
      last = x;
      named = this.#failure(context, x, named, `out of memory: ${bytes(requested)} asked for`);
      context.fillStyle = css("--failed");
      context.fillRect(x - 0.75, top, 1.5, height);
      context.beginPath();
      context.moveTo(x - 5, top);
      context.lineTo(x + 5, top);
      context.lineTo(x, top + 8);
      context.fill();
    }
  }

  /** The name of a failed request beside its line, unless it would cover the one before, which ends at `named`. */
  #failure(context: CanvasRenderingContext2D, x: number, named: number, text: string): number {
    const { left, top, width } = this.box;
    const wide = context.measureText(text).width + 12;
    const start = x + 8 + wide > left + width ? x - 8 - wide : x + 8;
    if (start < Math.max(named, left)) return named;
    context.fillStyle = css("--back");
    context.fillRect(start, top + 3, wide, 18);
    context.fillStyle = css("--failed");
    context.textAlign = "left";
    context.textBaseline = "middle";
    context.fillText(text, start + 6, top + 12);
    return Math.max(start + wide, x);
  }

  /** The life of what is chosen, along the axis: seen even where it is thinner than a pixel. */
  #chosen(context: CanvasRenderingContext2D, scene: Scene): void {
    const { chosen, recording } = scene;
    if (chosen < 0) return;
    const left = this.x(scene, recording.allocations.begin[chosen]);
    const right = this.x(scene, Math.min(recording.allocations.end[chosen], recording.entries + 1));
    const bottom = this.box.top + this.box.height;
    context.fillStyle = css("--chosen");
    context.fillRect(left, bottom - 3, Math.max(right - left, 2), 3);
  }

  #moment(context: CanvasRenderingContext2D, scene: Scene): void {
    const x = this.x(scene, scene.moment + 0.5);
    const { left, width, top, height } = this.box;
    if (x < left - 1 || x > left + width + 1) return;
    context.fillStyle = css("--mark");
    context.fillRect(x - 0.75, top - 2, 1.5, height + 2);
    context.beginPath();
    context.arc(x, top - 5, 4.5, 0, Math.PI * 2);
    context.fill();
  }

  #marked(context: CanvasRenderingContext2D, scene: Scene): void {
    if (scene.marked === null) return;
    const [one, other] = scene.marked;
    context.fillStyle = css("--mark");
    context.globalAlpha = 0.18;
    context.fillRect(Math.min(one, other), this.box.top, Math.abs(other - one), this.box.height);
    context.globalAlpha = 1;
  }
}
