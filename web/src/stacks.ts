// All stacks of a recording: fetched when someone first searches, colours or sums up by frames.
//
// In:  a recording. Out: distinct frames, and for each stack their numbers, innermost call first.
import { type Column, type Frame, api } from "./api.ts";
import { plain } from "./format.ts";
import { type Recording, decodeColumns } from "./recording.ts";

export interface Stacks {
  /** Distinct frames. */
  names: Frame[];
  /** The frames of stack s are `frames` from starts[s] up to starts[s + 1]. */
  starts: Uint32Array;
  frames: Uint32Array;
}

/** Reads what GET stacks answers. */
export function decodeStacks(bytes: ArrayBuffer): Stacks {
  const { head, column } = decodeColumns<{ columns: Column[]; names: Frame[] }>(bytes);
  const names = (head.names ?? []).map(({ file, line, function: name }) => ({ file: plain(file), line, function: plain(name) }));
  return { names, starts: column<Uint32Array>("starts"), frames: column<Uint32Array>("frames") };
}

const asked = new WeakMap<Recording, Promise<Stacks>>();
const there = new WeakMap<Recording, Stacks>();

export function loadStacks(recording: Recording): Promise<Stacks> {
  let found = asked.get(recording);
  if (found === undefined) {
    found = api.stacks(recording.info.id).then(decodeStacks);
    asked.set(recording, found);
    found.then((stacks) => there.set(recording, stacks), () => asked.delete(recording));
  }
  return found;
}

/** The stacks, if they have been fetched. */
export function stacksOf(recording: Recording): Stacks | null {
  return there.get(recording) ?? null;
}

/** The frame at a depth, from 1 for the outermost call; 0 for the innermost. -1 if the stack is not as deep. */
export function frameAt({ starts, frames }: Stacks, stack: number, depth: number): number {
  const [from, to] = [starts[stack], starts[stack + 1]];
  if (from === undefined || to === undefined || to <= from) return -1;
  const place = depth === 0 ? from : to - depth;
  return place >= from ? frames[place] : -1;
}

/** A frame as people write it. */
export function frameText({ file, line, function: name }: Frame): string {
  return `${file}:${line} ${name}`;
}

/** Whether a frame has a text in its file, line or function; the line 1 is no part of the line 12. */
export function hasText(frame: Frame, text: string): boolean {
  const said = frameText(frame).toLowerCase();
  for (let at = said.indexOf(text); at >= 0; at = said.indexOf(text, at + 1)) {
    const next = said[at + text.length] ?? "";
    if (!(/\d$/.test(text) && /\d/.test(next))) return true;
  }
  return false;
}

/** A 1 for each stack that has such a frame anywhere. */
export function stacksWith({ names, starts, frames }: Stacks, takes: (frame: Frame) => boolean): Uint8Array {
  const taken = Uint8Array.from(names, (it) => (takes(it) ? 1 : 0));
  const found = new Uint8Array(Math.max(starts.length - 1, 0));
  for (let stack = 0; stack < found.length; stack++) {
    for (let place = starts[stack]; place < starts[stack + 1]; place++) {
      if (taken[frames[place]] === 1) {
        found[stack] = 1;
        break;
      }
    }
  }
  return found;
}

const recorded = new WeakMap<Recording, boolean>();

/** Whether stacks were recorded. */
export function isStacked(recording: Recording): boolean {
  let found = recorded.get(recording);
  if (found === undefined) {
    found = recording.allocations.stack.some((it) => it > 0);
    recorded.set(recording, found);
  }
  return found;
}
