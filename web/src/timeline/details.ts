import type { App } from "../app.ts";

export function mountDetails(_element: HTMLElement, _app: App): void {}
