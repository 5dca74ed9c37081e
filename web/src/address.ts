// What the page shows, in its address: a reload, the back button and a shared link show the same.
//
// In:  parts of the page, each with its own names. Out: "#view?name=value&…", kept up while things change.
//
// A part whose values are refused keeps the others from nothing.
//
// An address without values only names a view: everything else stays as it is.

import { Turn } from "./turn.ts";

/** What of the page goes into the address. */
export interface Part {
  write(into: URLSearchParams): void;
  read(from: URLSearchParams): void | Promise<void>;
}

/** Milliseconds for which changes are collected: browsers refuse addresses that change with every frame. */
const PAUSE = 250;

/** "#what-if?a=1" as its view and its values; null where it has none. */
export function split(hash: string): { view: string; values: URLSearchParams | null } {
  const [view, ...rest] = hash.replace(/^#/, "").split("?");
  return { view, values: rest.length === 0 ? null : new URLSearchParams(rest.join("?")) };
}

export function join(view: string, values: URLSearchParams): string {
  const text = values.toString();
  return text === "" ? `#${view}` : `#${view}?${text}`;
}

/** A whole number that is not negative; null for anything else. */
export function whole(text: string | null): number | null {
  return text !== null && /^\d{1,15}$/.test(text) ? Number(text) : null;
}

/** A place along the recording, as short as it can be told apart. */
export function brief(value: number): string {
  return String(Number(value.toFixed(2)));
}

export class Address {
  #parts: Part[] = [];
  #timer: number | undefined;
  /** While an address is read, what it changes is not written back. */
  #reading = 0;
  #reads = new Turn();

  add(part: Part): void {
    this.#parts.push(part);
  }

  /** Something has changed that the address tells. */
  changed(): void {
    // For whoever waits for it, as tests do.
    document.documentElement.dataset.address = "behind";
    this.#timer ??= window.setTimeout(() => {
      this.#timer = undefined;
      this.write();
    }, PAUSE);
  }

  write(): void {
    if (this.#reading > 0) return;
    const values = new URLSearchParams();
    for (const part of this.#parts) part.write(values);
    const next = join(split(location.hash).view || "memory", values);
    if (next !== location.hash) history.replaceState(history.state, "", next);
    document.documentElement.dataset.address = "current";
  }

  /** Shows what the address says; false if it says nothing. */
  async read(): Promise<boolean> {
    const { values } = split(location.hash);
    if (values === null) {
      this.changed();
      return false;
    }
    const isLast = this.#reads.take();
    const refused: unknown[] = [];
    this.#reading += 1;
    for (const part of this.#parts) {
      if (!isLast()) break;
      try {
        await part.read(values);
      } catch (error) {
        refused.push(error);
      }
    }
    this.#reading -= 1;
    this.changed();
    if (refused.length > 0) throw refused[0];
    return true;
  }
}
