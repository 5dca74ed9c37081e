import type { App } from "../app.ts";

export function mountCompare(_element: HTMLElement, _app: App): void {}
