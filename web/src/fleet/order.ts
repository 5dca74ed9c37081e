// Which rank stands where. In: a Fleet and its Grid, what to sort and to group by. Out: rows in their order, and groups. Pure.
import type { Grid } from "./grid.ts";
import { type Fleet, type Part, PARTS } from "./table.ts";

export const SORTS = ["rank", "most"] as const;
export type Sort = (typeof SORTS)[number];

export const GROUPINGS = ["none", ...PARTS, "alike"] as const;
export type Grouping = (typeof GROUPINGS)[number];

/** Neighbours that have something in common. */
export interface Group {
  label: string;
  /** Places in the order; the end is exclusive. */
  from: number;
  to: number;
}

export interface Order {
  /** The row at each place, */
  rows: Int32Array;
  /** and the place of each row. */
  place: Int32Array;
  groups: Group[];
}

/** What a row is grouped by; null for those that have none of it, which come last. */
function keyOf(fleet: Fleet, grid: Grid, by: Grouping): (row: number) => number | null {
  if (by === "none") return () => null;
  // The file that has the rank's peak.
  if (by === "alike") return (row) => fleet.files[grid.file[row * grid.columns.length]]?.group ?? null;
  return (row) => fleet.files[grid.rows[row][0]][by];
}

function labelOf(by: Grouping, key: number | null): string {
  if (by === "alike") return key === null ? "not read" : `group ${key + 1}`;
  return key === null ? `no ${by}` : `${by} ${key}`;
}

/** Whether a fleet's names tell this part; groups of ranks that are alike there always are. */
export function isTold(fleet: Fleet, by: Grouping): boolean {
  return by === "none" || by === "alike" || fleet.files.some((file) => file[by as Part] !== null);
}

/** Numbers first, ascending; what has none comes last. */
function ascending(a: number | null, b: number | null): number {
  return a === b ? 0 : a === null ? 1 : b === null ? -1 : a - b;
}

export function ordered(fleet: Fleet, grid: Grid, peaks: (row: number) => number, sort: Sort, by: Grouping): Order {
  const all = Array.from(grid.rows.keys());
  // Each is asked once, and not in every comparison.
  const keys = all.map(keyOf(fleet, grid, by));
  const ranks = all.map((row) => fleet.files[grid.rows[row][0]].rank);
  const most = all.map((row) => {
    const value = sort === "most" ? peaks(row) : 0;
    return Number.isNaN(value) ? null : -value;
  });
  // Rows are in the order of their addresses: what is equal stays in it.
  const rows = Int32Array.from(
    all.sort((a, b) => ascending(keys[a], keys[b]) || ascending(most[a], most[b]) || ascending(ranks[a], ranks[b]) || a - b),
  );
  const place = new Int32Array(rows.length);
  rows.forEach((row, at) => (place[row] = at));
  const groups: Group[] = [];
  if (by !== "none") {
    for (let from = 0; from < rows.length; ) {
      const own = keys[rows[from]];
      let to = from + 1;
      while (to < rows.length && keys[rows[to]] === own) to++;
      groups.push({ label: labelOf(by, own), from, to });
      from = to;
    }
  }
  return { rows, place, groups };
}
