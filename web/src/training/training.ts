// A training step before it runs: sliders, the engine's prediction at each move, and √n checkpoints beside none.
import { type PredictAnswer, type PredictRequest, type StepTimeline, api } from "../api.ts";
import type { App } from "../app.ts";
import { legend } from "../chart/chart.ts";
import { copyLine } from "../copy.ts";
import { fill, h } from "../dom.ts";
import { bytes, count } from "../format.ts";
import { whenShown } from "../shown.ts";
import { percent } from "../what-if/meaning.ts";
import { Controls, choiceWord } from "./controls.ts";
import { Drawing } from "./drawing.ts";
import { Latest } from "./latest.ts";
import { parseSize } from "../what-if/size.ts";
import { ALONGS, type Along, titleOf } from "./axis.ts";
import { fitWords, heldAt, meaning, most, phaseName } from "./step.ts";

export function mountTraining(element: HTMLElement, app: App): void {
  const training = new Training(element, app);
  let opened = false;
  whenShown(element, () => {
    if (!opened) {
      opened = true;
      app.attempt(training.open().catch((error: unknown) => {
        opened = false;
        throw error;
      }));
    }
  });
}

/** What was asked, and when a hand moved. */
interface Move {
  request: PredictRequest;
  /** The memory of the GPU, as it was written. */
  limit: string;
  since: number;
}

