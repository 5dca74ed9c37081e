// The strip below the timeline: the whole recording, and which part of it is shown.
//
// In:  a recording, the visible moments. Out: a drawing, and wishes to look elsewhere.
import { contextOf, fitCanvas } from "../canvas.ts";
import { css } from "../palette.ts";
import type { Recording } from "../recording.ts";
import { type Scale, columns } from "./scale.ts";

/** Most bytes in each column. */
interface Outline {
  recording: Recording;
  scale: Scale;
  allocated: Float64Array;
  reserved: Float64Array;
}

/** An edge of the window is caught this near, in pixels. */
const NEAR = 6;

type Grip = "left" | "right" | "window";

export class Overview {
  readonly canvas: HTMLCanvasElement;
  #outline: Outline | null = null;
  #shown: { from: number; to: number } = { from: 0, to: 1 };

  constructor(canvas: HTMLCanvasElement, look: (from: number, to: number) => void) {
    this.canvas = canvas;
    this.#listen(look);
  }

  paint(recording: Recording, scale: Scale, from: number, to: number, moment: number): void {
    this.#shown = { from, to };
    fitCanvas(this.canvas);
    const { clientWidth: width, clientHeight: height } = this.canvas;
    const outline = this.#outlineOf(recording, scale, width);
    const context = contextOf(this.canvas);
    context.clearRect(0, 0, width, height);
    context.fillStyle = css("--panel");
    context.fillRect(0, 0, width, height);
    const top = Math.max(recording.head.peak.reserved, recording.head.peak.allocated, 1);
    const y = (value: number) => height - 1 - (value / top) * (height - 4);
    context.fillStyle = css("--area");
    context.beginPath();
    context.moveTo(0, height);
    outline.allocated.forEach((value, x) => context.lineTo(x + 0.5, y(value)));
    context.lineTo(width, height);
    context.fill();
    context.strokeStyle = css("--reserved");
    context.lineWidth = 1;
    context.beginPath();
    outline.reserved.forEach((value, x) => context.lineTo(x + 0.5, y(value)));
    context.stroke();
    const [left, right] = this.#window();
    context.fillStyle = css("--back");
    context.globalAlpha = 0.65;
    context.fillRect(0, 0, left, height);
    context.fillRect(right, 0, width - right, height);
    context.globalAlpha = 1;
    context.fillStyle = css("--mark");
    const at = this.#x(moment + 0.5);
    context.fillRect(at - 0.5, 0, 1, height);
    context.strokeStyle = css("--mark");
    context.lineWidth = 1.5;
    context.strokeRect(left + 0.75, 0.75, Math.max(right - left - 1.5, 1), height - 1.5);
  }

  #outlineOf(recording: Recording, scale: Scale, width: number): Outline {
    const known = this.#outline;
    if (known?.recording === recording && known.scale === scale && known.allocated.length === width) {
      return known;
    }
    const { first, last } = columns(scale, 0, recording.entries + 1, width, recording.entries);
    const most = (values: Float64Array) => {
      const out = new Float64Array(width);
      for (let x = 0; x < width; x++) {
        for (let moment = first[x]; moment <= last[x]; moment++) {
          if (values[moment] > out[x]) out[x] = values[moment];
        }
      }
      return out;
    };
    this.#outline = { recording, scale, allocated: most(recording.allocated), reserved: most(recording.reserved) };
    return this.#outline;
  }

  #x(moment: number): number {
    const outline = this.#outline;
    if (outline === null) return 0;
    const start = outline.scale.place(0);
    const end = outline.scale.place(outline.recording.entries + 1);
    return ((outline.scale.place(moment) - start) / (end - start)) * this.canvas.clientWidth;
  }

  #moment(x: number): number {
    const outline = this.#outline;
    if (outline === null) return 0;
    const start = outline.scale.place(0);
    const end = outline.scale.place(outline.recording.entries + 1);
    return outline.scale.moment(start + (x / this.canvas.clientWidth) * (end - start));
  }

  #window(): [number, number] {
    return [this.#x(this.#shown.from), this.#x(this.#shown.to)];
  }

  #grip(x: number): Grip | null {
    const [left, right] = this.#window();
    // A narrow window is moved rather than resized.
    if (right - left > 3 * NEAR) {
      if (Math.abs(x - left) <= NEAR) return "left";
      if (Math.abs(x - right) <= NEAR) return "right";
    }
    return x >= left - NEAR && x <= right + NEAR ? "window" : null;
  }

  #listen(look: (from: number, to: number) => void): void {
    const { canvas } = this;
    let grip: Grip | null = null;
    let offset = 0;
    const drag = (x: number) => {
      const [left, right] = this.#window();
      if (grip === "left") look(this.#moment(x), this.#shown.to);
      if (grip === "right") look(this.#shown.from, this.#moment(x));
      if (grip === "window") {
        const start = Math.min(Math.max(x - offset, 0), canvas.clientWidth - (right - left));
        look(this.#moment(start), this.#moment(start + right - left));
      }
    };
    canvas.addEventListener("pointerdown", (event) => {
      if (event.button !== 0) return;
      const [left, right] = this.#window();
      grip = this.#grip(event.offsetX);
      offset = event.offsetX - left;
      if (grip === null) {
        grip = "window";
        offset = (right - left) / 2;
        drag(event.offsetX);
      }
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointermove", (event) => {
      if (grip !== null) drag(event.offsetX);
      else canvas.style.cursor = { left: "ew-resize", right: "ew-resize", window: "grab", none: "pointer" }[this.#grip(event.offsetX) ?? "none"];
    });
    const release = () => {
      grip = null;
    };
    canvas.addEventListener("pointerup", release);
    canvas.addEventListener("pointercancel", release);
  }
}
