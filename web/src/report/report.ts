// The report: its answer above everything, its parts beside the timeline. A click on a cause lights up what it means.
import { type Report, type Verdict, api } from "../api.ts";
import type { App } from "../app.ts";
import { fill, h } from "../dom.ts";
import type { Recording } from "../recording.ts";
import { askWhatIf } from "../what-if/ask.ts";
import { around, blamed, litWords } from "./blame.ts";
import { type Opening, early, openingOf } from "./opening.ts";
import * as parts from "./parts.ts";
import { queryFor } from "./query.ts";
import { readable } from "./readable.ts";
import { Wait } from "./wait.ts";
import { capital, spaced } from "./words.ts";

/** Longer histories are reported on without a replay first, which takes a while. */
const LONG = 200_000;

/** Milliseconds for which a run's report stays. */
const STAYS = 5000;

export function mountReport(element: HTMLElement, opening: HTMLElement, app: App): void {
  new ReportPanel(element, opening, app);
}

class ReportPanel {
  #element: HTMLElement;
  #opening: HTMLElement;
  #app: App;
  #asking: Recording | null = null;
  #report: Report | null = null;
  /** A cause that the address names, until the report is there. */
  #wanted: string | null = null;
  #later: ReturnType<typeof setTimeout> | undefined;
  /** The replay that a long history waits for. */
  #wait: Wait | null = null;

  constructor(element: HTMLElement, opening: HTMLElement, app: App) {
    this.#element = element;
    this.#opening = opening;
    this.#app = app;
    app.store.subscribe((state, before) => {
      if (state.recording !== before.recording && state.recording !== null) {
        this.#front(state.recording, state.recording.info.id !== before.recording?.info.id);
      }
      if (state.lit !== before.lit) {
        this.#press(state.lit?.cause ?? null);
      }
    });
    app.address.add({
      write: (into) => {
        const cause = this.#app.store.state.lit?.cause ?? this.#wanted;
        if (cause !== null && cause !== undefined) into.set("cause", cause);
      },
      read: (from) => {
        this.#wanted = from.get("cause");
        this.#light();
      },
    });
  }

  /** A run's recording grows every second; its report stays for a while, so that one can read and click. */
  #front(recording: Recording, other: boolean): void {
    if (other) {
      clearTimeout(this.#later);
      this.#later = undefined;
      this.#report = null;
      // What an address asks for comes after this.
      this.#wanted = null;
      this.#open(early(recording), false);
      fill(this.#element, h("h2", { text: "Report" }), h("p", { class: "muted", role: "status", text: "The report is being made…" }));
      void this.#load(recording);
    } else if (this.#asking === null) {
      this.#later ??= setTimeout(() => {
        this.#later = undefined;
        void this.#load(this.#app.store.state.recording ?? recording);
      }, STAYS);
    }
  }

  async #load(recording: Recording): Promise<void> {
    this.#asking = recording;
    this.#wait?.end();
    this.#wait = null;
    try {
      if (recording.entries > LONG) {
        const first = readable(await api.reportAtOnce(recording.info.id));
        if (this.#asking !== recording) return;
        this.#show(first);
        this.#wait = new Wait(this.#element);
      }
      const report = readable(await api.report(recording.info.id, this.#wait?.signal));
      if (this.#asking === recording) {
        this.#show(report);
      }
    } catch (error) {
      // Given up: what there is without it stays.
      if (this.#asking === recording && this.#wait?.signal.aborted !== true) {
        const why = error instanceof Error ? error.message : String(error);
        this.#open(early(recording), true);
        fill(this.#element, h("h2", { text: "Report" }), h("p", { class: "muted name", text: `There is no report: ${why}` }));
      }
    } finally {
      if (this.#asking === recording) {
        this.#asking = null;
        this.#wait?.end();
        this.#wait = null;
        // It may have grown meanwhile. One report at a time, however long it takes.
        const now = this.#app.store.state.recording;
        if (now !== null && now !== recording) this.#front(now, false);
      }
    }
  }

  #show(report: Report): void {
    const actions: parts.Actions = {
      blame: (cause) => this.#blame(report, cause),
      filter: (key, value) => this.#app.store.set({ query: queryFor(key, value) }),
      go: (moment) => this.#go(moment),
      ask: askWhatIf,
    };
    this.#report = report;
    this.#open(openingOf(report), true);
    fill(
      this.#element,
      h("h2", { text: "Report" }),
      h("p", { class: "verdict name", text: report.verdict.text }),
      parts.tiles(report),
      parts.causes(report, actions),
      parts.advice(report, actions),
      parts.waste(report),
      parts.peak(report.peak, actions),
      parts.growth(report.growth, actions),
      parts.ooms(report, actions),
      parts.pinned(report),
      parts.notes(report),
    );
    this.#press(this.#app.store.state.lit?.cause ?? null);
    this.#light();
  }

  /** The answer: one sentence, three figures, one button. */
  #open({ failed, sentence, figures, fix }: Opening, known: boolean): void {
    const button = h("button", {
      type: "button", class: "main", text: fix === null ? "See what settings would do" : fix.isFirst ? "See what the fix does" : "See what this setting does",
      title: fix === null ? null : fix.conf, disabled: !known,
    });
    button.addEventListener("click", () => askWhatIf(fix?.conf ?? null, fix?.limit ?? null));
    const setting = fix === null ? null : h("code", { class: "fix name", text: fix.conf });
    fill(
      this.#opening,
      h("h2", { class: "name", text: sentence }),
      h("div", { class: "answer" },
        h("dl", { class: "numbers" }, ...figures.map((it) =>
          h("div", {}, h("dt", { text: it.word }), h("dd", { class: "name" }, it.value, h("small", { text: it.beside }))))),
        h("div", { class: "act" }, button, setting)),
    );
    this.#opening.classList.toggle("failed", failed);
    this.#opening.dataset["known"] = String(known);
  }

  /** Lights up the cause that the address names; where one looks and at which moment, it names too. */
  #light(): void {
    const { recording } = this.#app.store.state;
    const cause = this.#report?.causes.find((it) => it.cause === this.#wanted);
    if (this.#report === null || recording === null) return;
    this.#wanted = null;
    if (cause !== undefined) {
      const found = blamed(this.#report, cause, recording);
      this.#app.store.set({ blamed: found.rows, pieces: found.pieces, lit: lit(cause, litWords(found)) });
    }
  }

  #blame(report: Report, cause: Verdict): void {
    const { recording, lit: shown } = this.#app.store.state;
    if (recording === null) {
      return;
    }
    if (shown?.cause === cause.cause) {
      this.#app.store.unlight();
      return;
    }
    const found = blamed(report, cause, recording);
    const { rows, pieces, moment, from, to } = found;
    this.#app.store.set({ blamed: rows, pieces, moment, from, to, lit: lit(cause, litWords(found)) });
  }

  #press(cause: string | null): void {
    for (const button of this.#element.querySelectorAll("button[data-cause]")) {
      button.setAttribute("aria-pressed", String(button.getAttribute("data-cause") === cause));
    }
  }

  #go(moment: number): void {
    const { recording } = this.#app.store.state;
    if (recording !== null) {
      this.#app.store.set({ moment: Math.min(moment, recording.entries), ...around(moment, recording.entries) });
    }
  }
}

function lit({ cause, text }: Verdict, words: string): { cause: string; title: string; text: string; words: string } {
  return { cause, title: capital(spaced(cause)), text, words };
}
