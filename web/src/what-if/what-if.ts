// The same requests under other settings: a form, the ranking of settings, and both timelines.
import { type Tuning, type WhatIfAnswer, type WhatIfRequest, api } from "../api.ts";
import type { App } from "../app.ts";
import { Overlay } from "../chart/overlay.ts";
import { fill, h } from "../dom.ts";
import { bytes, count, plain } from "../format.ts";
import { letGo } from "../let-go.ts";
import type { Recording } from "../recording.ts";
import { whenShown } from "../shown.ts";
import { Turn } from "../turn.ts";
import { onWhatIf } from "./ask.ts";
import { Form, type Wish } from "./form.ts";
import { meaning, milliseconds, named, percent } from "./meaning.ts";
import { ranking } from "./ranking.ts";

/** Longer histories are not tried under thirty settings unless someone asks for it. */
const SHORT = 50_000;

/** Rankings that are kept to come back to. */
const MOST_TUNINGS = 16;

export function mountWhatIf(element: HTMLElement, app: App): void {
  new WhatIf(element, app);
}

class WhatIf {
  #app: App;
  #form: Form;
  #of = h("p", { class: "muted" });
  #ranked = h("div");
  #result = h("div", { class: "result", hidden: true });
  #overlay = new Overlay("what-if");
  #source: Recording | null = null;
  #fronted: Promise<void> = Promise.resolve();
  #tunings = new Map<string, Promise<Tuning>>();
  #questions = new Turn();
  /** What the result below answers, as the form said it. */
  #answered: Wish | null = null;

