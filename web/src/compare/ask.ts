// From anywhere on the page to the comparison of two recordings.

const NAME = "tonnage-compare";

export type Pair = [number, number];

/** Opens the comparison with these two, by their ids. */
export function askCompare(pair: Pair): void {
  window.dispatchEvent(new CustomEvent<Pair>(NAME, { detail: pair }));
  location.hash = "compare";
}

export function onCompare(listener: (pair: Pair) => void): void {
  window.addEventListener(NAME, (event) => listener((event as CustomEvent<Pair>).detail));
}
