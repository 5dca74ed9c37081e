// The report beside the timeline. Fetches the report of the recording in front; a click on a cause lights up its blocks.
import { type Report, type Verdict, api } from "../api.ts";
import type { App } from "../app.ts";
import { fill, h } from "../dom.ts";
import { count } from "../format.ts";
import type { Recording } from "../recording.ts";
import { askWhatIf } from "../what-if/ask.ts";
import { around, blamed } from "./blame.ts";
import * as parts from "./parts.ts";
import { queryFor } from "./query.ts";
import { readable } from "./readable.ts";

/** Milliseconds for which a run's report stays. */
const STAYS = 5000;

export function mountReport(element: HTMLElement, app: App): void {
  new ReportPanel(element, app);
}

class ReportPanel {
  #element: HTMLElement;
  #app: App;
  #lit = h("p", { class: "lit", role: "status" });
  /** The cause whose blocks are lit up. */
  #cause: Verdict | null = null;
  #asking: Recording | null = null;
  #later: ReturnType<typeof setTimeout> | undefined;

  constructor(element: HTMLElement, app: App) {
    this.#element = element;
    this.#app = app;
    app.store.subscribe((state, before) => {
      if (state.recording !== before.recording && state.recording !== null) {
        this.#front(state.recording, state.recording.info.id !== before.recording?.info.id);
      }
      if (state.blamed === null && before.blamed !== null) {
        this.#press(null);
      }
    });
  }

  /** A run's recording grows every second; its report stays for a while, so that one can read and click. */
  #front(recording: Recording, other: boolean): void {
    if (other) {
      clearTimeout(this.#later);
      this.#later = undefined;
      fill(this.#element, h("p", { class: "muted", role: "status", text: "The report is being made…" }));
      void this.#load(recording);
    } else {
      this.#later ??= setTimeout(() => {
        this.#later = undefined;
        void this.#load(this.#app.store.state.recording ?? recording);
      }, STAYS);
    }
  }

  async #load(recording: Recording): Promise<void> {
    this.#asking = recording;
    try {
      const report = readable(await api.report(recording.info.id));
      if (this.#asking === recording) {
        this.#show(report);
      }
    } catch (error) {
      if (this.#asking === recording) {
        const why = error instanceof Error ? error.message : String(error);
        fill(this.#element, h("p", { class: "muted name", text: `There is no report: ${why}` }));
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
    this.#press(null);
    fill(
      this.#element,
      h("h2", { text: "Report" }),
      h("p", { class: "verdict name", text: report.verdict.text }),
      parts.causes(report, actions),
      this.#lit,
      parts.advice(report, actions),
      parts.waste(report),
      parts.peak(report.peak, actions),
      parts.growth(report.growth, actions),
      parts.ooms(report, actions),
      parts.pinned(report),
      parts.notes(report),
    );
  }

  #blame(report: Report, cause: Verdict): void {
    const { recording } = this.#app.store.state;
    if (recording === null) {
      return;
    }
    if (this.#cause === cause) {
      this.#app.store.set({ blamed: null });
      return;
    }
    const { rows, moment, from, to, words } = blamed(report, cause, recording);
    this.#app.store.set({ blamed: rows, moment, from, to });
    this.#press(cause);
    const clear = h("button", { type: "button", text: "Clear" });
    clear.addEventListener("click", () => this.#app.store.set({ blamed: null }));
    const found = rows.size === 0 ? "Nothing is lit up" : `${count(rows.size)} ${rows.size === 1 ? "block" : "blocks"} lit up`;
    fill(this.#lit, h("span", { text: `${found}: ${words}.` }), clear);
  }

  #press(cause: Verdict | null): void {
    this.#cause = cause;
    if (cause === null) {
      fill(this.#lit);
    }
    for (const button of this.#element.querySelectorAll("button[data-cause]")) {
      button.setAttribute("aria-pressed", String(button.getAttribute("data-cause") === cause?.cause));
    }
  }

  #go(moment: number): void {
    const { recording } = this.#app.store.state;
    if (recording !== null) {
      this.#app.store.set({ moment: Math.min(moment, recording.entries), ...around(moment, recording.entries) });
    }
  }
}
