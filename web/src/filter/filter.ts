import type { App } from "../app.ts";

export function mountFilter(_element: HTMLElement, _app: App): void {}
