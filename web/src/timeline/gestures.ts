// What a pointer does to the timeline, as wishes.
//
// In:  events of the pointer and the wheel on a canvas. Out: calls of `Wishes`, with places in CSS pixels of the canvas.

export interface Wishes {
  pan(pixels: number): void;
  /** Factors below one come closer. */
  zoom(factor: number, x: number): void;
  /** A range that is being marked, or null when that ends. */
  mark(range: [number, number] | null): void;
  zoomInto(left: number, right: number): void;
  whole(): void;
  point(x: number, y: number): void;
  leave(): void;
  click(x: number, y: number): void;
  scrub(x: number): void;
  /** Whether a plain drag that begins here moves the moment. */
  isScrubbing(x: number, y: number): boolean;
}

/** So far a pointer may move and still click. */
const STILL = 4;

/** A wheel's step in pixels that doubles or halves. */
const DOUBLES = 300;

type Drag = "pan" | "mark" | "scrub";

export function listen(canvas: HTMLCanvasElement, wishes: Wishes): void {
  let drag: Drag | null = null;
  let start = 0;
  let at = 0;
  let moved = false;
  const place = (event: MouseEvent): [number, number] => {
    const box = canvas.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  };

  canvas.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    const [x, y] = place(event);
    drag = event.shiftKey ? "mark" : event.altKey || wishes.isScrubbing(x, y) ? "scrub" : "pan";
    start = at = x;
    moved = false;
    canvas.setPointerCapture(event.pointerId);
    if (drag === "scrub") wishes.scrub(x);
  });
  canvas.addEventListener("pointermove", (event) => {
    const [x, y] = place(event);
    if (drag === null) {
      wishes.point(x, y);
      return;
    }
    moved ||= Math.abs(x - start) > STILL;
    if (!moved) return;
    if (drag === "pan") wishes.pan(x - at);
    if (drag === "mark") wishes.mark([start, x]);
    if (drag === "scrub") wishes.scrub(x);
    at = x;
  });
  canvas.addEventListener("pointerup", (event) => {
    const [x, y] = place(event);
    if (drag === "mark") {
      wishes.mark(null);
      if (moved) wishes.zoomInto(Math.min(start, x), Math.max(start, x));
    } else if (drag === "pan" && !moved) {
      wishes.click(x, y);
    }
    drag = null;
  });
  canvas.addEventListener("pointercancel", () => {
    drag = null;
    wishes.mark(null);
  });
  canvas.addEventListener("pointerleave", () => wishes.leave());
  canvas.addEventListener("dblclick", () => wishes.whole());
  canvas.addEventListener(
    "wheel",
    (event) => {
      event.preventDefault();
      // Lines and pages, where a mouse counts in them.
      const unit = [1, 16, 400][event.deltaMode] ?? 1;
      const across = (event.shiftKey && event.deltaX === 0 ? event.deltaY : event.deltaX) * unit;
      if (Math.abs(across) > Math.abs(event.deltaY * unit) || event.shiftKey) {
        wishes.pan(-across);
      } else {
        wishes.zoom(2 ** ((event.deltaY * unit) / DOUBLES), place(event)[0]);
      }
    },
    { passive: false },
  );
}
