// The run behind the page, while it trains: how far it is, its loss, its memory; the recording in front follows it.
import { type RunState, api } from "../api.ts";
import type { App } from "../app.ts";
import { Chart, colour } from "../chart/chart.ts";
import { fill, h } from "../dom.ts";
import { bytes, count } from "../format.ts";
import { follow, grown, pause, progress, range } from "./follow.ts";

export function mountRun(element: HTMLElement, app: App): void {
  if (app.start.run) {
    void new Run(element, app).watch();
  }
}

class Run {
  #app: App;
  #bar = h("progress", { max: 1, "aria-label": "Steps done" });
  #words = h("span", { class: "far", role: "status" });
  #figures = h("span", { class: "muted" });
  #loss = h("span", { class: "muted" });
  #losses: number[] = [];
  #spark = new Chart({
    height: 32,
    values: "plain",
    small: true,
    range: () => this.#range(),
    series: [{ stroke: () => colour("--mark"), width: 1.5, points: { show: false } }],
  });
  #chart = new Chart({
    height: 160,
    values: "plain",
    along: (values) => values.map(count),
    range: () => this.#range(),
    says: (index) => `step ${count(index + 1)}: loss ${this.#losses[index]?.toPrecision(5) ?? ""}`,
    series: [{ stroke: () => colour("--mark"), width: 1.5, points: { show: false } }],
  });

  constructor(element: HTMLElement, app: App) {
    this.#app = app;
    element.classList.add("run");
    const curve = h("details", {}, h("summary", {}, "Loss ", this.#loss, this.#spark.element), this.#chart.element);
    fill(element, h("section", { "aria-label": "The run" }, h("div", { class: "row" }, this.#words, this.#bar, this.#figures), curve));
  }

  /** Looks once a second, until the run has finished. */
  async watch(): Promise<void> {
    for (let failures = 0; ; ) {
      try {
        const state = await api.run();
        this.#show(state);
        await this.#reload();
        failures = 0;
        if (state.finished || state.error !== null) {
          return;
        }
      } catch (error) {
        failures += 1;
        this.#words.textContent = error instanceof Error ? error.message : String(error);
      }
      await new Promise((resume) => setTimeout(resume, pause(failures)));
    }
  }

  #show({ done, of, losses, allocatedPeak, reserved, finished, error }: RunState): void {
    this.#bar.value = progress(done, of);
    this.#words.textContent = error !== null ? `The run ended: ${error}` : `${finished ? "Done" : "Training"}: step ${count(done)} of ${count(of)}`;
    this.#words.classList.toggle("wrong", error !== null);
    this.#figures.textContent = `${bytes(allocatedPeak)} allocated at the peak, ${bytes(reserved)} reserved`;
    const last = losses.at(-1);
    this.#loss.textContent = last === undefined ? "is read at fixed places" : last.toPrecision(5);
    this.#losses = losses;
    const steps = losses.map((_, step) => step + 1);
    this.#spark.set([steps, losses], "The loss, small.");
    this.#chart.set([steps, losses], `The loss over ${count(losses.length)} steps${last === undefined ? "" : `, now ${last.toPrecision(5)}`}.`);
  }

  #range(): [number, number] {
    return range(this.#losses);
  }

  async #reload(): Promise<void> {
    const { recordings } = await api.start();
    const news = grown(this.#app.recordings, recordings);
    news.forEach((it) => this.#app.put(it));
    const { store } = this.#app;
    const front = store.state.recording?.info.id;
    const next = front === undefined ? news[0]?.id : news.find((it) => it.id === front)?.id;
    if (next !== undefined) {
      const recording = await this.#app.load(next);
      // Someone may have opened another one meanwhile.
      if (store.state.recording?.info.id === front) {
        store.set(follow(store.state, recording));
      }
    }
  }
}
