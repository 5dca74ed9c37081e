// Draws pictures beside the page, so that the page never waits for one.
//
// In:  a recording's columns once, then colours and views. Out: a bitmap, and what each pixel of it shows.
import type { FromWorker, ToWorker } from "./messages.ts";
import { paint } from "./paint.ts";
import { type Levels, type Picture, Tops, draw } from "./raster.ts";
import { Sweep, order } from "./sweep.ts";

/** What it draws from. */
interface Opened {
  sweep: Sweep;
  tops: Tops;
  levels: Levels;
}

let opened: Opened | null = null;
let colours: Uint32Array = new Uint32Array(1);
let chosen = -1;
let chosenColour = 0xff000000;

async function bitmapOf(picture: Picture): Promise<ImageBitmap> {
  const pixels = paint(picture, colours, chosen, chosenColour);
  const data = new Uint8ClampedArray(pixels.buffer as ArrayBuffer);
  return createImageBitmap(new ImageData(data, picture.width, picture.height));
}

async function answer(message: ToWorker): Promise<void> {
  switch (message.kind) {
    case "open": {
      const { spans, entries, levels } = message;
      opened = { sweep: new Sweep(spans, order(spans, entries)), tops: new Tops(spans.length), levels };
      break;
    }
    case "look":
      ({ colours, chosen, chosenColour } = message);
      break;
    case "choose":
      ({ chosen } = message);
      break;
    case "draw": {
      if (opened === null) break;
      const started = performance.now();
      const picture = draw(opened.sweep, opened.tops, opened.levels, message.frame);
      const bitmap = await bitmapOf(picture);
      const drawn: FromWorker = { number: message.number, picture, bitmap, took: performance.now() - started };
      const moved = [bitmap, picture.rows.buffer, picture.moments.buffer, picture.reserved.buffer];
      postMessage(drawn, { transfer: moved as Transferable[] });
      break;
    }
  }
}

addEventListener("message", (event: MessageEvent<ToWorker>) => void answer(event.data));
