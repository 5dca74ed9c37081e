// What is live, moment after moment.
//
// In:  when allocations begin and end, and how large they are. Out: a list of the live ones in order of allocation that can
//      be carried to any later moment, a change at a time.
//
// A new allocation goes to the end of the list, a free takes one out of it; both take constant time.

/** The columns that the sweep needs. */
export interface Spans {
  length: number;
  begin: Uint32Array;
  end: Uint32Array;
  size: Float64Array;
}

/** Which rows begin and end at each moment; made once for a recording. */
export interface Order {
  /** Rows in order of allocation. */
  rows: Uint32Array;
  /** Rows that end within the recording, in order of their ends. */
  ended: Uint32Array;
  /** Place of each row in `rows`. */
  rank: Uint32Array;
}

/** Sorts rows by a column of moments, keeping the order of equals; rows beyond `last` are left out. */
function sortedBy(moments: Uint32Array, last: number): Uint32Array {
  const starts = new Uint32Array(last + 2);
  for (let row = 0; row < moments.length; row++) {
    const moment = moments[row];
    if (moment <= last) starts[moment + 1]++;
  }
  for (let moment = 1; moment < starts.length; moment++) {
    starts[moment] += starts[moment - 1];
  }
  const sorted = new Uint32Array(starts[last + 1]);
  for (let row = 0; row < moments.length; row++) {
    const moment = moments[row];
    if (moment <= last) sorted[starts[moment]++] = row;
  }
  return sorted;
}

export function order(spans: Spans, entries: number): Order {
  const rows = sortedBy(spans.begin, entries);
  const rank = new Uint32Array(spans.length);
  for (let place = 0; place < rows.length; place++) {
    rank[rows[place]] = place;
  }
  return { rows, ended: sortedBy(spans.end, entries), rank };
}

/** No row. */
export const NONE = 0xffffffff;

/** The first place in `rows` whose moment is later than `moment`. */
function after(rows: Uint32Array, moments: Uint32Array, moment: number): number {
  let low = 0;
  let high = rows.length;
  while (low < high) {
    const middle = (low + high) >>> 1;
    if (moments[rows[middle]] <= moment) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** A doubly linked list of what is live, at a moment that only goes forward. */
export class Sweep {
  readonly next: Uint32Array;
  readonly previous: Uint32Array;
  first = NONE;
  last = NONE;
  /**
   * The highest row below which nothing has changed since `settle`: what was drawn up to its top still stands.
   * NONE if even the lowest has changed.
   */
  kept = NONE;
  moment = 0;
  #begun = 0;
  #gone = 0;

  constructor(
    readonly spans: Spans,
    readonly order: Order,
  ) {
    this.next = new Uint32Array(spans.length);
    this.previous = new Uint32Array(spans.length);
  }

  /** Begins anew, with what is live at a moment. */
  start(moment: number): void {
    const { begin, end } = this.spans;
    const { rows, ended } = this.order;
    this.first = this.last = this.kept = NONE;
    this.moment = moment;
    this.#begun = after(rows, begin, moment);
    this.#gone = after(ended, end, moment);
    for (let place = 0; place < this.#begun; place++) {
      const row = rows[place];
      if (end[row] > moment) this.#append(row);
    }
  }

  /** Goes on to a later moment. */
  advance(moment: number): void {
    const { begin, end } = this.spans;
    const { rows, ended } = this.order;
    let born = this.#begun < rows.length ? begin[rows[this.#begun]] : NONE;
    let dead = this.#gone < ended.length ? end[ended[this.#gone]] : NONE;
    // What ends and what begins is taken in the order in which it happened; at the same moment ends come first,
    // except those of rows that begin there: these are never live.
    while (born <= moment || dead <= moment) {
      if (dead <= born) {
        const row = ended[this.#gone++];
        if (begin[row] < end[row]) this.#remove(row);
        dead = this.#gone < ended.length ? end[ended[this.#gone]] : NONE;
      } else {
        const row = rows[this.#begun++];
        if (begin[row] < end[row]) this.#append(row);
        born = this.#begun < rows.length ? begin[rows[this.#begun]] : NONE;
      }
    }
    this.moment = moment;
  }

  /** Says that everything up to the last has been drawn. */
  settle(): void {
    this.kept = this.last;
  }

  #append(row: number): void {
    this.previous[row] = this.last;
    this.next[row] = NONE;
    if (this.last === NONE) this.first = row;
    else this.next[this.last] = row;
    this.last = row;
  }

  #remove(row: number): void {
    const before = this.previous[row];
    const behind = this.next[row];
    if (before === NONE) this.first = behind;
    else this.next[before] = behind;
    if (behind === NONE) this.last = before;
    else this.previous[behind] = before;
    if (this.kept !== NONE && this.order.rank[row] <= this.order.rank[this.kept]) {
      this.kept = before;
    }
  }
}
