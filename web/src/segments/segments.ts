import type { App } from "../app.ts";

export function mountSegments(_element: HTMLElement, _app: App): void {}
