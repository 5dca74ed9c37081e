// Which allocations a filter takes.
//
// In:  a recording, parsed terms. Out: a 1 for each row that all terms take, with sums, or complaints about names that the
//      recording does not have.
//
// What depends on the call site, stream, pool or purpose is decided once for each of those, not for each row.
import type { Site } from "../api.ts";
import type { Recording } from "../recording.ts";
import { type Stacks, frameText, hasText, pathsWith, stacksWith } from "../stacks.ts";
import type { Complaint, Range, Term, Test } from "./parse.ts";

export interface Matched {
  shown: Uint8Array;
  count: number;
  /** Bytes of all of them, and of those that are live at the peak. */
  bytes: number;
  atPeak: number;
  /** The largest, first the largest of all. */
  largest: number[];
}

/** So many of the largest are listed. */
const LARGEST = 10;

/** A file by its name, or by the end of its path. */
function isFile(path: string, wanted: string): boolean {
  return path.endsWith(wanted) && (path.length === wanted.length || wanted.startsWith("/") || path[path.length - wanted.length - 1] === "/");
}

function takesSite(site: Site | null, test: Test): boolean {
  if (site === null) return false;
  if (test.kind === "line") {
    return isFile(site.file, test.file) && (test.line === null || site.line === test.line);
  }
  return (test.kind === "word" || test.kind === "frame") && takesFrame(site, test);
}

/** A word may be a part of anything; a frame that is named to its line is that line alone. */
function takesFrame(frame: Site, { kind, text }: { kind: string; text: string }): boolean {
  return kind === "word" ? frameText(frame).toLowerCase().includes(text) : hasText(frame, text);
}

/** Keeps rows one of whose frames has a text; without stacks, the program's own lines are all there is. */
function keepFrames(shown: Uint8Array, { allocations, head }: Recording, stacks: Stacks | null, test: Test & { text: string }, negated: boolean): void {
  const sites = flags(head.sites, (site) => takesSite(site, test));
  const byStack = stacks === null ? null : stacksWith(stacks, (frame) => takesFrame(frame, test));
  const wanted = negated ? 0 : 1;
  for (let row = 0; row < shown.length; row++) {
    const stack = allocations.stack[row];
    const taken = (sites[allocations.site[row]] ?? 0) === 1 || (stack > 0 && byStack?.[stack - 1] === 1) ? 1 : 0;
    if (taken !== wanted) shown[row] = 0;
  }
}

/** Keeps rows whose modules have a text; what has no stack has no module. */
function keepModules(shown: Uint8Array, { modules }: Stacks, text: string, negated: boolean): void {
  const taken = pathsWith(modules, text);
  const byNumber = new Uint8Array(taken.length + 1);
  byNumber.set(taken, 1);
  keepKinds(shown, modules.of, byNumber, negated);
}

/** Keeps rows whose number in a column has a 1 in `taken`. */
function keepKinds(shown: Uint8Array, column: ArrayLike<number>, taken: Uint8Array, negated: boolean): void {
  const wanted = negated ? 0 : 1;
  for (let row = 0; row < shown.length; row++) {
    // A number without a name is taken by nothing.
    if ((taken[column[row]] ?? 0) !== wanted) shown[row] = 0;
  }
}

function flags<T>(list: T[], take: (item: T) => boolean): Uint8Array {
  return Uint8Array.from(list, (item) => (take(item) ? 1 : 0));
}

function keepSizes(shown: Uint8Array, size: Float64Array, { least, most }: Range, negated: boolean): void {
  for (let row = 0; row < shown.length; row++) {
    if ((size[row] >= least && size[row] <= most) === negated) shown[row] = 0;
  }
}

function keepLives(shown: Uint8Array, recording: Recording, { least, most }: Range, timed: boolean, negated: boolean): void {
  const { begin, end } = recording.allocations;
  const { time, entries } = recording;
  for (let row = 0; row < shown.length; row++) {
    const last = Math.min(end[row], entries);
    const first = Math.min(begin[row], entries);
    const span = timed ? time[Math.max(last - 1, 0)] - time[Math.max(first - 1, 0)] : last - first;
    const life = Math.max(span, 0);
    if ((life >= least && life <= most) === negated) shown[row] = 0;
  }
}

