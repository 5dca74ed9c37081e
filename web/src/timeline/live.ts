// Questions about one moment of a recording.
//
// In:  a recording, a moment. Out: who is live, what they hold together, who comes next.
import type { Classes } from "../colours.ts";
import type { Recording } from "../recording.ts";

export function isLive({ allocations }: Recording, row: number, moment: number): boolean {
  return allocations.begin[row] <= moment && moment < allocations.end[row];
}

/** Bytes that each class holds at a moment. */
export function heldBy(recording: Recording, classes: Classes, moment: number): Float64Array {
  const { begin, end, size, length } = recording.allocations;
  const held = new Float64Array(classes.list.length);
  for (let row = 0; row < length; row++) {
    if (begin[row] <= moment && moment < end[row]) held[classes.of[row]] += size[row];
  }
  return held;
}

/** The next live allocation in order of allocation, or the one before; -1 at the end. */
export function beside(recording: Recording, row: number, moment: number, step: 1 | -1, shown: Uint8Array | null): number {
  const { length } = recording.allocations;
  for (let at = row < 0 ? (step > 0 ? 0 : length - 1) : row + step; at >= 0 && at < length; at += step) {
    if (isLive(recording, at, moment) && (shown === null || shown[at] === 1)) return at;
  }
  return -1;
}

/** The latest moment within a recording at which an allocation is live and `moment` is not passed, or its first. */
export function momentOf({ allocations, entries }: Recording, row: number, moment: number): number {
  const last = Math.min(allocations.end[row] - 1, entries);
  return Math.max(allocations.begin[row], Math.min(moment, last));
}

/** How long an allocation was live, in entries and, where times are known, in microseconds; null if it was not freed. */
export function lifetime(recording: Recording, row: number): { entries: number; us: number | null; open: boolean } {
  const { allocations, entries, time, head } = recording;
  const begin = allocations.begin[row];
  const end = Math.min(allocations.end[row], entries);
  const open = allocations.end[row] > entries;
  const at = (moment: number) => time[Math.max(moment - 1, 0)];
  const us = head.timed && end > 0 ? Math.max(at(end) - at(begin), 0) : null;
  return { entries: Math.max(end - begin, 0), us, open };
}
