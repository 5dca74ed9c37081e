import type { App } from "../app.ts";

export function mountRun(_element: HTMLElement, _app: App): void {}
