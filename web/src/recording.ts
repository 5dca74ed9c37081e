// A timeline's bytes, as columns. In: what the server sent. Out: a Recording, or an error that says what is wrong.
//
// Moments are counted as "entries that have happened": 0 is before the first, `entries` after the last.
// An allocation is live after moment m if begin <= m < end; its block is active until m < done.
import type { Column, RecordingInfo, TimelineHead } from "./api.ts";
import { plain } from "./format.ts";

export interface Allocations {
  length: number;
  address: Float64Array;
  requested: Float64Array;
  size: Float64Array;
  begin: Uint32Array;
  end: Uint32Array;
  done: Uint32Array;
  stream: Uint16Array;
  site: Uint32Array;
  /** Number of the stack, plus one; 0 if not recorded. */
  stack: Uint32Array;
  purpose: Uint8Array;
  /** Row of the segment, plus one; 0 if not known. */
  segment: Uint32Array;
}

export interface Segments {
  length: number;
  address: Float64Array;
  size: Float64Array;
  begin: Uint32Array;
  end: Uint32Array;
  stream: Uint16Array;
  pool: Uint16Array;
}

export interface Recording {
  info: RecordingInfo;
  head: TimelineHead;
  entries: number;
  /** Microseconds from the first entry, for each entry. */
  time: Float64Array;
  /** Bytes at each moment: one more than entries. */
  allocated: Float64Array;
  reserved: Float64Array;
  allocations: Allocations;
  segments: Segments;
}

const MAGIC = 0x31564e54; // "TNV1"

type Columns = Map<string, Float64Array | Uint32Array | Uint16Array | Uint8Array>;

/** What stands before columns. */
interface Head {
  columns: Column[];
}

function columnsOf(bytes: ArrayBuffer, head: Head, start: number): Columns {
  const found: Columns = new Map();
  for (const { name, type, length, offset } of head.columns) {
    const make = { f64: Float64Array, u32: Uint32Array, u16: Uint16Array, u8: Uint8Array }[type];
    const at = start + offset;
    if (make === undefined || at + length * make.BYTES_PER_ELEMENT > bytes.byteLength) {
      throw new Error(`the timeline ends within its column ${name}`);
    }
    found.set(name, new make(bytes, at, length));
  }
  return found;
}

/** The head with its texts made harmless to read. */
function readable(head: TimelineHead): TimelineHead {
  return {
    ...head,
    sites: (head.sites ?? []).map(
      (site) => site && { file: plain(site.file), line: site.line, function: plain(site.function) },
    ),
    streams: (head.streams ?? []).map(plain),
    pools: (head.pools ?? []).map(plain),
    purposes: (head.purposes ?? []).map(plain),
    phases: (head.phases ?? []).map((phase) => ({ ...phase, name: plain(phase.name) })),
  };
}

/** Reads a head and its columns: magic, length of the head, head as JSON, columns. All little-endian. */
export function decodeColumns<H extends Head>(bytes: ArrayBuffer): { head: H; column: <T>(name: string) => T } {
  const view = new DataView(bytes);
  if (bytes.byteLength < 8 || view.getUint32(0, true) !== MAGIC) {
    throw new Error("this is not a timeline");
  }
  const length = view.getUint32(4, true);
  if (8 + length > bytes.byteLength) {
    throw new Error("the timeline ends within its head");
  }
  const head = JSON.parse(new TextDecoder().decode(new Uint8Array(bytes, 8, length))) as H;
  const columns = columnsOf(bytes, head, 8 + length);
  const column = <T>(name: string): T => {
    const found = columns.get(name);
    if (found === undefined) {
      throw new Error(`the timeline has no column ${name}`);
    }
    return found as T;
  };
  return { head, column };
}

/** Reads what GET timeline answers. */
export function decode(info: RecordingInfo, bytes: ArrayBuffer): Recording {
  const decoded = decodeColumns<TimelineHead>(bytes);
  const head = readable(decoded.head);
  const { column } = decoded;
  const address = column<Float64Array>("allocations.address");
  const segment = column<Float64Array>("segments.address");
  const time = column<Float64Array>("time");
  return {
    info,
    head,
    entries: time.length,
    time,
    allocated: column("allocated"),
    reserved: column("reserved"),
    allocations: {
      length: address.length,
      address,
      requested: column("allocations.requested"),
      size: column("allocations.size"),
      begin: column("allocations.begin"),
      end: column("allocations.end"),
      done: column("allocations.done"),
      stream: column("allocations.stream"),
      site: column("allocations.site"),
      stack: column("allocations.stack"),
      purpose: column("allocations.purpose"),
      segment: column("allocations.segment"),
    },
    segments: {
      length: segment.length,
      address: segment,
      size: column("segments.size"),
      begin: column("segments.begin"),
      end: column("segments.end"),
      stream: column("segments.stream"),
      pool: column("segments.pool"),
    },
  };
}
