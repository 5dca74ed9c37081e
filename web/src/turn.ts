// Of several questions that are under way, only the last may change the page.

export class Turn {
  #last = 0;

  /** Begins one. What it returns says whether nothing has begun since. */
  take(): () => boolean {
    this.#last += 1;
    const own = this.#last;
    return () => own === this.#last;
  }
}