class Training {
  #app: App;
  #element: HTMLElement;
  #controls: Controls | null = null;
  #meaning = h("p", { class: "lead" });
  #took = h("p", { class: "muted small" });
  #wrong = h("p", { class: "wrong", role: "status" });
  #main = h("div", { class: "step" });
  #beside = h("div", { class: "beside" });
  #key = h("div");
  #figures = h("div", { class: "scrolls" });
  #command = h("div");
  #axis = h("p", { class: "axis muted small" });
  #along: Along = "events";
  #alongs = h("select", { id: "training-along" }, ...ALONGS.map(([value, text]) => h("option", { value, text })));
  #limit = h("input", { type: "text", id: "training-limit", spellcheck: "false", autocomplete: "off", placeholder: "24GiB" });
  #fits = h("p", { class: "fits", role: "status" });
  #complaint = h("p", { class: "wrong", role: "status" });
  #largest = h("button", { type: "button", text: "Largest batch?" });
  #searching: AbortController | null = null;
  /** What the search for the largest batch says, of what is asked now. */
  #found: string | null = null;
  #answer: { answer: PredictAnswer; limit: string } | null = null;
  #drawings = new Map<string, Drawing>();
  #latest = new Latest<Move, PredictAnswer>(
    ({ request }, signal) => api.predict(request, signal),
    (answer, move) => {
      this.#answer = { answer, limit: move.limit };
      this.#show(move.since);
    },
    (error) => this.#refuse(error),
  );

  /** What an address says, until there are sliders. */
  #asked: Map<string, string> | null = null;

  constructor(element: HTMLElement, app: App) {
    this.#element = element;
    this.#app = app;
    app.address.add({
      write: (into) => {
        if (this.#along !== "events") into.set("t.along", this.#along);
        if (this.#limit.value !== "") into.set("t.limit", this.#limit.value);
        const asked = this.#controls === null ? this.#asked : new Map(Object.entries(this.#controls.request()).map(([name, value]) => [name, String(value)]));
        asked?.forEach((value, name) => into.set(`t.${name}`, value));
      },
      read: (from) => {
        this.#along = ALONGS.find(([it]) => it === from.get("t.along"))?.[0] ?? "events";
        this.#alongs.value = this.#along;
        this.#limit.value = from.get("t.limit") ?? "";
        this.#asked = new Map([...from].flatMap(([name, value]) => (name.startsWith("t.") ? [[name.slice(2), value]] : [])));
        if (this.#asked.size > 0) this.#controls?.set(this.#asked);
      },
    });
  }

  async open(): Promise<void> {
    const recipes = await api.recipes();
    this.#controls = new Controls(recipes, () => {
      const since = performance.now();
      this.#app.address.changed();
      // The first change comes from the constructor itself.
      queueMicrotask(() => this.#controls && this.#ask(since));
    });
    if (this.#asked !== null) this.#controls.set(this.#asked);
    fill(
      this.#element,
      h("h2", { text: "A training step, before it runs" }),
      h("p", { class: "muted", text: "Each move is a dry run of the real engine: to the byte what a run allocates and reserves." }),
      h("div", { class: "bench" },
        h("div", { class: "asked" }, this.#controls.element,
          h("form", { class: "gpu" }, h("label", { for: "training-limit", text: "Memory of the GPU" }), this.#limit, this.#largest, this.#complaint)),
        h("div", { class: "shown" }, this.#meaning, this.#fits, this.#wrong,
          h("label", { class: "small", for: "training-along" }, "Along ", this.#alongs),
          h("div", { class: "drawings" }, h("div", {}, this.#main, this.#axis), this.#beside), this.#key, this.#took)),
      h("h3", { text: "Exact figures at the peak" }),
      this.#figures,
      h("h3", { text: "The same on the command line" }),
      this.#command,
    );
    this.#listen();
  }

  /** Something has changed: what a search is looking for is not what is asked any more. */
  #ask(since: number): void {
    this.#searching?.abort();
    this.#found = null;
    this.#app.address.changed();
    this.#latest.put({ request: this.#request(), limit: this.#limit.value, since });
  }

  /** What the sliders and the field for the GPU say. A size that is not one is said to be wrong, and not asked about. */
  #request(): PredictRequest {
    const request = this.#controls?.request() ?? { recipe: "" };
    try {
      const limit = parseSize(this.#limit.value);
      this.#limit.setAttribute("aria-invalid", "false");
      this.#complaint.textContent = "";
      return limit === null ? request : { ...request, limit };
    } catch (error) {
      this.#limit.setAttribute("aria-invalid", "true");
      this.#complaint.textContent = error instanceof Error ? error.message : String(error);
      return request;
    }
  }

  #listen(): void {
    this.#limit.addEventListener("change", () => this.#ask(performance.now()));
    this.#limit.form?.addEventListener("submit", (event) => event.preventDefault());
    this.#alongs.addEventListener("change", () => {
      this.#along = this.#alongs.value as Along;
      this.#app.address.changed();
      this.#show(performance.now());
    });
    this.#largest.addEventListener("click", () => this.#app.attempt(this.#search()));
  }

  /** Looks for the largest batch; a second click gives up. */
  async #search(): Promise<void> {
    if (this.#searching !== null) {
      this.#searching.abort();
      return;
    }
    const request = this.#request();
    if (request.limit === undefined) {
      this.#limit.focus();
      throw new Error("write how much memory the GPU has, as in 24GiB");
    }
    const searching = new AbortController();
    this.#searching = searching;
    this.#largest.textContent = "Cancel";
    this.#find("Batches are tried, as asked and with each technique…");
    try {
      this.#find(fitWords(await api.fit(request, searching.signal)));
      this.#app.say("");
    } catch (error) {
      this.#find(null);
      if (!searching.signal.aborted) throw error;
    } finally {
      this.#searching = null;
      this.#largest.textContent = "Largest batch?";
    }
  }

  /** What a search says stands until something else is asked: a prediction from before it does not replace it. */
  #find(found: string | null): void {
    this.#found = found;
    this.#showFits();
  }

  #showFits(): void {
    const fits = this.#found === null ? (this.#answer?.answer.fits ?? null) : null;
    const text = fits === null ? "" : `It ${fits ? "fits" : "does not fit"} into ${this.#answer?.limit ?? ""}.`;
    this.#fits.textContent = this.#found ?? text;
    this.#fits.classList.toggle("wrong", fits === false);
  }

  #refuse(error: unknown): void {
    this.#wrong.textContent = error instanceof Error ? error.message : String(error);
    this.#app.say("");
  }

  #show(since: number): void {
    if (this.#answer === null) return;
    const { answer } = this.#answer;
    const { step, none, sqrt } = answer;
    this.#axis.textContent = titleOf(this.#along);
    this.#showFits();
    const top = most(answer);
    this.#wrong.textContent = "";
    this.#meaning.textContent = meaning(answer);
    fill(this.#main, this.#drawing("asked", step, top, 340, false));
    const panel = (title: string, it: StepTimeline | null) =>
      it === null ? null : h("figure", {},
        h("figcaption", {}, h("span", { text: title }), h("strong", { text: bytes(it.peak.allocated) })),
        this.#drawing(title, it, top, 130, true),
        h("p", { class: "muted small", text: beside(it, none) }));
    fill(this.#beside, panel("No checkpoints", none), panel("√n checkpoints", sqrt));
    const held = step.purposes.filter((_, row) => step.held[row]?.some((it) => it > 0));
    fill(this.#key, legend({ word: "reserved", swatch: "stroke reserved" }, ...held.map((word) => ({ word, swatch: `fill-${word}` }))));
    fill(this.#figures, table(answer));
    fill(this.#command, copyLine(answer.command));
    // The charts draw in a microtask, which runs before this one.
    queueMicrotask(() => {
      const took = Math.round(performance.now() - since);
      this.#took.textContent = `Predicted and drawn in ${count(took)} ms.`;
      this.#element.dataset["took"] = String(took);
    });
  }

  /** The drawing of that name, kept from one answer to the next. */
  #drawing(name: string, step: StepTimeline, top: number, height: number, small: boolean): HTMLElement {
    let drawing = this.#drawings.get(name);
    if (drawing !== undefined && drawing.purposes.join() !== step.purposes.join()) {
      drawing.close();
      drawing = undefined;
    }
    if (drawing === undefined) {
      drawing = new Drawing(step, top, height, small, this.#along);
      this.#drawings.set(name, drawing);
    } else {
      drawing.set(step, top, this.#along);
    }
    return drawing.element;
  }
}

function beside(it: StepTimeline, none: StepTimeline | null): string {
  const sets = `${phaseName(it.peak.phase)} sets it`;
  const saved = none === null ? 0 : none.peak.allocated - it.peak.allocated;
  return saved === 0 ? sets : `${sets}; ${percent(saved, none?.peak.allocated ?? 0)} ${saved > 0 ? "less" : "more"}`;
}

function table({ step, none, sqrt }: PredictAnswer): HTMLElement {
  const asked = step.checkpoint === none?.checkpoint || step.checkpoint === sqrt?.checkpoint ? null : step;
  const shown = [none, sqrt, asked].filter((it) => it !== null);
  const columns = shown.length === 0 ? [step] : shown;
  const number = (value: number) => h("td", { class: "number" }, bytes(value), h("small", { class: "exact muted", text: count(value) }));
  const row = (word: string, cell: (it: StepTimeline) => HTMLElement, swatch: string | null = null) =>
    h("tr", {}, h("th", { scope: "row" }, swatch === null ? null : h("i", { class: `sample ${swatch}`, "aria-hidden": "true" }), word), ...columns.map(cell));
  const purposes = step.purposes.filter((_, place) => columns.some((it) => (it.held[place]?.[it.peak.point] ?? 0) > 0));
  const heads = columns.map((it) =>
    h("th", { scope: "col", class: "number", text: columns.length === 1 && none === null ? "as asked" : `checkpoints: ${choiceWord("checkpoint", it.checkpoint)}` }));
  return h("table", { class: "figures-table" },
    h("thead", {}, h("tr", {}, h("th"), ...heads)),
    h("tbody", {},
      row("allocated", (it) => number(it.peak.allocated)),
      ...purposes.map((purpose) => row(purpose, (it) => number(heldAt(it, it.peak.point).find((held) => held.purpose === purpose)?.bytes ?? 0), `fill-${purpose}`)),
      row("reserved", (it) => number(it.peak.reserved)),
      row("set by", (it) => h("td", { class: "number", text: phaseName(it.peak.phase) })),
      row("numbers in parameters", (it) => h("td", { class: "number", text: count(it.parameters) }))));
}
