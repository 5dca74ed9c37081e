// Every segment and block at one moment.
//
// In:  a recording, a moment. Out: segments by pool and stream, the blocks in each by address, and sums.
//      What lies between the blocks of a segment is free.
import type { Recording } from "../recording.ts";

export interface Group {
  pool: number;
  stream: number;
  /** Rows of segments, by address. */
  segments: number[];
  reserved: number;
  allocated: number;
}

export interface Sums {
  segments: number;
  reserved: number;
  allocated: number;
  /** Freed, but another stream may still use it. */
  pending: number;
  free: number;
  largestFree: number;
  /** Live allocations whose segment is not known. */
  homeless: number;
}

export interface Moment {
  moment: number;
  groups: Group[];
  /** Rows of blocks: those of segment s from starts[s] up to starts[s + 1], by address. */
  blocks: Uint32Array;
  starts: Uint32Array;
  sums: Sums;
}

/** Blocks that are handed out or pending, by segment. */
function blocksAt({ allocations, segments }: Recording, moment: number): { blocks: Uint32Array; starts: Uint32Array; homeless: number } {
  const { begin, done, end, segment, address, length } = allocations;
  const starts = new Uint32Array(segments.length + 2);
  const active: number[] = [];
  let homeless = 0;
  for (let row = 0; row < length; row++) {
    if (begin[row] > moment || moment >= Math.max(done[row], end[row])) continue;
    const home = segment[row];
    if (home === 0 || home > segments.length) {
      homeless++;
      continue;
    }
    active.push(row);
    starts[home + 1]++;
  }
  for (let place = 1; place < starts.length; place++) {
    starts[place] += starts[place - 1];
  }
  const blocks = new Uint32Array(active.length);
  active.sort((a, b) => address[a] - address[b]);
  // Each start moves to its end while it is filled, which is the next one's start: one place to the left afterwards.
  for (const row of active) {
    blocks[starts[segment[row]]++] = row;
  }
  return { blocks, starts: starts.slice(0, segments.length + 1), homeless };
}

export function momentOf(recording: Recording, moment: number): Moment {
  const { allocations, segments } = recording;
  const { blocks, starts, homeless } = blocksAt(recording, moment);
  const groups = new Map<number, Group>();
  const sums: Sums = { segments: 0, reserved: 0, allocated: 0, pending: 0, free: 0, largestFree: 0, homeless };
  for (let segment = 0; segment < segments.length; segment++) {
    if (segments.begin[segment] > moment || moment >= segments.end[segment]) continue;
    const pool = segments.pool[segment];
    const stream = segments.stream[segment];
    const key = pool * 65536 + stream;
    const group = groups.get(key) ?? { pool, stream, segments: [], reserved: 0, allocated: 0 };
    groups.set(key, group);
    group.segments.push(segment);
    group.reserved += segments.size[segment];
    let edge = segments.address[segment];
    const last = edge + segments.size[segment];
    const gap = (to: number) => {
      sums.largestFree = Math.max(sums.largestFree, to - edge);
      sums.free += Math.max(to - edge, 0);
    };
    for (let place = starts[segment]; place < starts[segment + 1]; place++) {
      const row = blocks[place];
      const size = allocations.size[row];
      if (moment < allocations.end[row]) {
        sums.allocated += size;
        group.allocated += size;
      } else {
        sums.pending += size;
      }
      gap(allocations.address[row]);
      edge = Math.max(edge, allocations.address[row] + size);
    }
    gap(last);
  }
  const list = [...groups.values()].sort((a, b) => a.pool - b.pool || a.stream - b.stream);
  for (const group of list) {
    group.segments.sort((a, b) => segments.address[a] - segments.address[b]);
    sums.segments += group.segments.length;
    sums.reserved += group.reserved;
  }
  return { moment, groups: list, blocks, starts, sums };
}
