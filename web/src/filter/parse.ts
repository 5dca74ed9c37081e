// The filter's language: text in, terms or complaints out. What the terms mean is in match.ts.
//
//   line:train.py:12  frame:attention  module:nn.linear  size:>1MiB  life:<100  life:>5ms  stream:0  pool:large  purpose:activations  live:peak  address:0x7f…
//
// Terms are separated by spaces and all must hold; "-" before one turns it around; quotes keep spaces together. A word
// without a key is looked for in file, line and function of every frame; line: means the program's own line alone.

/** A comparison, as bounds: least <= value <= most. */
export interface Range {
  least: number;
  most: number;
}

export type Test =
  | { kind: "line"; file: string; line: number | null }
  | { kind: "word" | "frame" | "module"; text: string }
  | { kind: "size"; range: Range }
  | { kind: "life"; range: Range; unit: "entries" | "us" }
  | { kind: "stream" | "pool" | "purpose"; text: string }
  | { kind: "live"; entry: number | "peak" }
  | { kind: "address"; address: number };

export interface Term {
  test: Test;
  negated: boolean;
  /** Where it stands in the text. */
  from: number;
  to: number;
}

/** What is wrong, and where. */
export interface Complaint {
  from: number;
  to: number;
  text: string;
}

export interface Parsed {
  terms: Term[];
  complaints: Complaint[];
}

export const KEYS = ["line", "frame", "module", "size", "life", "stream", "pool", "purpose", "live", "address"] as const;
type Key = (typeof KEYS)[number];

/** More terms than anyone types; a bound on the work for a text that was pasted. */
const MOST_TERMS = 50;

