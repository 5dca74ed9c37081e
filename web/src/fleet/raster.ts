// Cells as pixels. In: figures, their order, the part that is looked at. Out: levels, of which each picture has few. Pure.
//
// A level is a step on the ramp of colours, and more is more: where several cells share a pixel, the most of them shows, so
// that one rank of four thousand is not lost.

/** Nothing is there; the ramp begins above it, and ends with what is near the limit. */
export const NONE = 0;
export const LEVELS = 64;
export const HOT = LEVELS + 1;

/** The level of each value between the least and the most; `hot` is where it is no step any more, but a warning. */
export function levels(values: Float64Array, least: number, most: number, hot: number): Uint8Array {
  const scale = most > least ? (LEVELS - 1) / (most - least) : 0;
  const found = new Uint8Array(values.length);
  for (let cell = 0; cell < found.length; cell++) {
    const value = values[cell];
    if (value >= hot) found[cell] = HOT;
    else if (!Number.isNaN(value)) found[cell] = 1 + Math.round((value - least) * scale);
  }
  return found;
}

/** The part of an order that is looked at: from which place, fractions allowed, and how many places each pixel covers. */
export interface Look {
  from: number;
  each: number;
  height: number;
}

/** Places that a pixel covers: at least one. */
export function covered({ from, each }: Look, pixel: number, rows: number): [number, number] {
  const first = Math.min(Math.floor(from + pixel * each), rows - 1);
  const end = Math.min(Math.max(Math.ceil(from + (pixel + 1) * each), first + 1), rows);
  return [first, end];
}

/** Some of the columns; the end is exclusive. */
export type Columns = readonly [first: number, end: number];

/** Columns that a pixel covers. */
export function across([first, end]: Columns, width: number, pixel: number): [number, number] {
  const each = (end - first) / width;
  const begin = first + Math.floor(pixel * each);
  return [begin, Math.min(Math.max(first + Math.ceil((pixel + 1) * each), begin + 1), end)];
}

/** Levels of a picture of some columns, `width` by `look.height`. */
export function pooled(of: Uint8Array, columns: number, some: Columns, order: Int32Array, look: Look, width: number): Uint8Array {
  const picture = new Uint8Array(width * look.height);
  const [first, last] = some;
  if (order.length === 0 || last <= first) return picture;
  const most = new Uint8Array(columns);
  for (let y = 0; y < look.height; y++) {
    const [begin, end] = covered(look, y, order.length);
    most.fill(NONE);
    for (let place = begin; place < end; place++) {
      const cells = order[place] * columns;
      for (let column = first; column < last; column++) {
        const level = of[cells + column];
        if (level > most[column]) most[column] = level;
      }
    }
    for (let x = 0; x < width; x++) {
      const [left, right] = across(some, width, x);
      let level = NONE;
      for (let column = left; column < right; column++) level = Math.max(level, most[column]);
      picture[y * width + x] = level;
    }
  }
  return picture;
}

/** The place whose cell a pixel shows, of those that it covers: the first with most. */
export function shownAt(of: Uint8Array, columns: number, order: Int32Array, [begin, end]: Columns, [left, right]: Columns): [number, number] {
  let found: [number, number] = [begin, left];
  let most = -1;
  for (let place = begin; place < end; place++) {
    for (let column = left; column < right; column++) {
      const level = of[order[place] * columns + column];
      if (level > most) {
        most = level;
        found = [place, column];
      }
    }
  }
  return found;
}
