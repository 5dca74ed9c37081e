// The segment map's canvas.
//
// In:  a moment's segments and blocks, their layout, a colour for each block. Out: pixels; what lies under a place.
import { FONT, contextOf, fitCanvas } from "../canvas.ts";
import { bytes } from "../format.ts";
import { css } from "../palette.ts";
import type { Recording } from "../recording.ts";
import { type Layout, type Piece, HEIGHT, at } from "./layout.ts";
import type { Piece as Marked } from "../store.ts";
import { type Moment, type Strip, gaps } from "./moment.ts";

export interface Look {
  /** The colour of a block, as CSS writes it. */
  colour(row: number): string;
  chosen: number;
  pointed: number;
  /** Free memory to mark, by address. */
  marked: readonly Marked[];
}

/** How much of its colour a mark on free memory has: less than a block that is blamed. */
const MARK = 0.5;

/** Blocks that are merged into the pixel of the one before would only cost time. */
const THINNEST = 0.5;

/** Free memory that a cause means. What has been handed out since is painted over it. */
function paintMarked(context: CanvasRenderingContext2D, piece: Piece, marked: readonly Marked[]): void {
  const base = piece.strip.address;
  const scale = piece.width / (piece.to - piece.from);
  context.save();
  context.fillStyle = css("--failed");
  context.globalAlpha = MARK;
  for (let place = firstAfter(marked, base + piece.from); place < marked.length; place++) {
    const from = Math.max(marked[place].address - base, piece.from);
    const to = Math.min(marked[place].address + marked[place].size - base, piece.to);
    if (from >= piece.to) break;
    if (to > from) context.fillRect(piece.x + (from - piece.from) * scale, piece.y, Math.max((to - from) * scale, 1), HEIGHT);
  }
  context.restore();
}

/** The first that ends behind an address; they are by address and do not overlap. */
function firstAfter(marked: readonly Marked[], address: number): number {
  let low = 0;
  let high = marked.length;
  while (low < high) {
    const middle = (low + high) >>> 1;
    if (marked[middle].address + marked[middle].size <= address) low = middle + 1;
    else high = middle;
  }
  return low;
}

function paintPiece(context: CanvasRenderingContext2D, recording: Recording, { blocks }: Moment, piece: Piece, look: Look): void {
  const { address, size } = recording.allocations;
  const base = piece.strip.address;
  const scale = piece.width / (piece.to - piece.from);
  context.fillStyle = css("--free");
  context.fillRect(piece.x, piece.y, piece.width, HEIGHT);
  paintMarked(context, piece, look.marked);
  let painted = -Infinity;
  for (let place = piece.strip.from; place < piece.strip.to; place++) {
    const row = blocks[place];
    const from = Math.max(address[row] - base, piece.from);
    const to = Math.min(address[row] - base + size[row], piece.to);
    if (to <= from) continue;
    const left = piece.x + (from - piece.from) * scale;
    const right = piece.x + (to - piece.from) * scale;
    if (right - painted < THINNEST && row !== look.chosen) continue;
    painted = right;
    const width = right - left;
    context.fillStyle = look.colour(row);
    // A line of background between blocks that are wide enough to spare it.
    context.fillRect(left, piece.y, width > 3 ? width - 1 : Math.max(width, 0.75), HEIGHT);
    if (row === look.chosen || row === look.pointed) {
      context.strokeStyle = css("--chosen");
      context.lineWidth = 2;
      context.strokeRect(left + 1, piece.y + 1, Math.max(width - 3, 1), HEIGHT - 2);
    }
  }
  context.strokeStyle = css("--soft");
  context.lineWidth = 1;
  context.strokeRect(piece.x + 0.5, piece.y + 0.5, Math.max(piece.width - 1, 1), HEIGHT - 1);
}

export function paintMap(canvas: HTMLCanvasElement, recording: Recording, moment: Moment, layout: Layout, look: Look): void {
  canvas.style.height = `${Math.max(layout.height, HEIGHT)}px`;
  fitCanvas(canvas);
  const context = contextOf(canvas);
  context.clearRect(0, 0, canvas.clientWidth, canvas.clientHeight);
  context.font = FONT;
  context.textBaseline = "middle";
  const { pools, streams } = recording.head;
  for (const { group, y } of layout.headings) {
    const name = `${pools[group.pool] ?? "pool not known"} · stream ${streams[group.stream] ?? group.stream}`;
    const figures = `${group.strips.length} ${group.strips.length === 1 ? "segment" : "segments"}, ${bytes(group.allocated)} of ${bytes(group.reserved)}`;
    context.fillStyle = css("--text");
    context.fillText(name, 0, y + 12);
    const width = context.measureText(name).width;
    context.fillStyle = css("--muted");
    context.fillText(figures, width + 12, y + 12);
  }
  for (const piece of layout.pieces) {
    paintPiece(context, recording, moment, piece, look);
  }
}

/** What lies at a place: a block's row, or -1 and how much is free there. */
export interface Under {
  row: number;
  strip: Strip;
  free: number;
}

export function under(recording: Recording, { blocks }: Moment, layout: Layout, x: number, y: number): Under | null {
  const found = at(layout, x, y);
  if (found === null) return null;
  const { strip } = found.piece;
  const { address, size } = recording.allocations;
  const where = strip.address + found.byte;
  for (let place = strip.from; place < strip.to; place++) {
    const row = blocks[place];
    if (where >= address[row] && where < address[row] + size[row]) return { row, strip, free: 0 };
  }
  let free = 0;
  gaps(recording, strip, blocks, (from, to) => {
    if (where >= from && where < to) free = to - from;
  });
  return { row: -1, strip, free };
}
