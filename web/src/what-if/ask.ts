// From anywhere on the page to the what-if form.

const NAME = "tonnage-what-if";

/** Opens the what-if view and asks for these settings. */
export function askWhatIf(conf: string): void {
  location.hash = "what-if";
  window.dispatchEvent(new CustomEvent<string>(NAME, { detail: conf }));
}

export function onWhatIf(listener: (conf: string) => void): void {
  window.addEventListener(NAME, (event) => listener((event as CustomEvent<string>).detail));
}
