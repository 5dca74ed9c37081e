// Bytes, counts and times in words, in the units that the command prints; texts from files made harmless to read.
import type { Site } from "./api.ts";

const UNITS: [string, number][] = [
  ["KiB", 1024],
  ["MiB", 1024 ** 2],
  ["GiB", 1024 ** 3],
  ["TiB", 1024 ** 4],
  ["PiB", 1024 ** 5],
];

/** From this many of a unit on, two decimals would read as 1024 of it. */
const NEXT_UNIT = 1023.995;

/** 1536 as "1.50 KiB". Never 1024 of a unit, which is one of the next. */
export function bytes(value: number): string {
  const sign = value < 0 ? "−" : "";
  const size = Math.abs(value);
  if (size < 1024) {
    return `${sign}${size} ${size === 1 ? "byte" : "bytes"}`;
  }
  const [unit, scale] = UNITS.find(([, scale]) => size / scale < NEXT_UNIT) ?? ["EiB", 1024 ** 6];
  return `${sign}${(size / scale).toFixed(2)} ${unit}`;
}

/** Bytes that no other number of bytes is called: in a unit if two decimals are exact, else all digits. */
export function exactBytes(value: number): string {
  const rounded = bytes(value);
  const [, digits, unit] = /^([0-9.]+) (.*)$/.exec(rounded) ?? [];
  const scale = UNITS.find(([name]) => name === unit)?.[1] ?? 1;
  return Number(digits) * scale === value ? rounded : `${value} bytes`;
}

/** Bytes in a unit and to the last one: "16.00 MiB (16,777,216 bytes)". */
export function exactly(value: number): string {
  const rounded = bytes(value);
  return / bytes?$/.test(rounded) ? rounded : `${rounded} (${count(value)} bytes)`;
}

/** 1234567 as "1,234,567". */
export function count(value: number): string {
  return Math.round(value).toString().replace(/\B(?=(\d{3})+$)/g, ",");
}

/** Microseconds as "1.50 ms". */
export function duration(us: number): string {
  if (us < 1000) {
    return `${Math.round(us)} µs`;
  }
  if (us < 1_000_000) {
    return `${(us / 1000).toPrecision(3)} ms`;
  }
  return `${(us / 1_000_000).toPrecision(3)} s`;
}

/** An address as PyTorch prints it. */
export function address(value: number): string {
  return `0x${value.toString(16)}`;
}

/** The last part of a path. */
export function base(path: string): string {
  return path.slice(path.lastIndexOf("/") + 1);
}

/** The end of a path, as much of it as `most` letters hold: whole parts where that is possible. */
export function fromEnd(path: string, most: number): string {
  if (path.length <= most) {
    return path;
  }
  const tail = path.slice(path.length - most + 1);
  const part = tail.indexOf("/");
  return `…${part < 0 || part === tail.length - 1 ? tail : tail.slice(part)}`;
}

/** A line as people say it: "train.py:12 forward". */
export function siteText(site: Site | null): string {
  return site === null ? "line not recorded" : `${base(site.file)}:${site.line} ${site.function}`;
}

/** What a reader would not see, or would see elsewhere: control characters, marks of direction, spaces without width. */
const HIDDEN = /[\u0000-\u001f\u007f-\u009f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]/g;

/** Longer texts are of no use on a screen, and slow; and so much of sentences that have such texts in them. */
const LONGEST = 400;
const LONGEST_SENTENCES = 2000;

/** A text from a file, without what hides in it, and no longer than one can read. */
export function plain(text: string): string {
  return cleared(text, LONGEST);
}

/** The same of sentences, which name several. */
export function plainSentences(text: string): string {
  return cleared(text, LONGEST_SENTENCES);
}

function cleared(text: string, most: number): string {
  const short = text.length > most ? `${text.slice(0, most)}…` : text;
  return short.replace(HIDDEN, "\ufffd");
}
