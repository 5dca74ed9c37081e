// One training step, drawn: areas by purpose, the reserved line, phases behind, the peak marked.
import type uPlot from "uplot";
import type { StepTimeline } from "../api.ts";
import { Chart, colour, steps } from "../chart/chart.ts";
import { upTo } from "../chart/scale.ts";
import { bytes } from "../format.ts";
import { type Along, type Placed, placed } from "./axis.ts";
import { heldAt, phaseAt, phaseName, stacked } from "./step.ts";

const KNOWN = ["parameters", "gradients", "optimizer", "activations", "temporary", "workspace", "cache"];

/** The variable with a purpose's colour. */
export function variable(purpose: string): string {
  return KNOWN.includes(purpose) ? `--${purpose}` : "--unknown";
}

export class Drawing {
  readonly element: HTMLElement;
  readonly purposes: string[];
  #step: StepTimeline;
  #most: number;
  #chart: Chart;
  #small: boolean;
  #along: Along;
  #placed: Placed;

  /** `most` bytes are the top, so that drawings beside each other have one scale. */
  constructor(step: StepTimeline, most: number, height: number, small: boolean, along: Along) {
    this.#along = along;
    this.#placed = placed(step, along);
    this.#step = step;
    this.#most = most;
    this.#small = small;
    this.purposes = step.purposes;
    // The whole is painted first, and each smaller sum over it.
    const areas = [...step.purposes].reverse().map((purpose): uPlot.Series => ({
      stroke: () => colour(variable(purpose)), fill: () => colour(variable(purpose)), width: 0, paths: steps(), points: { show: false },
    }));
    this.#chart = new Chart({
      height,
      small,
      range: () => upTo(this.#most * (small ? 1 : 1.06)),
      until: () => 1,
      ...(small ? {} : {
        along: (places: number[]) => places.map((at) => this.#placed.marks.find((it) => it.at === at)?.text ?? ""),
        splits: () => this.#placed.marks.map((it) => it.at),
        titles: { y: "Bytes by purpose" },
      }),
      ...(small ? {} : { says: (index: number) => this.#say(index) }),
      series: [...areas, { stroke: () => colour("--reserved"), width: 1.5, paths: steps(), points: { show: false } }],
      hooks: { drawClear: [(u) => this.#shade(u)], draw: [(u) => this.#mark(u), ...(small ? [] : [(u: uPlot) => this.#names(u)])] },
    });
    this.element = this.#chart.element;
    this.set(step, most, along);
  }

  set(step: StepTimeline, most: number, along: Along): void {
    this.#along = along;
    this.#placed = placed(step, this.#along);
    this.#step = step;
    this.#most = most;
    const { allocated, phase } = step.peak;
    this.#chart.set(
      [this.#placed.x, ...stacked(step).reverse(), step.reserved],
      `Memory by purpose over one training step: ${bytes(allocated)} at the peak, in ${phaseName(phase)}.`,
    );
  }

  #say(point: number): string {
    const parts = heldAt(this.#step, point).filter((it) => it.bytes > 0);
    const held = parts.map((it) => `${it.purpose} ${bytes(it.bytes)}`).join(", ");
    const whole = `${bytes(this.#step.allocated[point] ?? 0)} allocated of ${bytes(this.#step.reserved[point] ?? 0)} reserved`;
    return `${phaseAt(this.#step, point)}: ${whole}: ${held}`;
  }

  /** Every other phase on another ground. */
  #shade(u: uPlot): void {
    const { ctx, bbox } = u;
    ctx.save();
    ctx.fillStyle = colour("--panel");
    for (const { left, wide, dark } of this.#phases(u)) {
      if (dark) {
        ctx.fillRect(left, bbox.top, wide, bbox.height);
      }
    }
    ctx.restore();
  }

  /** The name of each phase on top of it; of a narrow one, upright. */
  #names(u: uPlot): void {
    const { ctx, bbox } = u;
    const scale = ratio(u);
    ctx.save();
    ctx.font = font(u, 600);
    ctx.textAlign = "left";
    ctx.textBaseline = "top";
    for (const { word, left, wide, dark } of this.#phases(u)) {
      const room = ctx.measureText(word).width + 8 * scale;
      if (room >= wide) {
        // Too narrow for its name: along its left edge.
        ctx.fillStyle = colour("--muted");
        ctx.save();
        ctx.translate(left + Math.max((wide - 12 * scale) / 2, 0), bbox.top + room);
        ctx.rotate(-Math.PI / 2);
        ctx.fillText(word, 0, 0);
        ctx.restore();
      } else {
        ctx.fillStyle = colour(dark ? "--panel" : "--back");
        ctx.fillRect(left + 3 * scale, bbox.top + scale, room, 15 * scale);
        ctx.fillStyle = colour("--muted");
        ctx.fillText(word, left + 6 * scale, bbox.top + 2 * scale);
      }
    }
    ctx.restore();
  }

  #phases(u: uPlot): { word: string; left: number; wide: number; dark: boolean }[] {
    const { left: first, width } = u.bbox;
    return this.#placed.phases.map(({ name, left: begin, right: end }, number) => {
      const left = Math.max(first, u.valToPos(begin, "x", true));
      const wide = Math.max(0, Math.min(first + width, u.valToPos(end, "x", true)) - left);
      return { word: phaseName(name), left, wide, dark: number % 2 === 1 };
    });
  }

  #mark(u: uPlot): void {
    const { ctx, bbox } = u;
    const { point, allocated } = this.#step.peak;
    const scale = ratio(u);
    const x = u.valToPos(this.#placed.x[point] ?? 0, "x", true);
    const y = u.valToPos(allocated, "y", true);
    if (!Number.isFinite(x) || !Number.isFinite(y)) {
      return;
    }
    ctx.save();
    ctx.strokeStyle = colour("--text");
    ctx.fillStyle = colour("--text");
    ctx.lineWidth = scale;
    ctx.setLineDash([3 * scale, 3 * scale]);
    ctx.beginPath();
    ctx.moveTo(x, y);
    ctx.lineTo(x, bbox.top + bbox.height);
    ctx.stroke();
    ctx.beginPath();
    ctx.arc(x, y, 3.5 * scale, 0, 2 * Math.PI);
    ctx.fill();
    if (!this.#small) {
      this.#name(u, x, y, `peak ${bytes(allocated)}`);
    }
    ctx.restore();
  }

  /** The peak's name, below it so that the reserved line stays free, on whichever side has room. */
  #name(u: uPlot, x: number, y: number, word: string): void {
    const { ctx, bbox } = u;
    const scale = ratio(u);
    ctx.font = font(u, 600);
    const wide = ctx.measureText(word).width + 12 * scale;
    const left = x + wide > bbox.left + bbox.width ? x - wide : x;
    const top = y + 8 * scale;
    ctx.globalAlpha = 0.85;
    ctx.fillStyle = colour("--back");
    ctx.fillRect(left + 3 * scale, top, wide - 6 * scale, 17 * scale);
    ctx.globalAlpha = 1;
    ctx.fillStyle = colour("--text");
    ctx.textAlign = "left";
    ctx.textBaseline = "top";
    ctx.fillText(word, left + 6 * scale, top + 2 * scale);
  }

  close(): void {
    this.#chart.close();
  }
}

function ratio(u: uPlot): number {
  return u.ctx.canvas.width / u.width;
}

function font(u: uPlot, weight: number): string {
  return `${weight} ${12 * ratio(u)}px system-ui, -apple-system, 'Segoe UI', Roboto, Arial, sans-serif`;
}
