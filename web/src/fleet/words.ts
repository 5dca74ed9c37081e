// Figures and places of a fleet in words.
import { bytes } from "../format.ts";
import type { Figure, Grid } from "./grid.ts";
import { type Fleet, nameOf, placeOf } from "./table.ts";

/** What a figure is called, by the README's words, and what it means. */
export const FIGURE_WORDS: Record<Figure, { name: string; means: string }> = {
  reserved: { name: "Reserved", means: "most bytes reserved" },
  live: { name: "Live requested", means: "most requested bytes live at once" },
  waste: { name: "Waste", means: "most bytes reserved ÷ most requested bytes live at once" },
  limit: { name: "Near the limit", means: "most bytes reserved, as a share of the limit" },
};

/** A figure with its unit: bytes, "1.23", "95.1 %". */
export function figureText(figure: Figure, value: number): string {
  if (Number.isNaN(value)) return "not known";
  if (figure === "waste") return value.toFixed(2);
  if (figure === "limit") return `${(value * 100).toFixed(1)} %`;
  return bytes(value);
}

/** A column: the peak, or a step by its number. */
export function columnText(grid: Grid, column: number): string {
  const number = grid.columns[column];
  if (number === null) return grid.steps === "snapshots" ? "most of all snapshots" : "peak";
  return grid.steps === "snapshots" ? `step ${number}` : `iteration ${number}`;
}

/** Who a cell is of: the rank by its peak's file, or a snapshot of it. */
export function fileOf(grid: Grid, row: number, column: number): number {
  const peak = row * grid.columns.length;
  const file = grid.file[peak + column];
  return file >= 0 ? file : grid.file[peak];
}

/** A rank as a whole: its name without a step. */
export function rankName(fleet: Fleet, grid: Grid, row: number): string {
  const file = fleet.files[grid.rows[row][0]];
  return file.rank === null ? nameOf(file) : `rank ${file.rank}`;
}

/** All that is known of a cell, line by line; the first says whose it is. */
export function cellLines(fleet: Fleet, grid: Grid, row: number, column: number, limit: number | null): string[] {
  const file = fleet.files[fileOf(grid, row, column)];
  const place = placeOf(file);
  const cell = row * grid.columns.length + column;
  const [live, reserved] = [grid.live[cell], grid.reserved[cell]];
  const lines = [`${rankName(fleet, grid, row)}${place === "" ? "" : ` (${place})`}, ${columnText(grid, column)}`];
  if (Number.isNaN(reserved)) {
    lines.push(file.error === null ? "nothing is kept of this" : "the file could not be read");
  } else {
    lines.push(`${bytes(reserved)} reserved`, `${bytes(live)} live requested`);
    if (live > 0) lines.push(`waste ${figureText("waste", reserved / live)}`);
    if (limit !== null && limit > 0) lines.push(`${figureText("limit", reserved / limit)} of the limit of ${bytes(limit)}`);
  }
  if (file.shares !== null) lines.push(`shares the run of ${nameOf(fleet.files[file.shares])}`);
  return lines;
}
