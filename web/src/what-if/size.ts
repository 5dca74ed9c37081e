// Sizes as people write them. In: "24GiB", "24 GB", "1073741824". Out: bytes.

const UNITS: Record<string, number> = {
  "": 1, b: 1, byte: 1, bytes: 1,
  k: 1024, ki: 1024, kib: 1024, kb: 1e3,
  m: 1024 ** 2, mi: 1024 ** 2, mib: 1024 ** 2, mb: 1e6,
  g: 1024 ** 3, gi: 1024 ** 3, gib: 1024 ** 3, gb: 1e9,
  t: 1024 ** 4, ti: 1024 ** 4, tib: 1024 ** 4, tb: 1e12,
};

/** Bytes; null for an empty text; an error that says what a size looks like. */
export function parseSize(text: string): number | null {
  const written = text.trim().toLowerCase();
  if (written === "") {
    return null;
  }
  const [, digits, unit] = /^([0-9]+(?:\.[0-9]+)?)\s*([a-z]*)$/.exec(written) ?? [];
  const scale = unit === undefined ? undefined : UNITS[unit];
  const value = Math.round(Number(digits) * (scale ?? NaN));
  if (!Number.isSafeInteger(value) || value === 0) {
    throw new Error(`“${text.trim()}” is no size: write bytes, 24GiB or 24GB`);
  }
  // Whoever writes 24 has a GPU of 24 GiB in mind.
  if (unit === "" && value < 1024 ** 2) {
    throw new Error(`“${text.trim()}” would be ${value} bytes: write ${value}GiB, or ${value}B if that is meant`);
  }
  return value;
}
