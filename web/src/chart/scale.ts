// Axes of bytes. In: a range. Out: places for lines that are round in binary, and short words for them.

const UNITS: [string, number][] = [
  ["GiB", 1024 ** 3],
  ["MiB", 1024 ** 2],
  ["KiB", 1024],
];

/** Distances between lines that read well: powers of two. */
export const STEPS: number[] = Array.from({ length: 50 }, (_, power) => 2 ** power);

/** Words for the lines of an axis, all in the unit of the largest; 0 needs none. */
export function labels(values: readonly number[]): string[] {
  const most = Math.max(0, ...values.map(Math.abs));
  const [unit, scale] = UNITS.find(([, scale]) => most >= scale) ?? ["B", 1];
  return values.map((value) => {
    if (value === 0) {
      return "0";
    }
    const sign = value < 0 ? "−" : "";
    return `${sign}${Number((Math.abs(value) / scale).toFixed(3))} ${unit}`;
  });
}

/** The range of an axis that begins at 0 and has some air above. */
export function upTo(most: number): [number, number] {
  return [0, most > 0 ? most * 1.06 : 1];
}

/** The range of an axis of differences: 0 is always within. */
export function around(least: number, most: number): [number, number] {
  const air = 0.08 * (Math.max(0, most) - Math.min(0, least));
  if (air === 0) {
    return [-1, 1];
  }
  return [Math.min(0, least) - (least < 0 ? air : 0), Math.max(0, most) + (most > 0 ? air : 0)];
}
