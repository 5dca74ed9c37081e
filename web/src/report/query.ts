// What the filter understands. In: a key and a value. Out: a query.

/** A query for one key; values with spaces or quotes are quoted. */
export function queryFor(key: "purpose" | "line" | "module" | "frame", value: string): string {
  return /^[^\s"]+$/.test(value) ? `${key}:${value}` : `${key}:"${value.replaceAll('"', "")}"`;
}
