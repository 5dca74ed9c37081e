// What a comparison means, in sentences.
import { bytes, count } from "../format.ts";
import type { Recording } from "../recording.ts";
import { percent } from "../what-if/meaning.ts";
import type { Summary } from "./summary.ts";

/** Which of them reserves most, how far apart they are, and which failed. */
export function meansFor(all: Summary[], limit: Summary | null, name: (it: Summary) => string): string {
  if (limit === null) {
    return "";
  }
  const least = Math.min(...all.map((it) => it.reserved));
  const failed = all.filter((it) => it.failed > 0).length;
  const failures = failed === 0 ? "" : ` Requests failed in ${count(failed)} of ${count(all.length)}.`;
  const apart = limit.reserved - least;
  const spread = apart > 0 ? `; the least is ${bytes(apart)} (${percent(apart, limit.reserved)}) below` : "";
  return `${name(limit)} reserves most: ${bytes(limit.reserved)} at the peak${spread}.${failures}`;
}

/** How two of them differ. */
export function change(first: Recording, second: Recording, [one, other]: [string, string]): string {
  const [a, b] = [first.head.peak.reserved, second.head.peak.reserved];
  if (a === b) {
    return `${one} and ${other} reserve the same at the peak: ${bytes(a)}.`;
  }
  return `${other} reserves ${bytes(b)} at the peak, ${bytes(Math.abs(b - a))} (${percent(b - a, a)}) ${b < a ? "less" : "more"} than ${one} with ${bytes(a)}.`;
}
