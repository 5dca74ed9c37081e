// The entries of a history, one by one, from the columns. Pure.
//
// In:  a recording. Out: what each entry did, and to whom.
import type { Recording } from "../recording.ts";

export type Action = "allocated" | "freed" | "free is complete" | "segment obtained" | "segment given back" | "out of memory" | "other";

const ACTIONS: readonly Action[] = ["other", "allocated", "freed", "free is complete", "segment obtained", "segment given back", "out of memory"];

export interface Entry {
  entry: number;
  action: Action;
  bytes: number;
  /** The allocation's row, or -1. */
  row: number;
  /** Since the first entry, in microseconds; null if times are not known. */
  us: number | null;
}

interface Index {
  action: Uint8Array;
  which: Uint32Array;
  /** Bytes of segments, which an entry may obtain in several parts. */
  bytes: Map<number, number>;
}

function indexOf({ entries, allocations, segments, head }: Recording): Index {
  const action = new Uint8Array(entries);
  const which = new Uint32Array(entries);
  const sizes = new Map<number, number>();
  const put = (moment: number, kind: number, place: number) => {
    if (moment > 0 && moment <= entries) {
      action[moment - 1] = kind;
      which[moment - 1] = place;
    }
  };
  for (let segment = 0; segment < segments.length; segment++) {
    for (const [moment, kind] of [[segments.begin[segment], 4], [segments.end[segment], 5]]) {
      put(moment, kind, segment);
      if (moment > 0) sizes.set(moment - 1, (sizes.get(moment - 1) ?? 0) + segments.size[segment]);
    }
  }
  for (let row = 0; row < allocations.length; row++) {
    // What is done when it is freed has one entry for both.
    put(allocations.done[row], 3, row);
    put(allocations.end[row], 2, row);
    put(allocations.begin[row], 1, row);
  }
  head.ooms.forEach(({ entry }, place) => put(entry + 1, 6, place));
  return { action, which, bytes: sizes };
}

const made = new WeakMap<Recording, Index>();

/** So many entries around a moment: as many before it as after it, as far as there are. */
export function entriesAround(recording: Recording, moment: number, most: number): Entry[] {
  let index = made.get(recording);
  if (index === undefined) {
    index = indexOf(recording);
    made.set(recording, index);
  }
  const { entries, time, head, allocations } = recording;
  const first = Math.max(0, Math.min(moment - Math.ceil(most / 2), entries - most));
  return Array.from({ length: Math.min(most, entries) }, (_, place) => {
    const entry = first + place;
    const kind = index.action[entry];
    const isRow = kind >= 1 && kind <= 3;
    const row = isRow ? index.which[entry] : -1;
    const bytes = isRow ? allocations.size[row] : kind === 6 ? head.ooms[index.which[entry]].requested : (index.bytes.get(entry) ?? 0);
    return { entry, action: ACTIONS[kind], bytes, row, us: head.timed ? time[entry] - time[0] : null };
  });
}
