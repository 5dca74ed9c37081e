// How long the page takes, for whoever measures it: `tonnage.frames` and `tonnage.pictures` in the console.

/** So many figures are kept. */
const MOST = 10_000;

export interface Measures {
  /** Milliseconds of each frame that the page itself drew. */
  frames: number[];
  /** Milliseconds from an input to the finished picture in full detail. */
  pictures: number[];
}

declare global {
  interface Window {
    tonnage?: Measures;
  }
}

const measures: Measures = { frames: [], pictures: [] };
if (typeof window !== "undefined") {
  window.tonnage = measures;
}

function keep(list: number[], value: number): void {
  if (list.length < MOST) list.push(value);
}

export function frameTook(milliseconds: number): void {
  keep(measures.frames, milliseconds);
}

export function pictureTook(milliseconds: number): void {
  keep(measures.pictures, milliseconds);
}
