// All stacks of a recording: fetched when someone first searches, colours or sums up by frames.
//
// In:  a recording. Out: distinct frames, and for each stack their numbers, innermost call first; the same for paths of modules.
import { type Column, type Frame, type Module, type Site, api } from "./api.ts";
import { plain } from "./format.ts";
import { type Recording, decodeColumns } from "./recording.ts";

/** Ways that lead somewhere, innermost call first: stacks, or modules inside each other. */
export interface Paths<Call extends Frame = Frame> {
  /** Distinct calls. */
  names: Call[];
  /** Those of way s are `frames` from starts[s] up to starts[s + 1]. */
  starts: Uint32Array;
  frames: Uint32Array;
  /** For each allocation the number of its way, plus one; 0 for none. */
  of: Uint32Array;
}

export interface Stacks extends Paths {
  modules: Paths<Module>;
}

/** Reads what GET stacks answers. */
export function decodeStacks(bytes: ArrayBuffer, { allocations }: Recording): Stacks {
  const { head, column } = decodeColumns<{ columns: Column[]; names: Frame[]; modules: Module[] }>(bytes);
  const readable = <Call extends Frame>(list: Call[] | undefined) => (list ?? []).map((it) => ({ ...it, file: plain(it.file), function: plain(it.function) }));
  return {
    names: readable(head.names),
    starts: column<Uint32Array>("starts"),
    frames: column<Uint32Array>("frames"),
    of: allocations.stack,
    modules: { names: readable(head.modules), starts: column<Uint32Array>("moduleStarts"), frames: column<Uint32Array>("moduleFrames"), of: column<Uint32Array>("modules") },
  };
}

const asked = new WeakMap<Recording, Promise<Stacks>>();
const there = new WeakMap<Recording, Stacks>();

export function loadStacks(recording: Recording): Promise<Stacks> {
  let found = asked.get(recording);
  if (found === undefined) {
    found = api.stacks(recording.info.id).then((bytes) => decodeStacks(bytes, recording));
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
export function frameText({ file, line, function: name }: Site): string {
  return `${file}:${line} ${name}`;
}

/** Whether a frame has a text in its file, line or function; the line 1 is no part of the line 12. */
export function hasText(frame: Site, text: string): boolean {
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

/** A module with the line in it that calls the next one, and which of that line's modules it is. */
export function moduleName(it: Module): string {
  return it.index === null ? kindName(it) : `${kindName(it)}[${it.index}]`;
}

/** The same for all modules that the line calls. */
function kindName({ function: name, line }: Module): string {
  return line === 0 ? name : `${name}:${line}`;
}

interface Written {
  /** Modules, outermost first, as `a:12[7] > b`, */
  layers: string[];
  /** and without indices. */
  kinds: string[];
}

const written = new WeakMap<Paths<Module>, Written>();

/** The paths of modules as texts; worked out once. */
export function modulePaths(modules: Paths<Module>): Written {
  let found = written.get(modules);
  if (found === undefined) {
    const { names, starts, frames } = modules;
    const texts = (name: (it: Module) => string) => Array.from({ length: Math.max(starts.length - 1, 0) }, (_, path) =>
      [...frames.subarray(starts[path], starts[path + 1])].reverse().map((it) => name(names[it])).join(" > "));
    found = { layers: texts(moduleName), kinds: texts(kindName) };
    written.set(modules, found);
  }
  return found;
}

/** A 1 for each path that has this text, with indices or without: the line 1 is no part of the line 12. */
export function pathsWith(modules: Paths<Module>, text: string): Uint8Array {
  const { layers, kinds } = modulePaths(modules);
  return Uint8Array.from(layers, (path, at) => (holds(path.toLowerCase(), text) || holds(kinds[at].toLowerCase(), text) ? 1 : 0));
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
