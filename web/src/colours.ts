// Which colour an allocation has: by purpose, call site, module, layer, any frame, stream or size.
//
// In:  a recording, what to colour by, what the filter shows and a cause blames. Out: classes with their names, and a
//      pixel for each row.
import type { Site } from "./api.ts";
import { quoted } from "./filter/parse.ts";
import { base, bytes, siteText } from "./format.ts";
import { css, mix, pixel } from "./palette.ts";
import type { Recording } from "./recording.ts";
import { type Stacks, frameAt, modulePaths, stacksOf } from "./stacks.ts";
import type { ColourBy } from "./store.ts";

export interface Class {
  label: string;
  /** The custom property with its colour. */
  colour: string;
  /** The filter that takes just these, if there is one. */
  query: string | null;
}

export interface Classes {
  list: Class[];
  /** The class of each row. */
  of: Uint8Array;
}

const PURPOSES = ["parameters", "gradients", "optimizer", "activations", "temporary", "workspace", "cache"];

/** Colours for what has no colour of its own; the rest shares one. */
const KINDS = 10;

/** Upper bounds of sizes that share a colour; the last class has no bound. */
const SIZES = [4 * 1024, 64 * 1024, 1024 ** 2, 10 * 1024 ** 2, 100 * 1024 ** 2, 1024 ** 3];

function byPurpose({ head, allocations }: Recording): Classes {
  const list = head.purposes.map((label) => ({
    label,
    colour: PURPOSES.includes(label) ? `--${label}` : "--unknown",
    query: `purpose:${quoted(label)}` as string | null,
  }));
  list.push({ label: "unknown", colour: "--unknown", query: null });
  const of = allocations.purpose.map((purpose) => Math.min(purpose, list.length - 1));
  return { list, of };
}

/** The `KINDS` that hold most get a colour each, in order of what they hold. */
function byKind(
  recording: Recording,
  kinds: ArrayLike<number>,
  named: (kind: number) => { label: string; query: string | null },
  rest: string,
): Classes {
  const { allocations, head } = recording;
  const peak = head.peak.allocatedAt;
  const held = new Map<number, number>();
  for (let row = 0; row < allocations.length; row++) {
    // What is live at the peak counts; the rest decides between those that hold nothing there.
    const live = allocations.begin[row] <= peak && peak < allocations.end[row];
    const weight = allocations.size[row] * (live ? 1 : 1e-9);
    held.set(kinds[row], (held.get(kinds[row]) ?? 0) + weight);
  }
  const most = [...held].sort((a, b) => b[1] - a[1]).slice(0, KINDS);
  const classes = new Map(most.map(([kind], place) => [kind, place]));
  const list: Class[] = most.map(([kind], place) => ({ ...named(kind), colour: `--kind-${place}` }));
  if (held.size > most.length) {
    list.push({ label: rest, colour: "--unknown", query: null });
  }
  const of = new Uint8Array(allocations.length);
  for (let row = 0; row < of.length; row++) {
    of[row] = classes.get(kinds[row]) ?? most.length;
  }
  return { list, of };
}

function bySize({ allocations }: Recording): Classes {
  const name = (place: number) => bytes(SIZES[place]).replace(".00", "");
  const list = Array.from({ length: SIZES.length + 1 }, (_, place) => ({
    label: place < SIZES.length ? `up to ${name(place)}` : `above ${name(place - 1)}`,
    colour: `--size-${place}`,
    query: [
      place > 0 ? `size:>${name(place - 1).replace(" ", "")}` : "",
      place < SIZES.length ? `size:<=${name(place).replace(" ", "")}` : "",
    ].join(" ").trim(),
  }));
  const of = new Uint8Array(allocations.length);
  for (let row = 0; row < of.length; row++) {
    const size = allocations.size[row];
    let place = 0;
    while (place < SIZES.length && size > SIZES[place]) place++;
    of[row] = place;
  }
  return { list, of };
}

function siteClass(site: Site | null): { label: string; query: string | null } {
  return { label: siteText(site), query: site && `line:${quoted(`${base(site.file)}:${site.line}`)}` };
}

function streamClass(name: string): { label: string; query: string } {
  return { label: `stream ${name}`, query: `stream:${quoted(name)}` };
}

/** By the frame at a depth; what has none shares a class with what is not known. */
function byFrame(recording: Recording, stacks: Stacks, depth: number): Classes {
  const { stack, length } = recording.allocations;
  const frames = new Uint32Array(length);
  for (let row = 0; row < length; row++) {
    frames[row] = stack[row] === 0 ? 0 : frameAt(stacks, stack[row] - 1, depth) + 1;
  }
  const named = (number: number) => {
    const frame = stacks.names[number - 1];
    if (frame === undefined) return { label: "no such frame", query: null };
    return { label: siteText(frame), query: `frame:${quoted(`${frame.file}:${frame.line}`)}` };
  };
  return byKind(recording, frames, named, "other frames");
}

