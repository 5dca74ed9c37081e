// The worker that draws, seen from the page.
//
// In:  a recording, colours, views. Out: pictures, the newest view first: while one is drawn, only the latest wish is kept.
import { css, pixel } from "../palette.ts";
import type { Recording } from "../recording.ts";
import type { Axis } from "../store.ts";
import type { FromWorker, ToWorker } from "./messages.ts";
import type { Frame, Picture } from "./raster.ts";

/** What a picture was drawn for. */
export interface View {
  recording: Recording;
  from: number;
  to: number;
  axis: Axis;
  frame: Frame;
}

export interface Drawn {
  view: View;
  picture: Picture;
  bitmap: ImageBitmap;
}

export class Pictures {
  #worker = new Worker("worker.js", { type: "module" });
  #number = 0;
  #drawing: View | null = null;
  #wanted: View | null = null;
  #recording: Recording | null = null;
  /** The last picture, until the next. */
  last: Drawn | null = null;

  constructor(ready: (drawn: Drawn) => void, failed: (text: string) => void) {
    this.#worker.addEventListener("message", (event: MessageEvent<FromWorker>) => {
      const view = this.#drawing;
      this.#drawing = null;
      const { bitmap, picture } = event.data;
      // A recording that is no longer in front is of no interest.
      if (view !== null && view.recording === this.#recording) {
        this.last?.bitmap.close();
        this.last = { view, picture, bitmap };
        ready(this.last);
      } else {
        bitmap.close();
      }
      this.#next();
    });
    this.#worker.addEventListener("error", (event) => failed(`the timeline cannot be drawn: ${event.message}`));
  }

  open(recording: Recording): void {
    this.#recording = recording;
    this.#wanted = null;
    this.last?.bitmap.close();
    this.last = null;
    const { allocations, entries } = recording;
    // Copies that the worker then owns: a column as it is would take all others with it, since they share their bytes.
    const begin = allocations.begin.slice();
    const end = allocations.end.slice();
    const size = allocations.size.slice();
    const allocated = recording.allocated.slice();
    const reserved = recording.reserved.slice();
    this.#post(
      { kind: "open", spans: { length: allocations.length, begin, end, size }, entries, levels: { allocated, reserved } },
      [begin, end, size, allocated, reserved].map((it) => it.buffer as ArrayBuffer),
    );
  }

  /** Colours from now on; what is on the screen stays until it is drawn again. */
  look(colours: Uint32Array, chosen: number): void {
    this.#post({ kind: "look", colours, chosen, chosenColour: pixel(css("--chosen")) }, [colours.buffer as ArrayBuffer]);
  }

  choose(chosen: number): void {
    this.#post({ kind: "choose", chosen });
  }

  draw(view: View): void {
    this.#wanted = view;
    this.#next();
  }

  #next(): void {
    if (this.#drawing === null && this.#wanted !== null) {
      this.#drawing = this.#wanted;
      this.#wanted = null;
      this.#number += 1;
      this.#post({ kind: "draw", number: this.#number, frame: this.#drawing.frame });
    }
  }

  #post(message: ToWorker, moved: Transferable[] = []): void {
    this.#worker.postMessage(message, moved);
  }
}
