// From anywhere on the page to the what-if form.

const NAME = "tonnage-what-if";

/** Settings to ask for; null for whatever the form has, unasked. */
export interface Wish {
  conf: string | null;
  limit: number | null;
}

/** Opens the what-if view and asks for these settings under this limit; without settings it is only opened. */
export function askWhatIf(conf: string | null, limit: number | null): void {
  location.hash = "what-if";
  window.dispatchEvent(new CustomEvent<Wish>(NAME, { detail: { conf, limit } }));
}

export function onWhatIf(listener: (wish: Wish) => void): void {
  window.addEventListener(NAME, (event) => listener((event as CustomEvent<Wish>).detail));
}
