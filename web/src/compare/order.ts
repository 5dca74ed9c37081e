// The table of recordings: its columns, and which rows come first. Pure.
import { bytes, count } from "../format.ts";
import type { Summary } from "./summary.ts";

export interface TableColumn {
  by: Exclude<Order["by"], "opened">;
  word: string;
  /** What it is sorted by; names are sorted as texts. */
  value: (it: Summary) => number;
  text: (it: Summary) => string;
  /** Whether that is bad. */
  wrong?: (it: Summary) => boolean;
}

export interface Order {
  by: "opened" | "name" | "reserved" | "allocated" | "unused" | "failed" | "limit";
  down: boolean;
}

export const COLUMNS: TableColumn[] = [
  { by: "name", word: "Recording", value: () => 0, text: () => "" },
  { by: "reserved", word: "Reserved at the peak", value: (it) => it.reserved, text: (it) => bytes(it.reserved) },
  { by: "allocated", word: "Allocated at the peak", value: (it) => it.allocated, text: (it) => bytes(it.allocated) },
  { by: "unused", word: "Reserved, not allocated", value: (it) => it.unused, text: (it) => bytes(it.unused) },
  { by: "failed", word: "Failed requests", value: (it) => it.failed, text: (it) => count(it.failed), wrong: (it) => it.failed > 0 },
  { by: "limit", word: "Limit", value: (it) => it.limit ?? Infinity, text: (it) => (it.limit === null ? "none" : bytes(it.limit)) },
];

type Name = (it: Summary) => string;

/** Those that have the text in their name, device or settings; where none has it as a whole, those that have every word of it. */
export function found(all: Summary[], text: string, name: Name): Summary[] {
  const wanted = text.trim().toLowerCase();
  const having = (words: string[]) =>
    all.filter((it) => {
      const said = `${name(it)} ${it.info.conf}`.toLowerCase();
      return words.every((word) => said.includes(word));
    });
  const whole = having([wanted]);
  return whole.length > 0 ? whole : having(wanted.split(/\s+/));
}

/** By a column; equals stay in the order in which they were opened. Numbers in names count as numbers. */
export function ordered(all: Summary[], { by, down }: Order, name: Name): Summary[] {
  if (by === "opened") return all;
  const column = COLUMNS.find((it) => it.by === by);
  const compare = (a: Summary, b: Summary) => {
    if (by === "name" || column === undefined) return name(a).localeCompare(name(b), "en", { numeric: true });
    const [one, other] = [column.value(a), column.value(b)];
    return one === other ? 0 : one < other ? -1 : 1;
  };
  return [...all].sort((a, b) => (down ? compare(b, a) : compare(a, b)));
}
