// What a what-if means, in a sentence. In: figures. Out: text.
import type { RecordingInfo, WhatIfAnswer } from "../api.ts";
import { bytes, count, exactBytes, plain } from "../format.ts";

export interface Outcome {
  policy: string;
  /** The limit that was asked about. */
  limit: number | null;
  was: number;
  now: number;
  /** Requests that failed when it was recorded. */
  failed: number;
  oom: WhatIfAnswer["oom"];
}

/** A share with as many digits as are of use. */
export function percent(part: number, whole: number): string {
  const share = whole > 0 ? (Math.abs(part) / whole) * 100 : 0;
  return `${share < 10 ? share.toFixed(1) : Math.round(share)} %`;
}

/** What the driver takes. */
export function milliseconds(ns: number): string {
  return `${(ns / 1e6).toFixed(1)} ms`;
}

/** The settings in words. */
export function named(info: Pick<RecordingInfo, "conf">): string {
  return info.conf === "" ? "PyTorch’s defaults" : plain(info.conf);
}

export function meaning(conf: string, { policy, limit, was, now, failed, oom }: Outcome): string {
  const rules = policy === "pytorch" ? named({ conf }) : `the policy ${policy}`;
  const under = `Under ${rules}${limit === null ? "" : ` and a limit of ${exactBytes(limit)}`}`;
  if (oom !== null) {
    const again = failed > 0 ? "still fails" : "fails";
    return `${under} the job ${again}: at entry ${count(oom.entry)} a request of ${bytes(oom.bytes)} finds no room. What the program would have done then is not known, so the figures end there.`;
  }
  const saved = was - now;
  const change =
    saved === 0
      ? `reserves as much as it did: ${bytes(now)} at the peak`
      : `reserves ${bytes(now)} at its peak instead of ${bytes(was)}: ${bytes(Math.abs(saved))} (${percent(saved, was)}) ${saved > 0 ? "less" : "more"}`;
  const through = failed === 0 ? "" : ` ${failed === 1 ? "The request that failed goes" : `The ${count(failed)} requests that failed go`} through.`;
  return `${under} the job ${change}.${through}`;
}
