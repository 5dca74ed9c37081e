// A picture of rows, in colours.
//
// In:  the row of each pixel, a colour for each row. Out: pixels as a canvas takes them.

import type { Picture } from "./raster.ts";

/** Columns that are turned into lines at once: small enough that what is read stays in the cache. */
const STRIP = 16;

/** Three quarters as bright, as opaque as before. */
function darker(colour: number): number {
  return (((colour >>> 1) & 0x7f7f7f) + ((colour >>> 2) & 0x3f3f3f)) | (colour & 0xff000000);
}

/**
 * Colours a picture. `colours` has an entry for each row plus one, the first for "nothing"; `chosen` is shown in its own
 * colour. A row that is tall enough gets a darker lower edge, so that neighbours of one colour can be told apart.
 */
export function paint(picture: Picture, colours: Uint32Array, chosen: number, chosenColour: number): Uint32Array {
  const { width, height, rows } = picture;
  const pixels = new Uint32Array(width * height);
  for (let left = 0; left < width; left += STRIP) {
    const right = Math.min(left + STRIP, width);
    for (let y = 0; y < height; y++) {
      const line = (height - 1 - y) * width;
      for (let x = left; x < right; x++) {
        const at = x * height + y;
        const row = rows[at];
        if (row === 0) continue;
        let colour = row === chosen + 1 ? chosenColour : colours[row];
        if (y > 0 && y + 2 < height && rows[at - 1] !== row && rows[at + 1] === row && rows[at + 2] === row) {
          colour = darker(colour);
        }
        pixels[line + x] = colour;
      }
    }
  }
  return pixels;
}
