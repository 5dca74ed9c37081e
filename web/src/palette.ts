// The page's colours, as canvases need them.
//
// In:  the custom properties of base.css, which differ in light, dark and print. Out: texts and numbers.

/** Custom properties by name, read once until the scheme changes. */
const read = new Map<string, string>();

/** A colour as CSS writes it. */
export function css(name: string): string {
  let value = read.get(name);
  if (value === undefined) {
    value = getComputedStyle(document.documentElement).getPropertyValue(name).trim();
    read.set(name, value);
  }
  return value;
}

/** "#2f6fd0" as a pixel of a canvas: red in the lowest byte, opaque. */
export function pixel(colour: string): number {
  const value = Number.parseInt(colour.slice(1), 16) || 0;
  return ((value >>> 16) | (value & 0xff00) | ((value & 0xff) << 16) | 0xff000000) >>> 0;
}

/** `part` of the first colour, the rest of the second. */
export function mix(one: number, other: number, part: number): number {
  let mixed = 0xff000000;
  for (let shift = 0; shift < 24; shift += 8) {
    const value = ((one >>> shift) & 255) * part + ((other >>> shift) & 255) * (1 - part);
    mixed |= Math.round(value) << shift;
  }
  return mixed >>> 0;
}

/** A pixel as CSS writes it. */
export function cssOf(pixel: number): string {
  return `rgb(${pixel & 255} ${(pixel >>> 8) & 255} ${(pixel >>> 16) & 255})`;
}

/** Calls back when light turns dark, dark turns light, or the page goes to a printer. */
export function onScheme(listener: () => void): void {
  const changed = () => {
    read.clear();
    listener();
  };
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", changed);
  matchMedia("print").addEventListener("change", changed);
}
