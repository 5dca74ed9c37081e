// A fleet's bytes, as columns. In: what the server sent. Out: a Fleet, its texts made harmless to read.
import type { FleetFile, FleetHead, FleetSection } from "../api.ts";
import { fromEnd, plain, plainSentences } from "../format.ts";
import { decodeColumns } from "../recording.ts";

export interface Fleet {
  head: FleetHead;
  files: FleetFile[];
  /** Most live requested and most reserved bytes of each file; not a number where it could not be read. */
  live: Float64Array;
  reserved: Float64Array;
  /** How many iterations there were of each. */
  iterations: Float64Array;
  /** Where the iterations that are kept of each file begin; one more than files. */
  starts: Uint32Array;
  /** Of each of these, its number, most live and most reserved bytes. */
  number: Float64Array;
  liveIn: Float64Array;
  reservedIn: Float64Array;
  /** Files by their address. */
  byAddress: Map<string, number>;
}

/** Reads what GET fleet answers. */
export function decodeFleet(bytes: ArrayBuffer): Fleet {
  const { head, column } = decodeColumns<FleetHead>(bytes);
  const byAddress = new Map(head.files.map((file, number) => [file.address, number]));
  return {
    head,
    files: head.files,
    live: column("live"),
    reserved: column("reserved"),
    iterations: column("iterations"),
    starts: column("starts"),
    number: column("steps.number"),
    liveIn: column("steps.live"),
    reservedIn: column("steps.reserved"),
    byAddress,
  };
}

/** Letters of an address that stand for a rank whose name tells none. */
const SHORT = 40;

/** What a file goes by: its rank and step, else the end of its address. */
export function nameOf(file: FleetFile): string {
  if (file.rank === null) return fromEnd(plain(file.address), SHORT);
  return file.step === null ? `rank ${file.rank}` : `rank ${file.rank} at step ${file.step}`;
}

/** The parts of a name that groups can be made by. */
export const PARTS = ["node", "pp", "tp", "dp"] as const;
export type Part = (typeof PARTS)[number];

/** Where a file belongs, as its name tells: "node 3, pp 1, dp 7". */
export function placeOf(file: FleetFile): string {
  const parts = PARTS.filter((part) => file[part] !== null).map((part) => `${part} ${file[part]}`);
  return parts.join(", ");
}

/** The lists with texts that can be read. */
export function readable(sections: FleetSection[]): FleetSection[] {
  return sections.map(({ kind, title, lines }) => ({
    kind,
    title: plain(title),
    lines: lines.map(({ file, name, words }) => ({ file, name: plain(name), words: words.map(plainSentences) })),
  }));
}
