// Free memory by the reason for which it is of no use, as the report tells it.
//
// In:  a recording, a moment, the stream that grew. Out: free pieces of one kind, which add up to the report's figure.
import type { Recording } from "../recording.ts";
import { type Group, type Strip, gaps, momentAt } from "../segments/moment.ts";
import type { Piece } from "../store.ts";

export const FREE_KINDS = ["private_pool", "stream", "pinned_segment", "fragmentation"] as const;
export type FreeKind = (typeof FREE_KINDS)[number];

/** Why what is free in a strip is of no use; of several reasons the first counts. */
function kindOf(recording: Recording, group: Group, strip: Strip, blocks: Uint32Array, moment: number, grew: string): FreeKind {
  const { head, allocations } = recording;
  if ((head.pools[group.pool] ?? "").startsWith("private")) return "private_pool";
  if ((head.streams[group.stream] ?? "") !== grew) return "stream";
  const only = strip.to - strip.from === 1 ? blocks[strip.from] : -1;
  return only >= 0 && moment < allocations.end[only] ? "pinned_segment" : "fragmentation";
}

export function freePieces(recording: Recording, moment: number, kind: FreeKind, grew: string): Piece[] {
  const found: Piece[] = [];
  each(recording, moment, kind, grew, (_, from, to) => found.push({ address: from, size: to - from }));
  return found;
}

/** The rows that alone keep a segment with something free in it. */
export function pinning(recording: Recording, moment: number, grew: string): Set<number> {
  const rows = new Set<number>();
  each(recording, moment, "pinned_segment", grew, (row) => rows.add(row));
  return rows;
}

/** Each free piece of one kind, with the first block of its strip. */
function each(recording: Recording, moment: number, kind: FreeKind, grew: string, take: (first: number, from: number, to: number) => void): void {
  const { groups, blocks } = momentAt(recording, moment);
  for (const group of groups) {
    for (const strip of group.strips) {
      if (kindOf(recording, group, strip, blocks, moment, grew) !== kind) continue;
      gaps(recording, strip, blocks, (from, to) => take(blocks[strip.from], from, to));
    }
  }
}
