// All stacks of a recording: fetched when someone first searches, colours or sums up by frames.
//
// In:  a recording. Out: distinct frames, and for each stack their numbers, innermost call first.
import { type Column, type Frame, api } from "./api.ts";
import { plain } from "./format.ts";
import { type Recording, decodeColumns } from "./recording.ts";

/** For each stack the way that leads to it, innermost call first. */
export interface Paths {
  /** Distinct calls. */
  names: Frame[];
  /** Those of stack s are `frames` from starts[s] up to starts[s + 1]. */
  starts: Uint32Array;
  frames: Uint32Array;
}

export interface Stacks extends Paths {
  /** The modules on the way: the name as the function, the line that calls the next module or 0. */
  modules: Paths;
}

/** Reads what GET stacks answers. */
export function decodeStacks(bytes: ArrayBuffer): Stacks {
  const { head, column } = decodeColumns<{ columns: Column[]; names: Frame[]; modules: Frame[] }>(bytes);
  const readable = (list: Frame[] | undefined) => (list ?? []).map(({ file, line, function: name }) => ({ file: plain(file), line, function: plain(name) }));
  return {
    names: readable(head.names),
    starts: column<Uint32Array>("starts"),
    frames: column<Uint32Array>("frames"),
    modules: { names: readable(head.modules), starts: column<Uint32Array>("moduleStarts"), frames: column<Uint32Array>("moduleFrames") },
  };
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
export function frameAt({ starts, frames }: Paths, stack: number, depth: number): number {
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
  return holds(frameText(frame).toLowerCase(), text);
}

function holds(said: string, text: string): boolean {
  for (let at = said.indexOf(text); at >= 0; at = said.indexOf(text, at + 1)) {
    const next = said[at + text.length] ?? "";
    if (!(/\d$/.test(text) && /\d/.test(next))) return true;
  }
  return false;
}

/** A 1 for each stack that has such a frame anywhere. */
export function stacksWith({ names, starts, frames }: Paths, takes: (frame: Frame) => boolean): Uint8Array {
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

/** A module with the line in it that calls the next one. */
export function moduleName({ function: name, line }: Frame): string {
  return line === 0 ? name : `${name}:${line}`;
}

const written = new WeakMap<Paths, string[]>();

/** For each stack its modules, outermost first, as `a:12 > b`; nothing where it goes through none. Worked out once. */
export function modulePaths(modules: Paths): string[] {
  let found = written.get(modules);
  if (found === undefined) {
    const { names, starts, frames } = modules;
    found = Array.from({ length: Math.max(starts.length - 1, 0) }, (_, stack) =>
      [...frames.subarray(starts[stack], starts[stack + 1])].reverse().map((it) => moduleName(names[it])).join(" > "));
    written.set(modules, found);
  }
  return found;
}

/** A 1 for each stack whose modules have this text: the line 1 is no part of the line 12. */
export function stacksOfModule(modules: Paths, text: string): Uint8Array {
  return Uint8Array.from(modulePaths(modules), (path) => (holds(path.toLowerCase(), text) ? 1 : 0));
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
