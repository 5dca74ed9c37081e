// An allocation in words: for tooltips, details, lists and screen readers.
import { bytes, count, duration, siteText } from "../format.ts";
import type { Recording } from "../recording.ts";
import { lifetime } from "./live.ts";

export function lineOf({ head, allocations }: Recording, row: number): string {
  return siteText(head.sites[allocations.site[row]] ?? null);
}

export function purposeOf({ head, allocations }: Recording, row: number): string {
  return head.purposes[allocations.purpose[row]] ?? "unknown";
}

export function streamOf({ head, allocations }: Recording, row: number): string {
  const stream = allocations.stream[row];
  return head.streams[stream] ?? String(stream);
}

/** The pool of an allocation's segment, if that is known. */
export function poolOf({ head, allocations, segments }: Recording, row: number): string | null {
  const segment = allocations.segment[row];
  return segment > 0 && segment <= segments.length ? (head.pools[segments.pool[segment - 1]] ?? null) : null;
}

export function lifeOf(recording: Recording, row: number): string {
  const { entries, us, open } = lifetime(recording, row);
  const time = us === null ? "" : `, ${duration(us)}`;
  return `${count(entries)} ${entries === 1 ? "entry" : "entries"}${time}${open ? ", not freed" : ""}`;
}

/** A moment by the entry before it, numbered from 0 as the command does. */
export function momentText({ time, entries, head }: Recording, moment: number): string {
  if (entries === 0) return "when the snapshot was taken";
  const at = moment === 0 || !head.timed ? "" : ` (${duration(time[Math.min(moment, entries) - 1] - time[0])})`;
  return moment === 0 ? "before the first entry" : `after entry ${count(moment - 1)}${at}`;
}

/** In one sentence. */
export function sentence(recording: Recording, row: number): string {
  const { size } = recording.allocations;
  return `${bytes(size[row])}, ${purposeOf(recording, row)}, ${lineOf(recording, row)}, live for ${lifeOf(recording, row)}`;
}
