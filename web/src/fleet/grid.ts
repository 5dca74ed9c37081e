// Ranks by steps. In: a Fleet. Out: a Grid: a row for each rank, a column for the peak and one for each step. Pure.
//
// Steps are the iterations of recordings; where ranks have snapshots at several steps, by their names, these are the steps.
import type { Fleet } from "./table.ts";

export interface Grid {
  /** What steps are; "none" if no file tells of any. */
  steps: "iterations" | "snapshots" | "none";
  /** The number of each column; the first, of peaks, has none. */
  columns: (number | null)[];
  /** The files of each rank, by step. */
  rows: number[][];
  /** Cell by cell, row after row: the file that it is of, or -1 where there is none, */
  file: Int32Array;
  /** and its most live requested and most reserved bytes; not a number where nothing is known. */
  live: Float64Array;
  reserved: Float64Array;
}

/** Columns, and cells, that a page holds of a stranger's dataset: the middle of more steps is left out. */
const MOST_COLUMNS = 4096;
const MOST_CELLS = 1 << 24;

/** The ranks that have snapshots at several steps, each with its files by step; null if files are not told by that. */
function byStep({ files }: Fleet): number[][] | null {
  const ranks = new Map<string, Map<number | null, number>>();
  for (const [number, file] of files.entries()) {
    const key = file.rank === null ? `file ${number}` : `rank ${file.rank}`;
    const own = ranks.get(key) ?? new Map<number | null, number>();
    // Two files of one rank and step are of two jobs, and no one's steps.
    if (own.has(file.step) || (own.size > 0 && (file.step === null || own.has(null)))) return null;
    own.set(file.step, number);
    ranks.set(key, own);
  }
  const rows = [...ranks.values()];
  if (!rows.some((own) => own.size > 1)) return null;
  return rows.map((own) => [...own].sort(([a], [b]) => (a ?? -1) - (b ?? -1)).map(([, number]) => number));
}

/** The steps that are shown of all: the first and the last. */
function kept(numbers: Set<number>, rows: number): number[] {
  const sorted = [...numbers].sort((a, b) => a - b);
  const most = Math.max(Math.min(MOST_COLUMNS, Math.floor(MOST_CELLS / Math.max(rows, 1))) - 1, 0);
  if (sorted.length <= most) return sorted;
  const half = Math.floor(most / 2);
  return [...sorted.slice(0, half), ...sorted.slice(sorted.length - half)];
}

export function gridOf(fleet: Fleet): Grid {
  const { files, starts, number, liveIn, reservedIn } = fleet;
  const snapshots = byStep(fleet);
  const rows = snapshots ?? files.map((_, file) => [file]);
  const numbers = new Set<number>();
  if (snapshots !== null) {
    for (const { step } of files) if (step !== null) numbers.add(step);
  } else {
    for (const one of number) numbers.add(one);
  }
  const steps = kept(numbers, rows.length);
  const columns = [null, ...steps];
  const place = new Map(steps.map((step, column) => [step, column + 1]));
  const cells = rows.length * columns.length;
  const grid: Grid = {
    steps: steps.length === 0 ? "none" : snapshots === null ? "iterations" : "snapshots",
    columns,
    rows,
    file: new Int32Array(cells).fill(-1),
    live: new Float64Array(cells).fill(NaN),
    reserved: new Float64Array(cells).fill(NaN),
  };
  const put = (cell: number, file: number, live: number, reserved: number) => {
    grid.file[cell] = file;
    grid.live[cell] = live;
    grid.reserved[cell] = reserved;
  };
  for (const [row, own] of rows.entries()) {
    const first = row * columns.length;
    for (const file of own) {
      const [live, reserved] = [fleet.live[file], fleet.reserved[file]];
      // The peak of a rank is the most of its files; it is found in the one that reserves most.
      const before = grid.reserved[first];
      const isMost = grid.file[first] < 0 || reserved > before || (Number.isNaN(before) && !Number.isNaN(reserved));
      put(first, isMost ? file : grid.file[first], most(grid.live[first], live), most(grid.reserved[first], reserved));
      if (snapshots !== null) {
        const column = place.get(files[file].step ?? NaN);
        if (column !== undefined) put(first + column, file, live, reserved);
        continue;
      }
      for (let at = starts[file]; at < starts[file + 1]; at++) {
        const column = place.get(number[at]);
        if (column !== undefined) put(first + column, file, liveIn[at], reservedIn[at]);
      }
    }
  }
  return grid;
}

function most(one: number, other: number): number {
  return Number.isNaN(one) ? other : Number.isNaN(other) ? one : Math.max(one, other);
}

export const FIGURES = ["reserved", "live", "waste", "limit"] as const;
export type Figure = (typeof FIGURES)[number];

/** A figure of these bytes: bytes, or a ratio; not a number where it is not known. */
export function figureOf(figure: Figure, live: number, reserved: number, limit: number | null): number {
  if (figure === "live") return live;
  if (figure === "reserved") return reserved;
  if (figure === "waste") return live > 0 ? reserved / live : NaN;
  return limit !== null && limit > 0 ? reserved / limit : NaN;
}

/** A figure of every cell: all of them are gone through at once, so without a call for each. */
export function values({ live, reserved }: Grid, figure: Figure, limit: number | null): Float64Array {
  if (figure === "live") return live;
  if (figure === "reserved") return reserved;
  const found = new Float64Array(live.length);
  const by = limit !== null && limit > 0 ? limit : NaN;
  for (let cell = 0; cell < found.length; cell++) {
    const whole = figure === "limit" ? by : live[cell] > 0 ? live[cell] : NaN;
    found[cell] = reserved[cell] / whole;
  }
  return found;
}

/** The least and the most that is there; null if nothing is. */
export function span(of: Float64Array): { least: number; most: number } | null {
  let [least, top] = [Infinity, -Infinity];
  for (const value of of) {
    if (value < least) least = value;
    if (value > top) top = value;
  }
  return least <= top ? { least, most: top } : null;
}