/** What an allocation's pool is: that of its segment; 0 in the flags stands for "not known". */
function keepPools(shown: Uint8Array, { allocations, segments }: Recording, taken: Uint8Array, negated: boolean): void {
  const bySegment = new Uint8Array(segments.length + 1);
  for (let segment = 0; segment < segments.length; segment++) {
    bySegment[segment + 1] = taken[segments.pool[segment]] ?? 0;
  }
  keepKinds(shown, allocations.segment, bySegment, negated);
}

/** Names that a term takes, or what is wrong with it. */
function namesOf(list: string[], text: string, kind: string, exact: boolean): Uint8Array | string {
  const same = flags(list, (name) => name.toLowerCase() === text);
  const taken = same.includes(1) || exact ? same : flags(list, (name) => name.toLowerCase().includes(text));
  if (taken.includes(1)) return taken;
  const some = list.slice(0, 8).join(", ");
  return `no ${kind} is called “${text}”; there ${list.length === 1 ? "is" : "are"} ${some || "none"}${list.length > 8 ? ", …" : ""}`;
}

/** Applies one term; returns what is wrong with it, if anything is. */
function keep(shown: Uint8Array, recording: Recording, stacks: Stacks | null, { test, negated }: Term): string | null {
  const { allocations, head } = recording;
  switch (test.kind) {
    case "word":
    case "frame":
      keepFrames(shown, recording, stacks, test, negated);
      return null;
    case "module":
      if (stacks === null) return "no stacks were recorded, which tell modules";
      keepModules(shown, stacks, test.text, negated);
      return null;
    case "line":
      keepKinds(shown, allocations.site, flags(head.sites, (site) => takesSite(site, test)), negated);
      return null;
    case "size":
      keepSizes(shown, allocations.size, test.range, negated);
      return null;
    case "life":
      if (test.unit === "us" && !head.timed) return "this recording has no times; without a unit, life: counts entries";
      keepLives(shown, recording, test.range, test.unit === "us", negated);
      return null;
    case "stream":
    case "purpose":
    case "pool": {
      const list = { stream: head.streams, purpose: head.purposes, pool: head.pools }[test.kind];
      const taken = namesOf(list, test.text, test.kind, test.kind === "stream");
      if (typeof taken === "string") return taken;
      if (test.kind === "pool") keepPools(shown, recording, taken, negated);
      else keepKinds(shown, test.kind === "stream" ? allocations.stream : allocations.purpose, taken, negated);
      return null;
    }
    case "live": {
      const moment = test.entry === "peak" ? head.peak.allocatedAt : test.entry + 1;
      const { begin, end } = allocations;
      for (let row = 0; row < shown.length; row++) {
        if ((begin[row] <= moment && moment < end[row]) === negated) shown[row] = 0;
      }
      return null;
    }
    case "address": {
      const { address, size } = allocations;
      for (let row = 0; row < shown.length; row++) {
        const covers = address[row] <= test.address && test.address < address[row] + size[row];
        if (covers === negated) shown[row] = 0;
      }
      return null;
    }
  }
}

function summed({ allocations, head }: Recording, shown: Uint8Array): Matched {
  const { size, begin, end } = allocations;
  const peak = head.peak.allocatedAt;
  const largest: number[] = [];
  let count = 0;
  let bytes = 0;
  let atPeak = 0;
  for (let row = 0; row < shown.length; row++) {
    if (shown[row] === 0) continue;
    count++;
    bytes += size[row];
    if (begin[row] <= peak && peak < end[row]) atPeak += size[row];
    if (largest.length === LARGEST && size[row] <= size[largest[LARGEST - 1]]) continue;
    let place = largest.length;
    while (place > 0 && size[largest[place - 1]] < size[row]) place--;
    largest.splice(place, 0, row);
    if (largest.length > LARGEST) largest.pop();
  }
  return { shown, count, bytes, atPeak, largest };
}

/** The rows that all terms take. Terms that do not fit the recording are complained about and left out. */
export function match(recording: Recording, terms: Term[], stacks: Stacks | null = null): { matched: Matched; complaints: Complaint[] } {
  const shown = new Uint8Array(recording.allocations.length).fill(1);
  const complaints: Complaint[] = [];
  for (const term of terms) {
    const wrong = keep(shown, recording, stacks, term);
    if (wrong !== null) complaints.push({ from: term.from, to: term.to, text: wrong });
  }
  return { matched: summed(recording, shown), complaints };
}
