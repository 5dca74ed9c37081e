// What a comparison means, in sentences.
import { bytes, count } from "../format.ts";
import type { Recording } from "../recording.ts";
import { percent } from "../what-if/meaning.ts";
import type { Summary } from "./summary.ts";

/** What all of them need, and which one decides it. */
export function meansFor(all: Summary[], limit: Summary | null): string {
  if (limit === null) {
    return "";
  }
  const least = Math.min(...all.map((it) => it.reserved));
  const failed = all.filter((it) => it.failed > 0).length;
  const failures = failed === 0 ? "" : ` Requests failed in ${count(failed)} of ${count(all.length)}.`;
  const apart = limit.reserved - least;
  const spread = apart > 0 ? `; the smallest needs ${bytes(apart)} (${percent(apart, limit.reserved)}) less` : "";
  return `${limit.info.name} sets the need: ${bytes(limit.reserved)} reserved at the peak${spread}.${failures}`;
}

/** How two of them differ. */
export function change(first: Recording, second: Recording): string {
  const [a, b] = [first.head.peak.reserved, second.head.peak.reserved];
  if (a === b) {
    return `${first.info.name} and ${second.info.name} reserve the same at the peak: ${bytes(a)}.`;
  }
  return `${second.info.name} reserves ${bytes(b)} at the peak, ${bytes(Math.abs(b - a))} (${percent(b - a, a)}) ${b < a ? "less" : "more"} than ${first.info.name} with ${bytes(a)}.`;
}