/** A value as the language takes it: in quotes if it has spaces. */
export function quoted(value: string): string {
  return /[\s"]/.test(value) || value === "" ? `"${value.replaceAll('"', "")}"` : value;
}

interface Token {
  /** Without quotes. */
  text: string;
  from: number;
  to: number;
  closed: boolean;
}

function tokens(query: string): Token[] {
  const found: Token[] = [];
  for (let at = 0; at < query.length; ) {
    if (/\s/.test(query[at])) {
      at++;
      continue;
    }
    const from = at;
    let text = "";
    let inside = false;
    for (; at < query.length && (inside || !/\s/.test(query[at])); at++) {
      if (query[at] === '"') inside = !inside;
      else text += query[at];
    }
    found.push({ text, from, to: at, closed: !inside });
  }
  return found;
}

const SIZES: Record<string, number> = {
  "": 1, b: 1, k: 1024, kib: 1024, m: 1024 ** 2, mib: 1024 ** 2, g: 1024 ** 3, gib: 1024 ** 3,
  kb: 1e3, mb: 1e6, gb: 1e9,
};

const TIMES: Record<string, number> = { us: 1, "µs": 1, "μs": 1, ms: 1e3, s: 1e6 };

class Wrong extends Error {}

/** "1.5MiB" as its number and unit. */
function quantity(text: string, example: string): { value: number; unit: string } {
  const parts = /^(\d+(?:\.\d+)?|\.\d+)\s*([a-zµμ]*)$/i.exec(text);
  if (parts === null) {
    throw new Wrong(text === "" ? `a number is missing, as in ${example}` : `“${text}” is no number, as in ${example}`);
  }
  return { value: Number(parts[1]), unit: parts[2] };
}

/** ">5", "<=5", "5..7", "5" with a reader for what stands beside the sign. */
function range(text: string, read: (text: string) => number): Range {
  const between = text.split("..");
  if (between.length === 2) {
    const [least, most] = between.map(read);
    if (least > most) throw new Wrong(`${between[0]} is more than ${between[1]}`);
    return { least, most };
  }
  const [, sign, rest] = /^(>=|<=|>|<|=|)(.*)$/.exec(text) ?? ["", "", text];
  const value = read(rest);
  switch (sign) {
    case ">":
      return { least: value + beside(value), most: Infinity };
    case ">=":
      return { least: value, most: Infinity };
    case "<":
      return { least: -Infinity, most: value - beside(value) };
    case "<=":
      return { least: -Infinity, most: value };
    default:
      return { least: value, most: value };
  }
}

/** Less than any difference between two values that are compared: bytes are whole, times have three digits at most. */
function beside(value: number): number {
  return Math.max(1e-6, value * 2 ** -52);
}

function size(text: string): Test {
  const read = (part: string) => {
    const { value, unit } = quantity(part, "size:>1MiB");
    const scale = SIZES[unit.toLowerCase()];
    if (scale === undefined) throw new Wrong(`“${unit}” is no unit of bytes; there are B, KiB, MiB and GiB`);
    return value * scale;
  };
  return { kind: "size", range: range(text, read) };
}

function life(text: string): Test {
  let unit: "entries" | "us" | null = null;
  const read = (part: string) => {
    const found = quantity(part, "life:<100 or life:>5ms");
    const scale = found.unit === "" ? 1 : TIMES[found.unit.toLowerCase()];
    if (scale === undefined) {
      throw new Wrong(`“${found.unit}” is no unit of time; there are us, ms and s, and entries without a unit`);
    }
    const asked = found.unit === "" ? "entries" : "us";
    if (unit !== null && unit !== asked) throw new Wrong("both ends need a unit of time, or neither");
    unit = asked;
    return found.value * scale;
  };
  const found = range(text, read);
  return { kind: "life", range: found, unit: unit ?? "entries" };
}

function test(key: Key, value: string): Test {
  switch (key) {
    case "line": {
      const parts = /^(.*?)(?::(\d+))?$/.exec(value);
      const file = parts?.[1] ?? value;
      if (file === "") throw new Wrong("a file is missing, as in line:train.py:12");
      return { kind: "line", file, line: parts?.[2] === undefined ? null : Number(parts[2]) };
    }
    case "frame":
      if (value === "") throw new Wrong("a file or a function is missing, as in frame:attention");
      return { kind: "frame", text: value.toLowerCase() };
    case "module":
      if (value === "") throw new Wrong("a module is missing, as in module:nn.linear");
      return { kind: "module", text: value.toLowerCase() };
    case "size":
      return size(value);
    case "life":
      return life(value);
    case "stream":
    case "pool":
    case "purpose":
      if (value === "") throw new Wrong(`a name is missing after ${key}:`);
      return { kind: key, text: value.toLowerCase() };
    case "live":
      if (value === "peak") return { kind: "live", entry: "peak" };
      return { kind: "live", entry: Math.floor(quantity(value, "live:peak or live:1200").value) };
    case "address":
      if (!/^(0x)?[0-9a-f]{1,13}$/i.test(value)) throw new Wrong("an address is missing, as in address:0x7f1200000000");
      return { kind: "address", address: Number.parseInt(value.replace(/^0x/i, ""), 16) };
  }
}

/** The key that was probably meant. */
function near(word: string): Key | undefined {
  return KEYS.find((key) => key.startsWith(word) || word.startsWith(key) || key[0] === word[0]);
}

function term(token: Token): Term {
  const negated = token.text.startsWith("-") && token.text.length > 1;
  const text = negated ? token.text.slice(1) : token.text;
  const place = { negated, from: token.from, to: token.to };
  if (!token.closed) throw new Wrong("the closing quote is missing");
  const colon = text.indexOf(":");
  const word = text.slice(0, colon);
  // "train.py:12" is a word: keys are letters only.
  if (colon < 0 || !/^[a-z]+$/.test(word)) {
    return { ...place, test: { kind: "word", text: text.toLowerCase() } };
  }
  const key = KEYS.find((it) => it === word);
  if (key === undefined) {
    const meant = near(word);
    throw new Wrong(`there is no “${word}:”${meant ? `; ${meant}: is meant?` : `; there are ${KEYS.map((it) => `${it}:`).join(" ")}`}`);
  }
  return { ...place, test: test(key, text.slice(colon + 1)) };
}

/** Whether terms look at whole stacks. */
export function needsStacks(terms: readonly Term[]): boolean {
  return terms.some(({ test }) => test.kind === "frame" || test.kind === "module" || test.kind === "word");
}

export function parse(query: string): Parsed {
  const terms: Term[] = [];
  const complaints: Complaint[] = [];
  for (const token of tokens(query)) {
    if (terms.length + complaints.length === MOST_TERMS) {
      complaints.push({ from: token.from, to: query.length, text: `more than ${MOST_TERMS} terms` });
      break;
    }
    try {
      terms.push(term(token));
    } catch (error) {
      if (!(error instanceof Wrong)) throw error;
      complaints.push({ from: token.from, to: token.to, text: error.message });
    }
  }
  return { terms, complaints };
}
