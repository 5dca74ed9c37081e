import type { App } from "../app.ts";

export function mountWhatIf(_element: HTMLElement, _app: App): void {}
