// What a comparison keeps of a recording. In: a recording. Out: its figures, and few columns for each clock.
//
// Ranks come by the dozen: whole recordings are let go once they are summed up.
import type { RecordingInfo } from "../api.ts";
import { type Clock, type Columns, columns, length, ticks } from "../chart/columns.ts";
import type { Recording } from "../recording.ts";

export const CLOCKS: Clock[] = ["entries", "time", "allocations"];

/** Enough for a small drawing. */
const COLUMNS = 480;

export interface Summary {
  info: RecordingInfo;
  reserved: number;
  allocated: number;
  /** Reserved and not allocated, where reserved memory first peaks. */
  unused: number;
  limit: number | null;
  failed: number;
  timed: boolean;
  length: Record<Clock, number>;
  columns: Record<Clock, Columns>;
}

export function summary(recording: Recording): Summary {
  const { info, head } = recording;
  const lengths = CLOCKS.map((clock) => [clock, length(recording, clock)] as const);
  const drawn = lengths.map(([clock, until]) => [clock, columns(recording, ticks(recording, clock), until, COLUMNS)] as const);
  const at = head.peak.reservedAt;
  return {
    info,
    reserved: head.peak.reserved,
    allocated: head.peak.allocated,
    unused: recording.reserved[at] - recording.allocated[at],
    limit: head.limit,
    failed: head.failed,
    timed: head.timed,
    length: Object.fromEntries(lengths) as Record<Clock, number>,
    columns: Object.fromEntries(drawn) as Record<Clock, Columns>,
  };
}

/** The one that reserves most: what it needs, the device must have. */
export function tightest(all: Summary[]): Summary | null {
  return all.reduce<Summary | null>((best, it) => (best === null || it.reserved > best.reserved ? it : best), null);
}

/** Scales that all drawings share: the end of the clock and the most bytes. */
export function scales(all: Summary[], clock: Clock): { until: number; most: number } {
  return {
    until: Math.max(0, ...all.map((it) => it.length[clock])),
    most: Math.max(0, ...all.map((it) => it.reserved)),
  };
}
