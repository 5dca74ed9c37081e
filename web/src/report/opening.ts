// What one wants to know first. In: a recording, and its report once there is one. Out: a sentence, three figures, the fix.
//
// No figure and no reason of its own: the report's, in one sentence.
import type { Advice, FailedRequest, Report } from "../api.ts";
import { bytes, count } from "../format.ts";
import type { Recording } from "../recording.ts";
import { percent } from "../what-if/meaning.ts";

export interface Figure {
  word: string;
  value: string;
  beside: string;
}

/** Settings to try, and the limit that they have to stay under. */
export interface Fix {
  conf: string;
  limit: number | null;
  /** Whether nothing is advised before it: else something in the program helps more. */
  isFirst: boolean;
}

export interface Opening {
  failed: boolean;
  sentence: string;
  figures: Figure[];
  fix: Fix | null;
}

/** The first sentence of a text; full stops within names and numbers end none. */
export function firstSentence(text: string): string {
  return /^.*?[.!?](?=\s+\p{Lu}|\s*$)/su.exec(text)?.[0] ?? text;
}

/** The settings that an advice would set, if that is what it advises. */
export function confOf(advice: Pick<Advice, "code">): string | null {
  for (const line of advice.code ?? []) {
    const found = /^export PYTORCH_(?:CUDA_)?ALLOC_CONF=(?:'([^']*)'|(\S+))$/.exec(line.trim());
    if (found !== null) return found[1] ?? found[2] ?? null;
  }
  return null;
}

/** The request that ended the job, or the last that failed. */
export function failureOf(report: Report): FailedRequest | null {
  return report.ooms.find((it) => it.fatal) ?? report.ooms.at(-1) ?? null;
}

/** The limit that a fix has to stay under: the one that is known, or what the job is known to have had. */
export function limitOf(report: Report): number | null {
  const failed = failureOf(report);
  if (report.limit !== null || failed === null) return report.limit;
  if (report.failure) return report.failure.limit.bytes;
  return failed.by_limit ? Math.max(report.peak.reserved.bytes, failed.reserved) : failed.reserved + failed.device_free;
}

export function fixOf(report: Report): Fix | null {
  if (report.failure?.conf) return { conf: report.failure.conf, limit: limitOf(report), isFirst: true };
  for (const [place, advice] of report.advice.entries()) {
    const conf = confOf(advice);
    if (conf !== null) return { conf, limit: limitOf(report), isFirst: place === 0 };
  }
  return null;
}

/** Without a report yet: what the recording itself says. */
export function early({ head }: Pick<Recording, "head">): Opening {
  const failed = head.ooms.at(-1);
  const { peak } = head;
  return {
    failed: failed !== undefined,
    sentence: failed === undefined
      ? `At its peak the job reserved ${bytes(peak.reserved)}.`
      : `A request for ${bytes(failed.requested)} failed at entry ${count(failed.entry)}.`,
    figures: [
      { word: "Reserved at the peak", value: bytes(peak.reserved), beside: `${count(peak.reserved)} bytes` },
      { word: "Allocated at the peak", value: bytes(peak.allocated), beside: `${count(peak.allocated)} bytes` },
    ],
    fix: null,
  };
}

function ofFailure(report: Report, failed: FailedRequest): Opening {
  const what = failed.fatal ? "The job ran out of memory" : "A request failed, and the job went on";
  const at = failed.line === null ? "" : ` at ${failed.line}`;
  const room = report.limit !== null ? `limit ${bytes(report.limit)}`
    : failed.by_limit ? "a limit kept it from more" : `${bytes(failed.device_free)} free on the device`;
  const served = report.failure?.answer === "served" && report.failure.conf !== null
    ? `; ${report.failure.conf} serves them within ${bytes(report.failure.limit.bytes)}, by replay` : "";
  return {
    failed: true,
    sentence: `${what}: ${bytes(failed.bytes)} were asked for${at}, and ${failed.why.replace(/[.\s]+$/, "")}${served}.`,
    figures: [
      { word: "Asked for", value: bytes(failed.bytes), beside: `entry ${count(failed.event)}` },
      { word: "Largest free piece", value: bytes(failed.largest_free), beside: `of ${bytes(failed.cached)} free in pools` },
      { word: "Reserved", value: bytes(failed.reserved), beside: room },
    ],
    fix: fixOf(report),
  };
}

/** A sentence behind a colon: its first word in small letters, unless that is a name. */
function within(sentence: string): string {
  return sentence.replace(/^[A-Z](?=[a-z]*[\s,])/, (letter) => letter.toLowerCase());
}

export function openingOf(report: Report): Opening {
  const failed = failureOf(report);
  if (failed !== null) return ofFailure(report, failed);
  const { reserved, requested } = report.peak;
  const cause = report.causes.find((it) => it.cause === report.verdict.cause);
  const why = cause === undefined ? "" : within(firstSentence(cause.text).replace(/[.\s]+$/, ""));
  const wasted = reserved.bytes - reserved.requested;
  const leak = report.growth.kind === "leak" && report.growth.leak_per_iteration > 0;
  return {
    failed: false,
    sentence: `At its peak the job reserved ${bytes(reserved.bytes)}${why === "" ? "" : `: ${why}`}.`,
    figures: [
      { word: "Reserved at the peak", value: bytes(reserved.bytes), beside: report.limit === null ? `${count(reserved.bytes)} bytes` : `limit ${bytes(report.limit)}` },
      { word: "Need", value: bytes(requested), beside: "live at once, at most" },
      leak
        ? { word: "Leaks", value: bytes(report.growth.leak_per_iteration), beside: `each iteration, of ${count(report.growth.iterations)}` }
        : { word: "Waste", value: bytes(wasted), beside: `${percent(wasted, reserved.bytes)} of reserved` },
    ],
    fix: fixOf(report),
  };
}
