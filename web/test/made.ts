// Small recordings, for tests.
import type { RecordingInfo, TimelineHead } from "../src/api.ts";
import type { Recording } from "../src/recording.ts";

export interface Row {
  begin?: number;
  end?: number;
  done?: number;
  size?: number;
  address?: number;
  stream?: number;
  site?: number;
  purpose?: number;
  segment?: number;
}

export interface SegmentRow {
  address: number;
  size: number;
  begin?: number;
  end?: number;
  stream?: number;
  pool?: number;
}

/** A recording of `entries` entries, one every ten microseconds. */
export function recordingOf(entries: number, rows: Row[], segments: SegmentRow[] = [], head: Partial<TimelineHead> = {}): Recording {
  const column = (name: keyof Row, fallback: number) => rows.map((row) => row[name] ?? fallback);
  const home = (name: keyof SegmentRow, fallback: number) => segments.map((row) => row[name] ?? fallback);
  const allocated = new Float64Array(entries + 1);
  for (const { begin = 0, end = entries + 1, size = 0 } of rows) {
    for (let moment = begin; moment < Math.min(end, entries + 1); moment++) allocated[moment] += size;
  }
  const most = Math.max(...allocated, 0);
  return {
    info: { id: 0, name: "made", kind: "file", entries, conf: "" } as unknown as RecordingInfo,
    entries,
    time: Float64Array.from({ length: entries }, (_, entry) => entry * 10),
    allocated,
    reserved: allocated,
    head: {
      columns: [], sites: [null], streams: ["0"], pools: ["small", "large"], purposes: ["unknown", "activations", "parameters"],
      iterations: [], phases: [], failed: 0, ooms: [], limit: null, timed: true,
      peak: { allocated: most, allocatedAt: allocated.indexOf(most), reserved: most, reservedAt: 0 },
      ...head,
    },
    allocations: {
      length: rows.length,
      address: Float64Array.from(column("address", 2 ** 40)),
      requested: Float64Array.from(column("size", 0)),
      size: Float64Array.from(column("size", 0)),
      begin: Uint32Array.from(column("begin", 0)),
      end: Uint32Array.from(column("end", 0xffffffff)),
      done: Uint32Array.from(rows.map((row) => row.done ?? row.end ?? 0xffffffff)),
      stream: Uint16Array.from(column("stream", 0)),
      site: Uint32Array.from(column("site", 0)),
      stack: new Uint32Array(rows.length),
      purpose: Uint8Array.from(column("purpose", 0)),
      segment: Uint32Array.from(column("segment", 0)),
    },
    segments: {
      length: segments.length,
      address: Float64Array.from(home("address", 0)),
      size: Float64Array.from(home("size", 0)),
      begin: Uint32Array.from(home("begin", 0)),
      end: Uint32Array.from(home("end", 0xffffffff)),
      stream: Uint16Array.from(home("stream", 0)),
      pool: Uint16Array.from(home("pool", 0)),
    },
  };
}

/** Blocks of one segment, side by side, of which one comes where another was. */
export const NEIGHBOURS = recordingOf(
  10,
  [
    { begin: 1, end: 5, size: 100, address: 1000, segment: 1 },
    { begin: 2, end: 9, size: 50, address: 1100, segment: 1 },
    { begin: 3, end: 9, size: 60, address: 1200, segment: 1 },
    { begin: 6, size: 40, address: 1040, segment: 1 },
  ],
  [{ address: 1000, size: 400 }],
);
