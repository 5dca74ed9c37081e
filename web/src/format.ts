// Bytes, counts and times in words; the same units as the command prints.

const UNITS: [string, number][] = [
  ["KiB", 1024],
  ["MiB", 1024 ** 2],
  ["GiB", 1024 ** 3],
];

/** 1536 as "1.50 KiB". A unit goes up to and including the next, as in PyTorch's messages. */
export function bytes(value: number): string {
  const sign = value < 0 ? "−" : "";
  const size = Math.abs(value);
  if (size <= 1024) {
    return `${sign}${size} bytes`;
  }
  const [unit, scale] = UNITS.find(([, scale]) => size <= scale * 1024) ?? ["GiB", 1024 ** 3];
  return `${sign}${(size / scale).toFixed(2)} ${unit}`;
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
