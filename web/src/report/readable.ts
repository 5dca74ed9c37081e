// A report with its texts made harmless to read: names in it come from a stranger's file.
import { plain } from "../format.ts";

/** Sentences have names in them, so they are longer than a name; what is longer than this is no sentence. */
const LONGEST = 2000;

/** `plain` keeps at least this much of a text. */
const PIECE = 200;

function sentence(text: string): string {
  const pieces: string[] = [];
  for (let at = 0; at < Math.min(text.length, LONGEST); at += PIECE) {
    pieces.push(plain(text.slice(at, at + PIECE)));
  }
  return pieces.join("") + (text.length > LONGEST ? "…" : "");
}

/** The same value, every text in it without what hides there. */
export function readable<T>(value: T): T {
  if (typeof value === "string") {
    return sentence(value) as T;
  }
  if (Array.isArray(value)) {
    return value.map(readable) as T;
  }
  if (typeof value === "object" && value !== null) {
    return Object.fromEntries(Object.entries(value).map(([name, it]) => [name, readable(it)])) as T;
  }
  return value;
}
