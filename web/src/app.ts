// What the panels share: the state, the recordings, and one place to say what went wrong.
import { api, type RecordingInfo, type Start } from "./api.ts";
import { bestColours } from "./colours.ts";
import { type Recording, decode } from "./recording.ts";
import { Store } from "./store.ts";

export class App {
  readonly store = new Store();
  readonly start: Start;
  /** All there are; what-ifs are added at the end. */
  recordings: RecordingInfo[];
  #opened = new Map<number, Promise<Recording>>();
  #changed = new Set<() => void>();

  constructor(start: Start) {
    this.start = start;
    this.recordings = start.recordings;
  }

  /** A recording's columns, fetched once for each version. */
  load(id: number): Promise<Recording> {
    const info = this.recordings.find((it) => it.id === id);
    if (info === undefined) {
      return Promise.reject(new Error(`there is no recording ${id}`));
    }
    let opened = this.#opened.get(id);
    if (opened === undefined) {
      opened = api.timeline(id).then((bytes) => decode(info, bytes));
      opened.catch(() => this.#opened.delete(id));
      this.#opened.set(id, opened);
    }
    return opened;
  }

  /** Brings a recording to the front, whole. */
  async show(id: number): Promise<void> {
    const recording = await this.load(id);
    this.store.set({
      recording,
      colourBy: bestColours(recording),
      from: 0,
      to: recording.entries + 1,
      moment: recording.head.peak.reservedAt,
      chosen: -1,
      blamed: null,
      shown: null,
      query: "",
    });
  }

  /** Adds a recording, or replaces one that has grown. */
  put(info: RecordingInfo): void {
    const rest = this.recordings.filter((it) => it.id !== info.id);
    this.recordings = [...rest, info].sort((a, b) => a.id - b.id);
    this.#opened.delete(info.id);
    for (const listener of this.#changed) {
      listener();
    }
  }

  /** Calls back when recordings come or grow. */
  onRecordings(listener: () => void): void {
    this.#changed.add(listener);
  }

  /** Says something to everyone, screen readers included; errors stay until the next one. */
  say(text: string, wrong = false): void {
    const said = document.getElementById("said");
    if (said !== null) {
      said.textContent = text;
      said.classList.toggle("wrong", wrong);
    }
  }

  /** Runs something that may fail, and says so if it does. */
  attempt(work: Promise<unknown>): void {
    work.catch((error: unknown) => {
      if (!(error instanceof DOMException && error.name === "AbortError")) {
        this.say(error instanceof Error ? error.message : String(error), true);
      }
    });
  }
}
