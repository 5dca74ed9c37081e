// One question at a time, and always the latest next. In: questions, faster than answers. Out: answers, in order.
//
// Asking anew at each move and dropping the answer before it would show nothing while a slider moves.
// So a question that is on its way is let through, unless it takes so long that it is given up for the next.

/** Milliseconds after which an answer that is no longer wanted is given up. Long: on a slow machine each takes long. */
const PATIENCE = 1000;

export class Latest<Q, A> {
  #ask: (question: Q, signal: AbortSignal) => Promise<A>;
  #done: (answer: A, question: Q) => void;
  #failed: (error: unknown) => void;
  #patience: number;
  #asked: { since: number; abort: AbortController } | null = null;
  #next: { question: Q } | null = null;

  constructor(
    ask: (question: Q, signal: AbortSignal) => Promise<A>,
    done: (answer: A, question: Q) => void,
    failed: (error: unknown) => void,
    patience = PATIENCE,
  ) {
    this.#ask = ask;
    this.#done = done;
    this.#failed = failed;
    this.#patience = patience;
  }

  put(question: Q): void {
    this.#next = { question };
    if (this.#asked === null) {
      void this.#work();
    } else if (performance.now() - this.#asked.since > this.#patience) {
      this.#asked.abort.abort();
    }
  }

  async #work(): Promise<void> {
    while (this.#next !== null) {
      const { question } = this.#next;
      this.#next = null;
      const abort = new AbortController();
      this.#asked = { since: performance.now(), abort };
      try {
        this.#done(await this.#ask(question, abort.signal), question);
      } catch (error) {
        // Of questions that something newer has replaced, no one wants to hear.
        if (!abort.signal.aborted && this.#next === null) {
          this.#failed(error);
        }
      }
    }
    this.#asked = null;
  }
}
