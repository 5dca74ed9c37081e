// A report with its texts made harmless to read: names in it come from a stranger's file.
import { plain } from "../format.ts";

/** Sentences have names in them; longer ones than this are no sentences. */
const LONGEST = 2000;

/** The same value, every text in it without what hides there. */
export function readable<T>(value: T): T {
  if (typeof value === "string") {
    return plain(value, LONGEST) as T;
  }
  if (Array.isArray(value)) {
    return value.map(readable) as T;
  }
  if (typeof value === "object" && value !== null) {
    return Object.fromEntries(Object.entries(value).map(([name, it]) => [name, readable(it)])) as T;
  }
  return value;
}
