// Paper folds nothing: what is folded opens while the page is printed.

export function mountPrint(): void {
  let opened: HTMLDetailsElement[] = [];
  addEventListener("beforeprint", () => {
    opened = [...document.querySelectorAll<HTMLDetailsElement>("main details:not([open]):not(.screen)")];
    opened.forEach((it) => (it.open = true));
  });
  addEventListener("afterprint", () => {
    opened.splice(0).forEach((it) => (it.open = false));
  });
}
