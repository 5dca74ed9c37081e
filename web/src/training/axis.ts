// Where the points of a step lie along the axis: by events, by the time of a GPU, by arithmetic or by kernels. Pure.
//
// In:  a step's phases and points. Out: a place from 0 to 1 for each point and phase, and round marks.
//
// Within a phase points are evenly spread, since what lies between two events is not counted. Whatever it is by, a phase that
// does something is at least LEAST wide: an optimizer that asks for no memory is there all the same.
import type { StepTimeline } from "../api.ts";
import { count } from "../format.ts";
import { ticks } from "../timeline/ticks.ts";

export type Along = "events" | "H200" | "H100" | "A100" | "RTX 4090" | "arithmetic" | "kernels";

export const ALONGS: readonly [Along, string][] = [
  ["events", "events"],
  ["H200", "time of an H200"], ["H100", "time of an H100"], ["A100", "time of an A100"], ["RTX 4090", "time of an RTX 4090"],
  ["arithmetic", "arithmetic"], ["kernels", "kernels"],
];

const TITLES: Partial<Record<Along, string>> = {
  events: "Events of the step: allocations and frees",
  arithmetic: "Arithmetic that the step has queued: multiplications and additions",
  kernels: "Kernels that the step has queued",
};

/** What the axis says. */
export function titleOf(along: Along): string {
  return TITLES[along] ?? `Microseconds of the step, estimated: each kernel by its arithmetic or by the bytes it moves, at the rates of the ${along}’s data sheet, float32 without TF32`;
}

/** Microseconds, so that marks are whole numbers. */
const PER_SECOND = 1e6;

function amountOf(phase: StepTimeline["phases"][number], along: Along): number {
  switch (along) {
    case "events": return phase.to - phase.from;
    case "arithmetic": return phase.operations;
    case "kernels": return phase.kernels;
    default: return (phase.seconds[along] ?? 0) * PER_SECOND;
  }
}

/** The part of the axis that a phase has at least. */
const LEAST = 0.03;

export interface Placed {
  /** The place of each point, ascending. */
  x: number[];
  phases: { name: string; left: number; right: number }[];
  /** Round numbers with their places. */
  marks: { at: number; text: string }[];
}

/** 1234567 as "1.2 M". */
export function brief(value: number): string {
  const units: [number, string][] = [[1e15, " P"], [1e12, " T"], [1e9, " G"], [1e6, " M"]];
  const [scale, unit] = units.find(([it]) => value >= it) ?? [1, ""];
  return scale === 1 ? count(value) : `${Number((value / scale).toPrecision(3))}${unit}`;
}

export function placed(step: Pick<StepTimeline, "phases" | "events" | "allocated">, along: Along): Placed {
  const { phases } = step;
  const amounts = phases.map((it) => amountOf(it, along));
  const total = amounts.reduce((sum, it) => sum + it, 0);
  // What is widened is taken from the rest, so that all together fill the axis.
  const small = amounts.map((it) => total === 0 || it / total < LEAST);
  const left = 1 - LEAST * small.filter(Boolean).length;
  const large = amounts.reduce((sum, it, place) => sum + (small[place] ? 0 : it), 0);
  const widths = amounts.map((it, place) => (small[place] ? LEAST : (it / large) * left));
  const spread = widths.reduce((sum, it) => sum + it, 0) || 1;
  const x = new Array<number>(step.allocated.length).fill(0);
  const found: Placed["phases"] = [];
  const marks: Placed["marks"] = [];
  const round = ticks(0, total, 7);
  let at = 0;
  let done = 0;
  phases.forEach(({ name, begin, end }, place) => {
    const wide = widths[place] / spread;
    for (let point = begin; point < end; point++) x[point] = at + (wide * (point - begin)) / (end - begin);
    for (const mark of round) {
      const isLast = place + 1 === phases.length;
      if (mark >= done && (mark < done + amounts[place] || (isLast && mark <= total))) {
        marks.push({ at: at + (amounts[place] > 0 ? (wide * (mark - done)) / amounts[place] : 0), text: brief(mark) });
      }
    }
    found.push({ name, left: at, right: at + wide });
    at += wide;
    done += amounts[place];
  });
  return { x, phases: found, marks };
}
