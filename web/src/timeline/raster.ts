// The picture of live memory, as numbers of rows.
//
// In:  what is live (a Sweep), the moments that each column of pixels covers, and the bytes that the height covers.
// Out: for each pixel the row it shows, for each column its moment and the most that was reserved.
//
// A column shows the moment of most live memory among those it covers: peaks are seen however far one is away. Allocations
// are stacked in order of allocation. A pixel shows the row that covers most of it, the lower one of two equals.
// Nothing here knows colours: see paint.ts.
import { NONE, Sweep } from "./sweep.ts";

/** What to draw. */
export interface Frame {
  width: number;
  height: number;
  /** The first and last moment of each column. */
  first: Uint32Array;
  last: Uint32Array;
  /** Bytes at the lower and upper edge. */
  low: number;
  high: number;
}

export interface Levels {
  allocated: Float64Array;
  reserved: Float64Array;
}

export interface Picture {
  width: number;
  height: number;
  /** Row plus one for each pixel, column after column from the bottom up; 0 where there is nothing. */
  rows: Uint32Array;
  /** The moment that each column shows. */
  moments: Uint32Array;
  /** The most that was reserved within each column. */
  reserved: Float64Array;
}

/** How the stack stood at the top of a row when it was last drawn: from there a column can be continued. */
export class Tops {
  /** Bytes up to its top. */
  readonly bytes: Float64Array;
  /** The row that covers most of the pixel at its top so far, and how much of it. */
  readonly best: Uint32Array;
  readonly cover: Float64Array;

  constructor(length: number) {
    this.bytes = new Float64Array(length);
    this.best = new Uint32Array(length);
    this.cover = new Float64Array(length);
  }
}

/** The moment of most live memory from `first` to `last`, the earliest of equals. */
function fullest(allocated: Float64Array, first: number, last: number): number {
  let best = first;
  for (let moment = first + 1; moment <= last; moment++) {
    if (allocated[moment] > allocated[best]) best = moment;
  }
  return best;
}

function most(values: Float64Array, first: number, last: number): number {
  let most = 0;
  for (let moment = first; moment <= last; moment++) {
    if (values[moment] > most) most = values[moment];
  }
  return most;
}

/** Draws what lies above `sweep.kept` into a column; below it the column has the pixels of the one before. */
function stack(sweep: Sweep, tops: Tops, frame: Frame, column: Uint32Array): void {
  const { size } = sweep.spans;
  const { height, low } = frame;
  const scale = height / (frame.high - frame.low);
  const kept = sweep.kept;
  let bytes = kept === NONE ? 0 : tops.bytes[kept];
  let best = kept === NONE ? 0 : tops.best[kept];
  let cover = kept === NONE ? 0 : tops.cover[kept];
  let y = (bytes - low) * scale;
  let pixel = Math.floor(y);
  for (let row = kept === NONE ? sweep.first : sweep.next[kept]; row !== NONE; row = sweep.next[row]) {
    bytes += size[row];
    const top = (bytes - low) * scale;
    const above = Math.floor(top);
    if (above > pixel) {
      // The unfinished pixel belongs to whoever has most of it, the whole ones between to this row.
      if (pixel + 1 - y > cover) best = row + 1;
      if (pixel >= 0 && pixel < height) column[pixel] = best;
      const from = Math.max(pixel + 1, 0);
      const to = Math.min(above, height);
      if (to > from) column.fill(row + 1, from, to);
      pixel = above;
      cover = top - above;
      best = cover > 0 ? row + 1 : 0;
    } else if (top - y > cover) {
      cover = top - y;
      best = row + 1;
    }
    y = top;
    tops.bytes[row] = bytes;
    tops.best[row] = best;
    tops.cover[row] = cover;
    if (pixel >= height) {
      // The rest is above the picture. It has no tops, so it may not be kept.
      sweep.kept = row;
      return;
    }
  }
  if (pixel >= 0 && pixel < height) column[pixel] = best;
  column.fill(0, Math.min(Math.max(pixel + 1, 0), height));
  sweep.settle();
}

/** Draws a frame. `tops` is scratch space for as many rows as there are. */
export function draw(sweep: Sweep, tops: Tops, levels: Levels, frame: Frame): Picture {
  const { width, height } = frame;
  const rows = new Uint32Array(width * height);
  const moments = new Uint32Array(width);
  const reserved = new Float64Array(width);
  for (let x = 0; x < width; x++) {
    const moment = fullest(levels.allocated, frame.first[x], frame.last[x]);
    moments[x] = moment;
    reserved[x] = most(levels.reserved, frame.first[x], frame.last[x]);
    const column = rows.subarray(x * height, (x + 1) * height);
    if (x === 0) {
      sweep.start(moment);
    } else {
      sweep.advance(moment);
      column.set(rows.subarray((x - 1) * height, x * height));
    }
    stack(sweep, tops, frame, column);
  }
  return { width, height, rows, moments, reserved };
}
