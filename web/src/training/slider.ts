// Sliders for sizes. In: a range of values. Out: places on a slider, and back.
//
// A batch goes from 1 to thousands: there a slider by proportion would leave all small values in its first
// millimetre, so wide ranges are by ratio.
import type { SizeInfo } from "../api.ts";

type Range = Pick<SizeInfo, "least" | "most" | "step">;

/** Places on a slider. */
export const PLACES = 1000;

/** Ranges wider than this are by ratio. */
const WIDE = 64;

function byRatio({ least, most }: Range): boolean {
  return least > 0 && most / least > WIDE;
}

/** The nearest value that the range has. */
export function snap(range: Range, value: number): number {
  const { least, most, step } = range;
  if (!Number.isFinite(value)) {
    return least;
  }
  const steps = Math.round((value - least) / step);
  const last = Math.floor((most - least) / step);
  return least + Math.min(last, Math.max(0, steps)) * step;
}

export function toPlace(range: Range, value: number): number {
  const { least, most } = range;
  if (most <= least) {
    return 0;
  }
  const share = byRatio(range) ? Math.log(value / least) / Math.log(most / least) : (value - least) / (most - least);
  return Math.round(Math.min(1, Math.max(0, share)) * PLACES);
}

export function toValue(range: Range, place: number): number {
  const { least, most } = range;
  const share = place / PLACES;
  return snap(range, byRatio(range) ? least * (most / least) ** share : least + share * (most - least));
}

/** The value that a key leads to: at least one step away, and an eighth of itself on wide ranges. */
export function neighbour(range: Range, value: number, direction: 1 | -1, far: boolean): number {
  const reach = byRatio(range) ? value / 8 : range.step;
  const step = Math.max(range.step, Math.floor(reach / range.step) * range.step) * (far ? 8 : 1);
  return snap(range, value + direction * step);
}
