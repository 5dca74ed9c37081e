// What the page shows: one value that changes as a whole, and those who want to know.
import type { Recording } from "./recording.ts";

export type ColourBy = "purpose" | "site" | "module" | "layer" | "frame" | "stream" | "size";
export type Axis = "entries" | "time";

/** A cause whose blocks are lit up, in words. */
export interface Lit {
  cause: string;
  title: string;
  /** What the report says of it. */
  text: string;
  /** What is lit up, and how much of it there is. */
  words: string;
}

/** Memory from an address on. */
export interface Piece {
  address: number;
  size: number;
}

export interface State {
  /** The recording in front. */
  recording: Recording | null;
  /** Moments that the timeline shows: [from, to), fractions allowed while zooming. */
  from: number;
  to: number;
  axis: Axis;
  colourBy: ColourBy;
  /** Which frame "frame" means: from 1 for the outermost call, 0 for the innermost. */
  depth: number;
  /** The moment that the segment map shows. */
  moment: number;
  /** The chosen allocation's row, or -1. */
  chosen: number;
  /** The cause that is shown; null if none is. */
  lit: Lit | null;
  /** Rows to light up, besides the filter: those that a cause blames. */
  blamed: ReadonlySet<number> | null;
  /** Free memory that a cause means. */
  pieces: readonly Piece[] | null;
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
    depth: 0,
    moment: 0,
    chosen: -1,
    lit: null,
    blamed: null,
    pieces: null,
    shown: null,
    query: "",
  };
  #listeners = new Set<Listener>();
  /** Changes that not everyone has heard of; the first is being told. */
  #news: [State, State][] = [];

  get state(): Readonly<State> {
    return this.#state;
  }

  /** Shows no cause any more. */
  unlight(): void {
    this.set({ lit: null, blamed: null, pieces: null });
  }

  /** Changes what is named, and tells everyone once. What a listener changes is told when all have heard what came before. */
  set(change: Partial<State>): void {
    const before = this.#state;
    this.#state = { ...before, ...change };
    this.#news.push([this.#state, before]);
    if (this.#news.length > 1) {
      return;
    }
    for (let next = this.#news[0]; next !== undefined; next = this.#news[0]) {
      try {
        for (const listener of [...this.#listeners]) {
          listener(...next);
        }
      } finally {
        this.#news.shift();
      }
    }
  }

  subscribe(listener: Listener): () => void {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  }
}
