// Two recordings on one clock. In: recordings. Out: at most so many columns of each, and their difference.
//
// Entries of another run are not those of the recording: other segments come and go. What runs share are the
// program's own requests, so "allocations made so far" is a clock on which they can be laid over each other.
// Allocations from before the history are not counted. A what-if's entries carry the times of those that they stand
// for, so it can go by the entries of the recording that it was made from.
import type { Recording } from "../recording.ts";

export type Clock = "allocations" | "entries" | "time";

/** Most bytes in each span of the clock; null once the recording has ended. */
export interface Columns {
  /** Where each span begins. */
  at: number[];
  reserved: (number | null)[];
  allocated: (number | null)[];
}

/** Where each moment stands on the clock; one more than entries. */
export function ticks(recording: Recording, clock: Clock): Float64Array | Uint32Array {
  const { entries, time, allocations } = recording;
  if (clock === "time") {
    const at = new Float64Array(entries + 1);
    at.set(time, 1);
    return at;
  }
  const at = new Uint32Array(entries + 1);
  if (clock === "entries") {
    return at.map((_, moment) => moment);
  }
  for (let row = 0; row < allocations.length; row += 1) {
    if (allocations.begin[row] > 0) {
      at[allocations.begin[row]] += 1;
    }
  }
  for (let moment = 1; moment <= entries; moment += 1) {
    at[moment] += at[moment - 1];
  }
  return at;
}

/**
 * Where each moment of a what-if stands among the entries of the recording that it was made from. One that went
 * through to the end lasts as long as the recording does.
 */
export function ticksOf(whatIf: Recording, source: Recording, whole: boolean): Uint32Array {
  const at = new Uint32Array(whatIf.entries + 1);
  const apart = (beginning(source) ?? 0) - (beginning(whatIf) ?? 0);
  let entry = 0;
  for (let moment = 1; moment <= whatIf.entries; moment += 1) {
    while (entry < source.entries && source.time[entry] < whatIf.time[moment - 1] + apart) {
      entry += 1;
    }
    at[moment] = Math.min(source.entries, entry + 1);
  }
  if (whole) {
    at[whatIf.entries] = source.entries;
  }
  return at;
}

/**
 * When the program first asked for something. Times count from the first entry, which may be a segment's that the
 * other has not; what was there before the history comes at its very beginning.
 */
function beginning({ time, allocations }: Recording): number | null {
  let first = Infinity;
  for (let row = 0; row < allocations.length; row += 1) {
    first = Math.min(first, allocations.begin[row]);
  }
  return first > 0 && first <= time.length ? time[first - 1] : null;
}

/** Where a recording ends on the clock. */
export function length(recording: Recording, clock: Clock): number {
  if (clock === "entries") {
    return recording.entries;
  }
  if (clock === "time") {
    return recording.entries === 0 ? 0 : recording.time[recording.entries - 1];
  }
  let made = 0;
  for (const begin of recording.allocations.begin) {
    made += begin > 0 ? 1 : 0;
  }
  return made;
}

/** Cuts [0, until] of a clock into at most `most` spans, and takes the most bytes of each. */
export function columns(recording: Recording, when: Float64Array | Uint32Array, until: number, most: number): Columns {
  const wanted = when instanceof Uint32Array ? Math.min(most, Math.floor(until) + 1) : most;
  const count = Math.max(1, wanted);
  const wide = until > 0 ? until / Math.max(1, count - 1) : 1;
  const at = Array.from({ length: count }, (_, column) => column * wide);
  const reserved = new Array<number | null>(count).fill(null);
  const allocated = new Array<number | null>(count).fill(null);
  let column = 0;
  for (let moment = 0; moment <= recording.entries; moment += 1) {
    const place = Math.min(count - 1, Math.floor(when[moment] / wide));
    // A span in which nothing happens keeps what was there before it.
    for (column += 1; column < place; column += 1) {
      reserved[column] = recording.reserved[Math.max(0, moment - 1)];
      allocated[column] = recording.allocated[Math.max(0, moment - 1)];
    }
    column = place;
    reserved[column] = Math.max(reserved[column] ?? 0, recording.reserved[moment]);
    allocated[column] = Math.max(allocated[column] ?? 0, recording.allocated[moment]);
  }
  return { at, reserved, allocated };
}

/** The second less the first, where both are known. */
export function difference(first: (number | null)[], second: (number | null)[]): (number | null)[] {
  return first.map((value, column) => {
    const other = second[column];
    return value === null || other === null || other === undefined ? null : other - value;
  });
}

/** The largest that is known; 0 if none is. */
export function largest(values: Iterable<number | null>): number {
  let found = 0;
  for (const value of values) {
    found = Math.max(found, value ?? 0);
  }
  return found;
}
