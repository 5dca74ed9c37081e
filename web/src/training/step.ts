// One training step as figures for a drawing and sentences. In: a StepTimeline. Out: plain data.
import type { FitAnswer, PredictAnswer, StepTimeline } from "../api.ts";
import { bytes, count, exactBytes } from "../format.ts";
import { percent } from "../what-if/meaning.ts";

const PHASES: Record<string, string> = { step: "optimizer", zero_grad: "zero grad", simulate: "simulation" };

/** A phase as people call it. */
export function phaseName(name: string): string {
  return PHASES[name] ?? name.replaceAll("_", " ");
}

/** Sums from the bottom up: the last one is the whole. Points that a purpose lacks count as nothing. */
export function stacked(step: StepTimeline): number[][] {
  const sum = new Array<number>(step.allocated.length).fill(0);
  return step.held.map((held) => {
    for (let point = 0; point < sum.length; point += 1) {
      sum[point] += held[point] ?? 0;
    }
    return [...sum];
  });
}

/** What is held at a point, by purpose. */
export function heldAt(step: StepTimeline, point: number): { purpose: string; bytes: number }[] {
  return step.purposes.map((purpose, row) => ({ purpose, bytes: step.held[row]?.[point] ?? 0 }));
}

export function phaseAt(step: StepTimeline, point: number): string {
  const phase = step.phases.find((it) => it.begin <= point && point < it.end);
  return phase === undefined ? "" : phaseName(phase.name);
}

/** The peaks of all that stand beside each other. */
export function most(answer: PredictAnswer): number {
  const steps = [answer.step, answer.none, answer.sqrt].filter((it) => it !== null);
  return Math.max(...steps.map((it) => Math.max(it.peak.allocated, it.peak.reserved)));
}

/** The largest batches, in words. */
export function fitWords({ limit, batch, techniques }: FitAnswer): string {
  const whole = batch === 0 ? `Not even a batch of one fits into ${exactBytes(limit)}` : `The largest batch for ${exactBytes(limit)} is ${count(batch)}`;
  const better = techniques.filter((it) => it.batch > batch).sort((a, b) => b.batch - a.batch);
  const more = better.map((it) => `${count(it.batch)} with ${it.flags}`).join(", ");
  return `${whole}${more === "" ? "" : `; ${more}`}. Each was run without numbers.`;
}

/** What the answer means. */
export function meaning({ step, none, sqrt }: PredictAnswer): string {
  const { allocated, phase } = step.peak;
  const peak = `The peak is ${bytes(allocated)}, exactly ${count(allocated)} bytes; ${phaseName(phase)} sets it.`;
  if (none === null || sqrt === null) {
    return `${peak} This recipe has no blocks to checkpoint.`;
  }
  const saved = none.peak.allocated - sqrt.peak.allocated;
  if (saved <= 0) {
    return `${peak} √n checkpoints save nothing here: what they let go is not what sets the peak.`;
  }
  return `${peak} √n checkpoints need ${bytes(sqrt.peak.allocated)} instead of ${bytes(none.peak.allocated)} without: ${bytes(saved)} (${percent(saved, none.peak.allocated)}) less.`;
}
