// The segment map's canvas.
//
// In:  a moment's segments and blocks, their layout, a colour for each block. Out: pixels; what lies under a place.
import { FONT, contextOf, fitCanvas } from "../canvas.ts";
import { bytes } from "../format.ts";
import { css } from "../palette.ts";
import type { Recording } from "../recording.ts";
import { type Layout, type Piece, STRIP, at } from "./layout.ts";
import type { Moment } from "./moment.ts";

export interface Look {
  /** The colour of a block, as CSS writes it. */
  colour(row: number): string;
  chosen: number;
  pointed: number;
}

/** Blocks that are merged into the pixel of the one before would only cost time. */
const THINNEST = 0.5;

function paintPiece(context: CanvasRenderingContext2D, recording: Recording, { blocks, starts }: Moment, piece: Piece, look: Look): void {
  const { address, size } = recording.allocations;
  const base = recording.segments.address[piece.segment];
  const scale = piece.width / (piece.to - piece.from);
  context.fillStyle = css("--free");
  context.fillRect(piece.x, piece.y, piece.width, STRIP);
  let painted = -Infinity;
  for (let place = starts[piece.segment]; place < starts[piece.segment + 1]; place++) {
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
    context.fillRect(left, piece.y, width > 3 ? width - 1 : Math.max(width, 0.75), STRIP);
    if (row === look.chosen || row === look.pointed) {
      context.strokeStyle = css("--chosen");
      context.lineWidth = 2;
      context.strokeRect(left + 1, piece.y + 1, Math.max(width - 3, 1), STRIP - 2);
    }
  }
  context.strokeStyle = css("--soft");
  context.lineWidth = 1;
  context.strokeRect(piece.x + 0.5, piece.y + 0.5, Math.max(piece.width - 1, 1), STRIP - 1);
}

export function paintMap(canvas: HTMLCanvasElement, recording: Recording, moment: Moment, layout: Layout, look: Look): void {
  canvas.style.height = `${Math.max(layout.height, STRIP)}px`;
  fitCanvas(canvas);
  const context = contextOf(canvas);
  context.clearRect(0, 0, canvas.clientWidth, canvas.clientHeight);
  context.font = FONT;
  context.textBaseline = "middle";
  const { pools, streams } = recording.head;
  for (const { group, y } of layout.headings) {
    const name = `${pools[group.pool] ?? "pool not known"} · stream ${streams[group.stream] ?? group.stream}`;
    const figures = `${group.segments.length} ${group.segments.length === 1 ? "segment" : "segments"}, ${bytes(group.allocated)} of ${bytes(group.reserved)}`;
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

/** What lies at a place: a block's row, or free memory of a segment. */
export function under(
  { allocations, segments }: Recording,
  { blocks, starts }: Moment,
  layout: Layout,
  x: number,
  y: number,
): { row: number; segment: number; free: number } | null {
  const found = at(layout, x, y);
  if (found === null) return null;
  const { segment } = found.piece;
  const where = segments.address[segment] + found.byte;
  let edge = segments.address[segment];
  for (let place = starts[segment]; place < starts[segment + 1]; place++) {
    const row = blocks[place];
    const bottom = allocations.address[row];
    const top = bottom + allocations.size[row];
    if (where >= bottom && where < top) return { row, segment, free: 0 };
    if (where < bottom) return { row: -1, segment, free: bottom - edge };
    edge = top;
  }
  return { row: -1, segment, free: segments.address[segment] + segments.size[segment] - edge };
}
