// What is live at a moment, by stack or by module: calls with common beginnings joined, the outermost on top. Pure.
//
// In:  a recording, its stacks, a moment, the rows that the filter takes. Out: boxes as wide as their share, the largest first.
//      The same as in `tonnage report --html`, for any moment.
import type { Recording } from "../recording.ts";
import type { Paths } from "../stacks.ts";

export interface Box {
  /** The frame's number; -1 for everything, -2 for what has no stack. */
  frame: number;
  depth: number;
  /** Where it begins and how wide it is, as parts of the whole. */
  at: number;
  wide: number;
  bytes: number;
  blocks: number;
  /** Place of the box that it is part of; the first is part of itself. */
  parent: number;
}

export const EVERYTHING = -1;
export const NO_STACK = -2;

/** The most boxes, and the narrowest: a third of a dot on a wide page. */
const MOST = 2000;
const NARROWEST = 0.0003;

interface Node {
  frame: number;
  parent: number;
  depth: number;
  bytes: number;
  blocks: number;
}

/** Bytes and blocks of each way that is live; place 0 has what has none. */
function byWay({ allocations }: Recording, of: Uint32Array, moment: number, shown: Uint8Array | null): Map<number, [number, number]> {
  const { begin, end, requested, length } = allocations;
  const found = new Map<number, [number, number]>();
  for (let row = 0; row < length; row++) {
    if (begin[row] > moment || moment >= end[row] || (shown !== null && shown[row] === 0)) continue;
    const sum = found.get(of[row]);
    if (sum === undefined) found.set(of[row], [requested[row], 1]);
    else {
      sum[0] += requested[row];
      sum[1] += 1;
    }
  }
  return found;
}

function nodesOf(stacks: Paths, sums: Map<number, [number, number]>): Node[] {
  const nodes: Node[] = [{ frame: EVERYTHING, parent: 0, depth: 0, bytes: 0, blocks: 0 }];
  const known = new Map<string, number>();
  const add = (frame: number, parent: number, [bytes, blocks]: [number, number]): number => {
    const key = `${parent} ${frame}`;
    let place = known.get(key);
    if (place === undefined) {
      place = nodes.length;
      known.set(key, place);
      nodes.push({ frame, parent, depth: nodes[parent].depth + 1, bytes: 0, blocks: 0 });
    }
    nodes[place].bytes += bytes;
    nodes[place].blocks += blocks;
    return place;
  };
  for (const [stack, sum] of sums) {
    nodes[0].bytes += sum[0];
    nodes[0].blocks += sum[1];
    const [from, to] = stack === 0 ? [0, 0] : [stacks.starts[stack - 1] ?? 0, stacks.starts[stack] ?? 0];
    if (to <= from) {
      add(NO_STACK, 0, sum);
      continue;
    }
    let at = 0;
    for (let place = to - 1; place >= from; place--) at = add(stacks.frames[place], at, sum);
  }
  return nodes;
}

export function boxes(recording: Recording, stacks: Paths, moment: number, shown: Uint8Array | null): Box[] {
  const nodes = nodesOf(stacks, byWay(recording, stacks.of, moment, shown));
  const whole = Math.max(nodes[0].bytes, 1);
  // A call has no more bytes than the one that leads to it, which therefore comes first.
  const order = [...nodes.keys()].sort((a, b) => nodes[b].bytes - nodes[a].bytes || nodes[a].depth - nodes[b].depth || a - b).slice(0, MOST);
  const place = new Map<number, number>();
  const filled = new Float64Array(nodes.length);
  const found: Box[] = [];
  for (const it of order) {
    const { frame, parent, depth, bytes, blocks } = nodes[it];
    const above = it === 0 ? 0 : place.get(parent);
    if (above === undefined || (it !== 0 && bytes / whole < NARROWEST)) continue;
    const at = it === 0 ? 0 : found[above].at + filled[parent] / whole;
    if (it !== 0) filled[parent] += bytes;
    place.set(it, found.length);
    found.push({ frame, depth, at, wide: it === 0 ? 1 : bytes / whole, bytes, blocks, parent: above });
  }
  return found;
}

/** Whether a box lies within another, or is it. */
export function isWithin(list: readonly Box[], inner: number, outer: number): boolean {
  let at = inner;
  while (at !== outer && at !== 0) at = list[at].parent;
  return at === outer;
}

/** Requested bytes of all that is live at a moment, whatever the filter takes. */
export function liveAt({ allocations }: Recording, moment: number): number {
  const { begin, end, requested, length } = allocations;
  let sum = 0;
  for (let row = 0; row < length; row++) if (begin[row] <= moment && moment < end[row]) sum += requested[row];
  return sum;
}

/** The largest allocations that are live at a moment, largest first. */
export function largestAt({ allocations }: Recording, moment: number, shown: Uint8Array | null, most: number): number[] {
  const { begin, end, requested, length } = allocations;
  const found: number[] = [];
  for (let row = 0; row < length; row++) {
    if (begin[row] > moment || moment >= end[row] || (shown !== null && shown[row] === 0)) continue;
    if (found.length === most && requested[row] <= requested[found[most - 1]]) continue;
    let place = found.length;
    while (place > 0 && requested[found[place - 1]] < requested[row]) place--;
    found.splice(place, 0, row);
    if (found.length > most) found.pop();
  }
  return found;
}
