// Round numbers for axes.
//
// In:  a range and how many marks there is room for. Out: the marks.

/** The smallest of 1, 2, 5 times a power of `base` (10, or 1024 with powers of two between) that is at least `step`. */
function roundUp(step: number, binary: boolean): number {
  if (binary) {
    return 2 ** Math.ceil(Math.log2(Math.max(step, 1)));
  }
  const power = 10 ** Math.floor(Math.log10(step));
  return [1, 2, 5, 10].map((it) => it * power).find((it) => it >= step * 0.999) ?? 10 * power;
}

/** Marks from `low` to `high`, at most `most` of them; powers of two apart for bytes. */
export function ticks(low: number, high: number, most: number, binary = false): number[] {
  if (!(high > low) || most < 1) {
    return [];
  }
  const step = roundUp((high - low) / most, binary);
  const marks: number[] = [];
  for (let mark = Math.ceil(low / step); mark * step <= high; mark++) {
    marks.push(mark * step);
  }
  return marks;
}

/** Bytes beside a mark: "1 GiB", "1.5 GiB", without zeros that say nothing. */
export function byteTick(value: number): string {
  const power = value < 1024 ? 0 : Math.min(Math.floor(Math.log2(value) / 10), 4);
  const number = value / 1024 ** power;
  return value === 0 ? "0" : `${Number(number.toPrecision(4))} ${["bytes", "KiB", "MiB", "GiB", "TiB"][power]}`;
}
