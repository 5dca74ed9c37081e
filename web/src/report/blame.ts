// Whom a cause blames. In: a report, one of its causes, the recording. Out: rows to light up, free pieces, where to look.
//
// The report names the largest blocks; the page has every row, so all that the cause means are lit up:
// - memory in use is blamed where it is: rows that are live, pending, or alone in their segment at the peak;
// - free memory is marked itself, every piece of it; in the timeline, where it has no place, what lay last in the largest
//   pieces stands for it;
// - what grows is blamed by its lines, wherever they asked.
import type { Report, Verdict } from "../api.ts";
import { bytes, count } from "../format.ts";
import type { Recording } from "../recording.ts";
import type { Piece } from "../store.ts";
import { FREE_KINDS, freePieces, pinning } from "./free.ts";

export interface Blamed {
  rows: Set<number>;
  /** Free memory that is meant; empty where the cause means memory in use. */
  pieces: Piece[];
  moment: number;
  /** Moments to show. */
  from: number;
  to: number;
  words: string;
}

/** Moments to show around one, at least. */
const LEAST = 64;

export function blamed(report: Report, cause: Verdict, recording: Recording): Blamed {
  const { entries } = recording;
  const after = (event: number) => Math.min(entries, event + 1);
  const reserved = after(report.peak.reserved.event);
  const look = (rows: Set<number>, moment: number, words: string, pieces: Piece[] = []): Blamed => ({
    rows, pieces, moment, words, ...around(moment, entries),
  });
  const kind = FREE_KINDS.find((it) => it === cause.cause);
  const grew = String(report.peak.reserved.stream);
  const pieces = kind === undefined ? [] : freePieces(recording, reserved, kind, grew);
  const lines = (kind: string) => sitesOf(recording, report.growth.lines.filter((it) => it.kind === kind).map((it) => it.line));
  switch (cause.cause) {
    case "need": {
      const moment = after(report.peak.event);
      return look(liveAt(recording, moment), moment, "all that is live where most is live");
    }
    case "leak": {
      const sites = lines("leak");
      const stays = outliving(recording);
      const rows = select(recording, (row, { site }) => sites.has(site[row]) && stays(row));
      return { rows, pieces: [], moment: reserved, from: 0, to: entries + 1, words: "what these lines ask for and the next iterations do not free" };
    }
    case "longer_inputs":
    case "growing_tensor": {
      const sites = lines(cause.cause);
      const rows = select(recording, (row, { begin, site }) => begin[row] > 0 && sites.has(site[row]));
      return { rows, pieces: [], moment: after(report.peak.event), from: 0, to: entries + 1, words: "what the lines that grow ask for" };
    }
    case "pinned_segment":
      return look(pinning(recording, reserved, grew), reserved, "each the only one in use in its segment", pieces);
    case "pending":
      return look(select(recording, (row, { end, done }) => end[row] <= reserved && reserved < done[row]), reserved, "freed, but still in use by another stream");
    case "unsplit":
    case "rounding": {
      const granule = cause.cause === "unsplit" ? 512 : 1;
      const larger = (row: number) => {
        const { size, requested } = recording.allocations;
        return size[row] > Math.ceil(requested[row] / granule) * granule;
      };
      return look(new Set([...liveAt(recording, reserved)].filter(larger)), reserved, "live, and larger than what was asked for");
    }
    case "outside":
      return look(new Set(), reserved, "held by others: no block of this job is to blame");
    default: {
      const largest = report.blame.find((it) => it.kind === cause.cause)?.blocks ?? [];
      const rows = lastIn(recording, largest, reserved);
      const found = look(rows, reserved, "what lay last where the largest free pieces are", pieces);
      for (const row of rows) {
        found.from = Math.max(0, Math.min(found.from, recording.allocations.end[row] - LEAST / 2));
      }
      return found;
    }
  }
}

/** What is lit up and marked, in words. */
export function litWords({ rows, pieces, words }: Blamed): string {
  const blocks = rows.size === 0 ? "Nothing is lit up" : `${count(rows.size)} ${rows.size === 1 ? "block is" : "blocks are"} lit up`;
  const free = pieces.reduce((sum, it) => sum + it.size, 0);
  const marked = pieces.length === 0 ? ""
    : ` In the segment map ${count(pieces.length)} free ${pieces.length === 1 ? "piece is" : "pieces are"} marked, ${bytes(free)} in all.`;
  return `${blocks}: ${words}.${marked}`;
}

type Rows = Recording["allocations"];

function select({ allocations }: Recording, takes: (row: number, rows: Rows) => boolean): Set<number> {
  const found = new Set<number>();
  for (let row = 0; row < allocations.length; row += 1) {
    if (takes(row, allocations)) {
      found.add(row);
    }
  }
  return found;
}

export function liveAt(recording: Recording, moment: number): Set<number> {
  return select(recording, (row, { begin, end }) => begin[row] <= moment && moment < end[row]);
}

/**
 * Tells rows that outlive the iteration after their own. A program that ends frees what it leaked, so that nothing
 * frees a block before the end is not asked for, unless there are no iterations to tell it by.
 */
function outliving({ head, entries, allocations: { begin, end } }: Recording): (row: number) => boolean {
  const { iterations } = head;
  if (iterations.length === 0) {
    return (row) => begin[row] > 0 && end[row] > entries;
  }
  return (row) => {
    // The first iteration that begins after the row.
    let [low, high] = [0, iterations.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (iterations[middle] < begin[row]) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    const until = iterations[low + 1] ?? entries;
    return begin[row] > iterations[0] && end[row] > until;
  };
}

/** For each piece of memory, the row that was freed there last. */
function lastIn(recording: Recording, pieces: { address: number; size: number }[], moment: number): Set<number> {
  const { address, size, end } = recording.allocations;
  const last = pieces.map(() => -1);
  for (let row = 0; row < recording.allocations.length; row += 1) {
    if (end[row] > moment) {
      continue;
    }
    pieces.forEach((piece, place) => {
      const within = address[row] < piece.address + piece.size && piece.address < address[row] + size[row];
      if (within && (last[place] < 0 || end[row] >= end[last[place]])) {
        last[place] = row;
      }
    });
  }
  return new Set(last.filter((row) => row >= 0));
}

/** The numbers of these lines among the recording's call sites. */
function sitesOf({ head }: Recording, lines: (string | null)[]): Set<number> {
  const wanted = new Set(lines);
  const found = new Set<number>();
  head.sites.forEach((site, number) => {
    if (wanted.has(site === null ? null : `${site.file}:${site.line}`)) {
      found.add(number);
    }
  });
  return found;
}

/** A sixth of the whole with the moment in its middle, as far as the ends allow. */
export function around(moment: number, entries: number): { from: number; to: number } {
  const wide = Math.min(entries + 1, Math.max(LEAST, entries / 6));
  const from = Math.max(0, Math.min(moment - wide / 2, entries + 1 - wide));
  return { from, to: from + wide };
}
