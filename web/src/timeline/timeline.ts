import type { App } from "../app.ts";

export function mountTimeline(_element: HTMLElement, _app: App): void {}
