import type { App } from "../app.ts";

export function mountReport(_element: HTMLElement, _app: App): void {}
