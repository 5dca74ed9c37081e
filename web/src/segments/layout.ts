// Where memory lies on the map: strips as long as their bytes, one after the other like words, broken where a line ends.
//
// In:  the strips of a moment, the width, bytes a pixel. Out: pieces of strips, and headings of groups.
import type { Group, Moment, Strip } from "./moment.ts";

/** A strip, or a part of one that goes on in the next line. */
export interface Piece {
  strip: Strip;
  x: number;
  y: number;
  width: number;
  /** Bytes of the strip at its left and right end. */
  from: number;
  to: number;
}

export interface Layout {
  headings: { group: Group; y: number }[];
  pieces: Piece[];
  height: number;
  /** Strips that there was no room for. */
  left: number;
}

/** Pixels from the upper to the lower edge. */
export const HEIGHT = 15;
const LINE = HEIGHT + 4;
const HEADING = 22;
const GAP = 3;

/** A strip is never shorter than this, or it could not be seen. */
const SHORTEST = 3;

/** More lines than anyone scrolls through: a canvas has its limits. */
const MOST_LINES = 260;

export function layout({ groups }: Moment, width: number, perPixel: number): Layout {
  const headings: Layout["headings"] = [];
  const pieces: Piece[] = [];
  let y = 0;
  let lines = 0;
  let left = 0;
  for (const group of groups) {
    headings.push({ group, y });
    y += HEADING;
    let x = 0;
    for (const strip of group.strips) {
      if (lines >= MOST_LINES) {
        left++;
        continue;
      }
      const { size } = strip;
      let rest = Math.max(size / perPixel, SHORTEST);
      const scale = size / rest;
      // What would leave only a splinter in this line begins in the next.
      if (x > 0 && x + Math.min(rest, 24) > width) {
        x = 0;
        y += LINE;
        lines++;
      }
      let from = 0;
      while (rest > 0 && lines < MOST_LINES) {
        const part = Math.min(rest, width - x);
        rest -= part;
        const to = rest > 0 ? from + part * scale : size;
        pieces.push({ strip, x, y, width: part, from, to });
        from = to;
        x += part + GAP;
        if (rest > 0 || x >= width) {
          x = 0;
          y += LINE;
          lines++;
        }
      }
    }
    if (x > 0) {
      y += LINE;
      lines++;
    }
    y += 4;
  }
  return { headings, pieces, height: y, left };
}

/** The piece at a place, if there is one, and the byte of its strip. */
export function at({ pieces }: Layout, x: number, y: number): { piece: Piece; byte: number } | null {
  // Pieces go down the page: the first of the line is found by halving.
  let low = 0;
  let high = pieces.length;
  while (low < high) {
    const middle = (low + high) >>> 1;
    if (pieces[middle].y + HEIGHT < y) low = middle + 1;
    else high = middle;
  }
  for (let place = low; place < pieces.length && pieces[place].y <= y; place++) {
    const piece = pieces[place];
    if (x >= piece.x && x < piece.x + piece.width) {
      return { piece, byte: piece.from + ((x - piece.x) / piece.width) * (piece.to - piece.from) };
    }
  }
  return null;
}
