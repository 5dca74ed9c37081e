// What a rank is marked for. In: a Fleet, its Grid. Out: for each row the gravest that is so. Pure.
import type { Grid } from "./grid.ts";
import type { Fleet } from "./table.ts";

export interface Mark {
  /** The sign, and what it means. */
  sign: string;
  word: string;
  /** The custom property with its colour. */
  colour: string;
}

/** The gravest last; the first is nothing. */
export const MARKS: Mark[] = [
  { sign: "", word: "", colour: "--back" },
  { sign: "!", word: "near the limit", colour: "--near" },
  { sign: "≠", word: "differs from its group", colour: "--differs" },
  { sign: "?", word: "could not be read", colour: "--muted" },
  { sign: "×", word: "a request failed", colour: "--failed" },
];

const [, NEAR, DIFFERS, UNREAD, FAILED] = MARKS.keys();

export function marksOf({ head, files }: Fleet, grid: Grid): Uint8Array {
  const ofFile = new Uint8Array(files.length);
  const mark = (which: Iterable<number>, as: number) => {
    for (const file of which) if (file in files) ofFile[file] = Math.max(ofFile[file], as);
  };
  mark(head.near, NEAR);
  mark(head.outliers, DIFFERS);
  files.forEach((file, number) => file.error !== null && mark([number], UNREAD));
  mark(head.failed, FAILED);
  return Uint8Array.from(grid.rows, (own) => own.reduce((most, file) => Math.max(most, ofFile[file]), 0));
}
