// What is kept to come back to has a bound. Pure.

/** Leaves the last of a map, those that were put there last. */
export function letGo(kept: Map<unknown, unknown>, most: number): void {
  for (const key of kept.keys()) {
    if (kept.size <= most) return;
    kept.delete(key);
  }
}
