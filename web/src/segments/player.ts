// Steps through moments, like a film.

/** Milliseconds between two steps. */
const PACE = 100;

/** So many steps from one end of what is shown to the other. */
const STEPS = 200;

export class Player {
  #timer: number | undefined;

  /** `advance` goes on by so many entries, and says whether there is more. */
  constructor(private readonly advance: (entries: number) => boolean, private readonly changed: (isPlaying: boolean) => void) {}

  get isPlaying(): boolean {
    return this.#timer !== undefined;
  }

  /** Plays a range of so many entries, or stops. */
  toggle(entries: number): void {
    if (this.isPlaying) {
      this.stop();
      return;
    }
    const step = Math.max(Math.round(entries / STEPS), 1);
    this.#timer = window.setInterval(() => {
      if (!this.advance(step)) this.stop();
    }, PACE);
    this.changed(true);
  }

  stop(): void {
    if (!this.isPlaying) return;
    clearInterval(this.#timer);
    this.#timer = undefined;
    this.changed(false);
  }
}
