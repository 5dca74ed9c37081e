// Which moments and bytes the timeline shows. Pure: in a view and a wish, out the next view.
import type { Recording } from "../recording.ts";
import type { Scale } from "./scale.ts";

export interface Range {
  from: number;
  to: number;
}

/** Bytes at the lower and upper edge. */
export interface Bounds {
  low: number;
  high: number;
}

/** Closer than so many moments there is nothing more to see. */
const FEWEST = 4;

/** A range within the recording, no narrower than it makes sense. */
export function within({ from, to }: Range, entries: number): Range {
  const end = entries + 1;
  const length = Math.min(Math.max(to - from, Math.min(FEWEST, end)), end);
  // What is too narrow widens around its middle.
  const wanted = to - from < length ? (from + to - length) / 2 : from;
  const start = Math.min(Math.max(wanted, 0), end - length);
  return { from: start, to: start + length };
}

/** Moved by a part of its width. */
export function panned(range: Range, part: number, scale: Scale, entries: number): Range {
  const [low, high] = [scale.place(0), scale.place(entries + 1)];
  const left = scale.place(range.from);
  const right = scale.place(range.to);
  const by = Math.min(Math.max((right - left) * part, low - left), high - right);
  if (by === 0) {
    return range;
  }
  return within({ from: scale.moment(left + by), to: scale.moment(right + by) }, entries);
}

/** Scaled by a factor; `at` (0 to 1) stays where it is. */
export function zoomed(range: Range, factor: number, at: number, scale: Scale, entries: number): Range {
  const left = scale.place(range.from);
  const width = scale.place(range.to) - left;
  const start = Math.max(left + width * at * (1 - factor), scale.place(0));
  const end = Math.min(start + width * factor, scale.place(entries + 1));
  return within({ from: scale.moment(start), to: scale.moment(end) }, entries);
}

/** Bytes at the lower and upper edge: everything, or as much as the visible moments need. */
export function heights({ head, allocated, reserved, entries }: Recording, range: Range, fit: boolean): Bounds {
  if (!fit) {
    const most = Math.max(head.peak.reserved, head.peak.allocated, 1024);
    // A limit that is far away would press everything else to the floor.
    const top = head.limit !== null && head.limit > most && head.limit < most * 1.5 ? head.limit : most;
    return { low: 0, high: top * 1.04 };
  }
  const first = Math.max(Math.floor(range.from), 0);
  const last = Math.min(Math.ceil(range.to) - 1, entries);
  let least = Infinity;
  let held = 0;
  let most = 0;
  for (let moment = first; moment <= last; moment++) {
    if (allocated[moment] < least) least = allocated[moment];
    if (allocated[moment] > held) held = allocated[moment];
    if (reserved[moment] > most) most = reserved[moment];
  }
  // What is reserved is shown as long as it does not press what is allocated to the floor.
  const top = Math.max(held, most - held <= (held - least) * 0.5 ? most : 0);
  const room = Math.max(top - least, top * 0.01, 1024) * 0.05;
  return { low: Math.max(least - room, 0), high: top + room };
}
