// What the page and the worker that draws say to each other.
import type { Frame, Levels, Picture } from "./raster.ts";
import type { Spans } from "./sweep.ts";

export type ToWorker =
  | { kind: "open"; spans: Spans; entries: number; levels: Levels }
  /** A pixel for each row plus one, and the row that is chosen. */
  | { kind: "look"; colours: Uint32Array; chosen: number; chosenColour: number }
  | { kind: "choose"; chosen: number }
  | { kind: "draw"; number: number; frame: Frame };

export interface FromWorker {
  /** The number of what was asked for. */
  number: number;
  picture: Picture;
  bitmap: ImageBitmap;
  /** Milliseconds in the worker. */
  took: number;
}