/** The end of a path: paths of one model begin alike. */
function innermost(path: string): string {
  const parts = path.split(" > ");
  return parts.length > 2 ? `… > ${parts.slice(-2).join(" > ")}` : path;
}

/** By the modules on the way of its stack, layers of one line alike; what goes through none shares a class with what has no stack. */
function byModule(recording: Recording, { modules: { of }, modules }: Stacks): Classes {
  return byPath(recording, of, modulePaths(modules).kinds, "no module", "other modules");
}

/** By the layer: the innermost module with an index, and what leads to it. */
function byLayer(recording: Recording, { modules: { of }, modules }: Stacks): Classes {
  const upToIndex = (path: string) => path.slice(0, path.lastIndexOf("]") + 1);
  return byPath(recording, of, modulePaths(modules).layers.map(upToIndex), "no layer", "other layers");
}

function byPath(recording: Recording, numbersOf: Uint32Array, paths: string[], none: string, others: string): Classes {
  const { length } = recording.allocations;
  const numbers = new Map<string, number>([["", 0]]);
  const ofPath = paths.map((path) => {
    const number = numbers.get(path) ?? numbers.size;
    numbers.set(path, number);
    return number;
  });
  const names = [...numbers.keys()];
  const modules = new Uint32Array(length);
  for (let row = 0; row < length; row++) modules[row] = numbersOf[row] === 0 ? 0 : (ofPath[numbersOf[row] - 1] ?? 0);
  const named = (number: number) =>
    number === 0 ? { label: none, query: null } : { label: innermost(names[number]), query: `module:${quoted(names[number])}` };
  return byKind(recording, modules, named, others);
}

const made = new WeakMap<Recording, Map<string, Classes>>();

/** The classes of a recording's allocations; worked out once. Frames and modules need stacks: until they are there, call sites stand for them. */
export function classesOf(recording: Recording, by: ColourBy, depth = 0): Classes {
  const isOfStacks = by === "frame" || by === "module" || by === "layer";
  const stacks = isOfStacks ? stacksOf(recording) : null;
  if (isOfStacks && stacks === null) return classesOf(recording, "site");
  const known = made.get(recording) ?? new Map<string, Classes>();
  made.set(recording, known);
  const key = `${by} ${by === "frame" ? depth : ""}`;
  let classes = known.get(key);
  if (classes === undefined) {
    const { allocations, head } = recording;
    classes = {
      frame: () => byFrame(recording, stacks!, depth),
      module: () => byModule(recording, stacks!),
      layer: () => byLayer(recording, stacks!),
      purpose: () => byPurpose(recording),
      site: () => byKind(recording, allocations.site, (site) => siteClass(head.sites[site] ?? null), "other lines"),
      stream: () => byKind(recording, allocations.stream, (stream) => streamClass(head.streams[stream] ?? String(stream)), "other streams"),
      size: () => bySize(recording),
    }[by]();
    known.set(key, classes);
  }
  return classes;
}

/** What to colour by at first: purposes, unless next to none is known and call sites are. */
export function bestColours(recording: Recording): ColourBy {
  const { allocations, head } = recording;
  const known = new Set(head.purposes.flatMap((name, purpose) => (PURPOSES.includes(name) ? [purpose] : [])));
  let all = 0;
  let purposes = 0;
  let sites = 0;
  for (let row = 0; row < allocations.length; row++) {
    const size = allocations.size[row];
    all += size;
    if (known.has(allocations.purpose[row])) purposes += size;
    if (allocations.site[row] > 0) sites += size;
  }
  return purposes < all * 0.1 && sites > purposes ? "site" : "purpose";
}

/** Shades of one colour, so that neighbours differ. */
const SHADES = [0, 0.07, 0.14, 0.21];

/** How much of its colour an allocation keeps that the filter leaves out. */
const DIM = 0.12;

/** A pixel for each row plus one; the first is "nothing". What a cause blames is in its colour, all else is dim. */
export function rowPixels(
  recording: Recording,
  by: ColourBy,
  depth: number,
  shown: Uint8Array | null,
  blamed: ReadonlySet<number> | null,
): Uint32Array {
  const classes = classesOf(recording, by, depth);
  const back = pixel(css("--back"));
  const ground = pixel(css("--free"));
  const bright = classes.list.flatMap(({ colour }) => SHADES.map((part) => mix(back, pixel(css(colour)), part)));
  const dim = bright.map((colour) => mix(colour, ground, DIM));
  const failed = pixel(css("--failed"));
  const { length } = recording.allocations;
  const pixels = new Uint32Array(length + 1);
  for (let row = 0; row < length; row++) {
    const shade = classes.of[row] * SHADES.length + (Math.imul(row, 0x9e3779b1) >>> 30);
    const isDim = blamed !== null || (shown !== null && shown[row] === 0);
    pixels[row + 1] = isDim ? dim[shade] : bright[shade];
  }
  for (const row of blamed ?? []) {
    if (row >= 0 && row < length) pixels[row + 1] = failed;
  }
  return pixels;
}
