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

/** Two fingers: where their middle is, and how far they are apart. */
export interface Grip {
  x: number;
  apart: number;
}

/** Fingers nearer than this, in pixels, zoom no further. */
const NEAREST = 24;

export function grip(one: number, other: number): Grip {
  return { x: (one + other) / 2, apart: Math.max(Math.abs(one - other), NEAREST) };
}

/** What two fingers that moved ask for: what lay under each stays under it. */
export function pinched(before: Grip, now: Grip): { pan: number; factor: number } {
  return { pan: now.x - before.x, factor: before.apart / now.apart };
}

export function listen(canvas: HTMLCanvasElement, wishes: Wishes): void {
  /** Fingers on the canvas, by their pointer. */
  const fingers = new Map<number, number>();
  let held: Grip | null = null;
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
    if (event.pointerType === "touch") {
      fingers.set(event.pointerId, x);
      if (fingers.size === 2) {
        const [one, other] = fingers.values();
        held = grip(one, other);
        drag = null;
        wishes.mark(null);
        return;
      }
    }
    drag = event.shiftKey ? "mark" : event.altKey || wishes.isScrubbing(x, y) ? "scrub" : "pan";
    start = at = x;
    moved = false;
    canvas.setPointerCapture(event.pointerId);
    if (drag === "scrub") wishes.scrub(x);
  });
  canvas.addEventListener("pointermove", (event) => {
    const [x, y] = place(event);
    if (fingers.has(event.pointerId)) fingers.set(event.pointerId, x);
    if (held !== null) {
      const [one, other] = fingers.values();
      if (other === undefined) return;
      const now = grip(one, other);
      const { pan, factor } = pinched(held, now);
      held = now;
      if (pan !== 0) wishes.pan(pan);
      if (factor !== 1) wishes.zoom(factor, now.x);
      return;
    }
    if (drag === null) {
      // A finger that rests points at nothing.
      if (event.pointerType !== "touch") wishes.point(x, y);
      return;
    }
    moved ||= Math.abs(x - start) > STILL;
    if (!moved) return;
    if (drag === "pan") wishes.pan(x - at);
    if (drag === "mark") wishes.mark([start, x]);
    if (drag === "scrub") wishes.scrub(x);
    at = x;
  });
  const lift = (event: PointerEvent): boolean => {
    fingers.delete(event.pointerId);
    const pinching = held !== null;
    if (fingers.size === 0) held = null;
    return pinching;
  };
  canvas.addEventListener("pointerup", (event) => {
    const [x, y] = place(event);
    if (lift(event)) return;
    if (drag === "mark") {
      wishes.mark(null);
      if (moved) wishes.zoomInto(Math.min(start, x), Math.max(start, x));
    } else if (drag === "pan" && !moved) {
      wishes.click(x, y);
    }
    drag = null;
  });
  canvas.addEventListener("pointercancel", (event) => {
    lift(event);
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
