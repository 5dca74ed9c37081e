// Work that waits until someone looks: a view that is hidden has no size.

/** Calls back each time the element comes into view after having been hidden. */
export function whenShown(element: HTMLElement, listener: () => void): void {
  let shown = false;
  new ResizeObserver(() => {
    const now = element.clientWidth > 0;
    if (now && !shown) {
      listener();
    }
    shown = now;
  }).observe(element);
}
