// What the page shows: one value that changes as a whole, and those who want to know.
import type { Recording } from "./recording.ts";

export type ColourBy = "purpose" | "site" | "stream" | "size";
export type Axis = "entries" | "time";

export interface State {
  /** The recording in front. */
  recording: Recording | null;
  /** Moments that the timeline shows: [from, to), fractions allowed while zooming. */
  from: number;
  to: number;
  axis: Axis;
  colourBy: ColourBy;
  /** The moment that the segment map shows. */
  moment: number;
  /** The chosen allocation's row, or -1. */
  chosen: number;
  /** Rows to light up, besides the filter: those that a cause blames. */
  blamed: ReadonlySet<number> | null;
  /** For each allocation 1 if the filter takes it; null without a filter. */
  shown: Uint8Array | null;
  /** The filter as typed. */
  query: string;
}

type Listener = (state: Readonly<State>, before: Readonly<State>) => void;

export class Store {
  #state: State = {
    recording: null,
    from: 0,
    to: 1,
    axis: "entries",
    colourBy: "purpose",
    moment: 0,
    chosen: -1,
    blamed: null,
    shown: null,
    query: "",
  };
  #listeners = new Set<Listener>();

  get state(): Readonly<State> {
    return this.#state;
  }

  /** Changes what is named, and tells everyone once. */
  set(change: Partial<State>): void {
    const before = this.#state;
    this.#state = { ...before, ...change };
    for (const listener of [...this.#listeners]) {
      listener(this.#state, before);
    }
  }

  subscribe(listener: Listener): () => void {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  }
}
