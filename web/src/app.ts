// What the panels share: the state, the recordings, the address, and one place to say what went wrong.
import { api, type RecordingInfo, type Start } from "./api.ts";
import { Address } from "./address.ts";
import { bestColours } from "./colours.ts";
import { letGo } from "./let-go.ts";
import { type Recording, decode } from "./recording.ts";
import { type State, Store } from "./store.ts";
import { Turn } from "./turn.ts";

/** Recordings whose columns are kept: the one in front, those it is compared with, and a few to come back to. */
const MOST_OPENED = 8;

export class App {
  readonly store = new Store();
  readonly address = new Address();
  readonly start: Start;
  /** All there are; what-ifs are added at the end. */
  recordings: RecordingInfo[];
  /** Those that were asked for last are at the end. */
  #opened = new Map<number, Promise<Recording>>();
  #changed = new Set<() => void>();
  #fronts = new Turn();

  constructor(start: Start) {
    this.start = start;
    this.recordings = start.recordings;
  }

  /** A recording's columns, fetched once for each version as long as they are kept. */
  load(id: number): Promise<Recording> {
    const info = this.recordings.find((it) => it.id === id);
    if (info === undefined) {
      return Promise.reject(new Error(`there is no recording ${id}`));
    }
    let opened = this.#opened.get(id);
    if (opened === undefined) {
      opened = api.timeline(id).then((bytes) => decode(info, bytes));
      opened.catch(() => this.#opened.delete(id));
    }
    this.#opened.delete(id);
    this.#opened.set(id, opened);
    letGo(this.#opened, MOST_OPENED);
    return opened;
  }

  /**
   * Brings a recording to the front: whole, at its failure or its peak, unless something else is asked for. Whatever is
   * asked for last comes to the front, however long each takes.
   */
  async show(id: number | Promise<number>, asked: (recording: Recording) => Partial<State> = () => ({})): Promise<void> {
    const isLast = this.#fronts.take();
    const recording = await this.load(await id);
    if (!isLast()) return;
    this.store.set({
      recording,
      colourBy: bestColours(recording),
      from: 0,
      to: recording.entries + 1,
      moment: opensAt(recording),
      chosen: -1,
      lit: null,
      blamed: null,
      pieces: null,
      shown: null,
      query: "",
      ...asked(recording),
    });
  }

  /** Adds a recording, or replaces one that has grown. */
  put(info: RecordingInfo): void {
    const rest = this.recordings.filter((it) => it.id !== info.id);
    this.#list([...rest, info].sort((a, b) => a.id - b.id), [info.id]);
  }

  /** Opens the file of a fleet's rank, unless it is open; of such recordings the server keeps the last. */
  async openRank(file: number, signal?: AbortSignal): Promise<number> {
    const info = await api.openRank(file, signal);
    if (!this.recordings.some((it) => it.id === info.id)) {
      this.put(info);
      await this.refresh();
    }
    return info.id;
  }

  /** Asks the server which recordings there are: of what-ifs it keeps few, and those that went are listed no more. */
  async refresh(): Promise<void> {
    const { recordings } = await api.start();
    const gone = this.recordings.filter((known) => !recordings.some((it) => it.id === known.id));
    if (gone.length > 0 || recordings.length !== this.recordings.length) {
      this.#list(recordings, gone.map((it) => it.id));
    }
  }

  #list(recordings: RecordingInfo[], forgotten: number[]): void {
    this.recordings = recordings;
    forgotten.forEach((id) => this.#opened.delete(id));
    for (const listener of this.#changed) {
      listener();
    }
  }

  /** Calls back when recordings come, grow or go. */
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
  async attempt(work: Promise<unknown>): Promise<void> {
    try {
      await work;
    } catch (error) {
      if (!(error instanceof DOMException && error.name === "AbortError")) {
        this.say(error instanceof Error ? error.message : String(error), true);
      }
    }
  }
}

/** The moment that one wants to see first: the last request that failed, or the peak. */
export function opensAt({ head, entries }: Pick<Recording, "head" | "entries">): number {
  const failed = head.ooms.at(-1);
  return failed === undefined ? head.peak.reservedAt : Math.min(failed.entry + 1, entries);
}
