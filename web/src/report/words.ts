// Words for what a report names by identifiers; the same as `tonnage report` uses.

/** Kinds of waste, in the order of the bar. */
export const WASTE: [kind: string, meaning: string][] = [
  ["fragmentation", "free where it did not fit"],
  ["pinned_segment", "free in a segment that one live block keeps"],
  ["stream", "cached for another stream"],
  ["private_pool", "free in a private pool"],
  ["pending", "freed, another stream may still use it"],
  ["unsplit", "handed out beyond the rounded size"],
  ["rounding", "rounded up"],
];

const GROWTH: Record<string, string> = {
  leak: "memory leaks",
  longer_inputs: "inputs get longer",
  growing_tensor: "a tensor grows by concatenation",
  fragmentation: "reserved memory grows more than what is asked for",
  steady: "steady",
  unknown: "steady",
};

const TOLD_BY: Record<string, string> = {
  annotations: "the optimizer’s marks",
  repetition: "repeated requests",
  tides: "live bytes that rise and fall",
};

/** "pinned_segment" as "pinned segment". */
export function spaced(identifier: string): string {
  return identifier.replaceAll("_", " ");
}

export function growthWords(kind: string): string {
  return GROWTH[kind] ?? spaced(kind);
}

export function toldBy(source: string): string {
  return TOLD_BY[source] ?? spaced(source);
}

/** The first letter large. */
export function capital(text: string): string {
  return text.charAt(0).toUpperCase() + text.slice(1);
}

/** Ends with one full stop. */
export function sentence(text: string): string {
  return /[.!?]$/.test(text) ? text : `${text}.`;
}
