// Every segment and block at one moment.
//
// In:  a recording, a moment. Out: strips of memory by pool and stream, the blocks in each by address, and sums.
//      What lies between the blocks of a strip is free.
//
// A strip is a segment. An expandable segment is recorded as the parts in which its pages were mapped; parts that touch are
// one strip, since blocks lie across them.
import type { Recording } from "../recording.ts";

export interface Strip {
  address: number;
  size: number;
  /** Its blocks are those of `Moment.blocks` from here up to there, by address. */
  from: number;
  to: number;
}

export interface Group {
  pool: number;
  stream: number;
  /** By address. */
  strips: Strip[];
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
  /** Rows of blocks, strip after strip. */
  blocks: Uint32Array;
  sums: Sums;
}

/** Blocks that are handed out or pending, by segment and then by address: those of segment s from starts[s] to starts[s + 1]. */
function blocksAt({ allocations, segments }: Recording, moment: number): { rows: Uint32Array; starts: Uint32Array; homeless: number } {
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
  const rows = new Uint32Array(active.length);
  active.sort((a, b) => address[a] - address[b]);
  // Each start moves to its end while it is filled, which is the next one's start.
  for (const row of active) {
    rows[starts[segment[row]]++] = row;
  }
  return { rows, starts: starts.slice(0, segments.length + 1), homeless };
}

/** Segments that are there, by pool, stream and address. */
function segmentsAt({ segments }: Recording, moment: number): number[] {
  const { begin, end, pool, stream, address, length } = segments;
  const found: number[] = [];
  for (let segment = 0; segment < length; segment++) {
    if (begin[segment] <= moment && moment < end[segment]) found.push(segment);
  }
  return found.sort((a, b) => pool[a] - pool[b] || stream[a] - stream[b] || address[a] - address[b]);
}

export function momentAt(recording: Recording, moment: number): Moment {
  const { allocations, segments } = recording;
  const { rows, starts, homeless } = blocksAt(recording, moment);
  const isExpandable = /expandable_segments\s*:\s*true/i.test(recording.info.conf);
  const blocks = new Uint32Array(rows.length);
  const groups: Group[] = [];
  let filled = 0;
  for (const segment of segmentsAt(recording, moment)) {
    const pool = segments.pool[segment];
    const stream = segments.stream[segment];
    let group = groups[groups.length - 1];
    if (group === undefined || group.pool !== pool || group.stream !== stream) {
      group = { pool, stream, strips: [], reserved: 0, allocated: 0 };
      groups.push(group);
    }
    const address = segments.address[segment];
    const last = group.strips[group.strips.length - 1];
    const top = last !== undefined && last.to > last.from ? topOf(recording, blocks[last.to - 1]) : 0;
    let strip = last;
    if (strip !== undefined && strip.address + strip.size === address && (isExpandable || top > address)) {
      strip.size += segments.size[segment];
    } else {
      strip = { address, size: segments.size[segment], from: filled, to: filled };
      group.strips.push(strip);
    }
    for (let place = starts[segment]; place < starts[segment + 1]; place++) {
      blocks[filled++] = rows[place];
      if (moment < allocations.end[rows[place]]) group.allocated += allocations.size[rows[place]];
    }
    strip.to = filled;
    group.reserved += segments.size[segment];
  }
  return { moment, groups, blocks: blocks.subarray(0, filled), sums: sumsOf(recording, moment, groups, blocks, homeless) };
}

function topOf({ allocations }: Recording, row: number): number {
  return allocations.address[row] + allocations.size[row];
}

/** Calls back for what is free in a strip. */
export function gaps(recording: Recording, strip: Strip, blocks: Uint32Array, found: (from: number, to: number) => void): void {
  let edge = strip.address;
  for (let place = strip.from; place < strip.to; place++) {
    const bottom = recording.allocations.address[blocks[place]];
    if (bottom > edge) found(edge, bottom);
    edge = Math.max(edge, topOf(recording, blocks[place]));
  }
  if (strip.address + strip.size > edge) found(edge, strip.address + strip.size);
}

function sumsOf(recording: Recording, moment: number, groups: Group[], blocks: Uint32Array, homeless: number): Sums {
  const sums: Sums = { segments: 0, reserved: 0, allocated: 0, pending: 0, free: 0, largestFree: 0, homeless };
  const { size, end } = recording.allocations;
  for (const group of groups) {
    sums.segments += group.strips.length;
    sums.reserved += group.reserved;
    sums.allocated += group.allocated;
    for (const strip of group.strips) {
      for (let place = strip.from; place < strip.to; place++) {
        if (moment >= end[blocks[place]]) sums.pending += size[blocks[place]];
      }
      gaps(recording, strip, blocks, (from, to) => {
        sums.free += to - from;
        sums.largestFree = Math.max(sums.largestFree, to - from);
      });
    }
  }
  return sums;
}

/** What lies directly below or above a block. */
export interface Neighbour {
  /** Its row, or -1 for free memory. */
  row: number;
  bytes: number;
}

export interface Neighbours {
  below: Neighbour | null;
  above: Neighbour | null;
}

/** The neighbours of a block at a moment; null where the segment ends or is not known. */
export function neighbours(recording: Recording, row: number, moment: number): Neighbours {
  const { groups, blocks } = momentAt(recording, moment);
  const { size, address } = recording.allocations;
  const place = blocks.indexOf(row);
  const strip = groups.flatMap((it) => it.strips).find((it) => it.from <= place && place < it.to);
  if (strip === undefined) {
    return { below: null, above: null };
  }
  const below = place > strip.from ? blocks[place - 1] : -1;
  const above = place + 1 < strip.to ? blocks[place + 1] : -1;
  const under = address[row] - (below < 0 ? strip.address : topOf(recording, below));
  const over = (above < 0 ? strip.address + strip.size : address[above]) - topOf(recording, row);
  const side = (gap: number, other: number): Neighbour | null =>
    gap > 0 ? { row: -1, bytes: gap } : other < 0 ? null : { row: other, bytes: size[other] };
  return { below: side(under, below), above: side(over, above) };
}