  constructor(element: HTMLElement, app: App) {
    this.#app = app;
    this.#form = new Form(
      (request) => app.attempt(this.#run(request)),
      (text) => app.say(text, true),
    );
    fill(
      element,
      h("div", { class: "ask" },
        h("section", { "aria-labelledby": "ask-h" },
          h("h2", { id: "ask-h", text: "What if other settings had been in force?" }), this.#of, this.#form.element),
        h("section", { "aria-labelledby": "tune-h" }, h("h2", { id: "tune-h", text: "Settings, best first" }), this.#ranked)),
      this.#result,
    );
    app.store.subscribe((state, before) => {
      if (state.recording !== before.recording && state.recording !== null) {
        this.#fronted = this.#front(state.recording);
        app.attempt(this.#fronted);
      }
    });
    whenShown(element, () => this.#showRanking());
    onWhatIf(({ conf, limit }) => {
      if (conf === null) return;
      this.#form.set(conf, "pytorch", limit);
      this.#form.element.requestSubmit();
    });
    this.#form.element.addEventListener("input", () => app.address.changed());
    app.address.add({
      write: (into) => this.#write(into),
      read: (from) => this.#read(from),
    });
  }

  #write(into: URLSearchParams): void {
    const wish = this.#form.wish();
    if (this.#source === null || (wish.conf === this.#source.info.conf && wish.limit === "" && this.#result.hidden)) return;
    into.set("w.conf", wish.conf);
    into.set("w.policy", wish.policy);
    if (wish.limit !== "") into.set("w.limit", wish.limit);
    // What was typed since has not been asked.
    if (!this.#result.hidden && this.#answered !== null && same(wish, this.#answered)) into.set("w.asked", "1");
  }

  async #read(from: URLSearchParams): Promise<void> {
    const conf = from.get("w.conf");
    // A what-if in front first finds what it was made from.
    await this.#fronted;
    if (conf === null) {
      if (this.#source !== null) this.#clear(this.#source);
      return;
    }
    this.#form.put({ conf, policy: from.get("w.policy") ?? "pytorch", limit: from.get("w.limit") ?? "" });
    if (from.get("w.asked") === "1") await this.#run(this.#form.request());
  }

  /** A what-if in front is compared with what it was made from, not with itself. */
  async #front(recording: Recording): Promise<void> {
    const { info } = recording;
    const source = info.of === null ? recording : await this.#app.load(info.of);
    if (source === this.#source || this.#app.store.state.recording !== recording) {
      return;
    }
    const other = source.info.id !== this.#source?.info.id;
    this.#source = source;
    if (other) this.#clear(source);
    this.#of.textContent = `${source.info.name} was recorded under ${named(source.info)}: ${bytes(source.head.peak.reserved)} reserved at the peak.`;
    this.#showRanking();
  }

  /** Nothing has been asked of this recording. */
  #clear(source: Recording): void {
    // An answer that is on its way is to another question.
    this.#questions.take();
    this.#form.busy(false);
    this.#form.set(source.info.conf);
    this.#result.hidden = true;
  }

  #showRanking(): void {
    const source = this.#source;
    if (source === null || this.#ranked.closest("[hidden]") !== null) {
      return;
    }
    const { entries, info } = source;
    if (entries <= SHORT || this.#tunings.has(keyOf(source))) {
      this.#app.attempt(this.#tune(source));
      return;
    }
    const button = h("button", { type: "button", text: "Try all settings" });
    button.addEventListener("click", () => this.#app.attempt(this.#tune(source)));
    fill(this.#ranked, h("p", { class: "muted", text: `${info.name} has ${count(entries)} entries: serving them again under each setting takes a while.` }), button);
  }

  async #tune(source: Recording): Promise<void> {
    const key = keyOf(source);
    let tuning = this.#tunings.get(key);
    if (tuning === undefined) {
      tuning = api.tune(source.info.id);
      this.#tunings.set(key, tuning);
      letGo(this.#tunings, MOST_TUNINGS);
      tuning.catch(() => this.#tunings.delete(key));
    }
    fill(this.#ranked, h("p", { class: "muted", role: "status", text: "Serving the job again under each setting…" }));
    try {
      const found = await tuning;
      if (this.#source === source) {
        this.#form.policies(found.candidates.map((it) => it.policy));
        fill(this.#ranked, ranking(found, (it) => {
          this.#form.set(it.conf, it.policy);
          this.#form.element.requestSubmit();
        }));
      }
    } catch (error) {
      if (this.#source === source) {
        fill(this.#ranked, h("p", { class: "muted", text: `No ranking: ${error instanceof Error ? error.message : String(error)}` }));
      }
    }
  }

  async #run(request: WhatIfRequest): Promise<void> {
    const source = this.#source;
    if (source === null) {
      throw new Error("there is no recording to ask about: start `tonnage view` with a file");
    }
    const isLast = this.#questions.take();
    const wish = this.#form.wish();
    this.#form.busy(true);
    try {
      const answer = await api.whatIf(source.info.id, request);
      this.#app.put(answer.recording);
      await this.#app.refresh();
      const found = await this.#app.load(answer.recording.id);
      if (!isLast()) return;
      this.#answered = wish;
      this.#show(source, found, answer, request.limit);
      this.#app.say("");
      this.#app.address.changed();
    } catch (error) {
      if (isLast()) throw error;
    } finally {
      if (isLast()) this.#form.busy(false);
    }
  }

  #show(source: Recording, found: Recording, answer: WhatIfAnswer, limit: number | null): void {
    const { recordedPeak: was, reservedPeak: now, oom, pageCalls, pageNs } = answer;
    const failed = source.head.failed;
    const open = h("button", { type: "button", text: "Open its timeline" });
    open.addEventListener("click", () => {
      location.hash = "memory";
      this.#app.attempt(this.#app.show(found.info.id));
    });
    const heading = h("h2", { tabindex: -1, class: "name", text: plain(found.info.name).replace(/^what if: /, "") });
    fill(
      this.#result,
      h("div", { class: "head" }, heading, open),
      h("p", { class: "lead", text: meaning(found.info.conf, { policy: found.info.policy, limit, was, now, failed, oom }) }),
      h("dl", { class: "numbers" },
        figure("Reserved at the peak", bytes(now), `was ${bytes(was)}`),
        figure("Difference", change(now - was), was === now ? "none" : `${percent(now - was, was)} ${now < was ? "less" : "more"}`, now < was ? "less" : now > was ? "more" : ""),
        figure("Allocated at the peak", bytes(found.head.peak.allocated), `was ${bytes(source.head.peak.allocated)}`),
        ...(pageCalls === 0 ? [] : [figure("Driver calls about pages", count(pageCalls), `${milliseconds(pageNs)}, by what an H200 takes`)]),
        figure("Failed requests", oom === null ? "none" : "ends the job", failed === 0 ? "none before" : `${count(failed)} before`, oom === null ? "" : "more")),
      this.#overlay.element,
    );
    this.#result.hidden = false;
    this.#overlay.setWhatIf(source, found, oom === null);
    heading.focus({ preventScroll: true });
    const still = matchMedia("(prefers-reduced-motion: reduce)").matches;
    this.#result.scrollIntoView({ block: "start", behavior: still ? "auto" : "smooth" });
  }
}

function same(one: Wish, other: Wish): boolean {
  return one.conf === other.conf && one.policy === other.policy && one.limit === other.limit;
}

function keyOf({ info }: Recording): string {
  return `${info.id}.${info.version}`;
}

function change(value: number): string {
  return value > 0 ? `+${bytes(value)}` : bytes(value);
}

function figure(word: string, value: string, beside: string, mark = ""): HTMLElement {
  return h("div", {}, h("dt", { text: word }), h("dd", {}, h("span", { class: mark, text: value }), h("small", { text: beside })));
}
