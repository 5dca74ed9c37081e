import type { App } from "../app.ts";

export function mountTraining(_element: HTMLElement, _app: App): void {}
