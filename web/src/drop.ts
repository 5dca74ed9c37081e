// A file that is dropped on the page is opened, as if it had been named on the command line.
import { api } from "./api.ts";
import type { App } from "./app.ts";
import { h } from "./dom.ts";
import { bytes, plain } from "./format.ts";

function hasFiles(event: DragEvent): boolean {
  return event.dataTransfer?.types.includes("Files") ?? false;
}

async function open(app: App, files: File[]): Promise<void> {
  let first: number | undefined;
  const refused: string[] = [];
  for (const file of files) {
    app.say(`Reading ${plain(file.name)}, ${bytes(file.size)}…`);
    try {
      const found = await api.open(file);
      found.forEach((it) => app.put(it));
      first ??= found[0]?.id;
    } catch (error) {
      refused.push(error instanceof Error ? error.message : String(error));
    }
  }
  app.say(refused.join("; "), refused.length > 0);
  // Of dropped files the server keeps the last.
  await app.refresh();
  if (first !== undefined) {
    location.hash = "memory";
    await app.show(first);
  }
}

export function mountDrop(app: App): void {
  const sign = h("div", { class: "drop", hidden: true, text: "Drop the snapshot to open it" });
  document.body.append(sign);
  // Entering a child leaves the parent: what counts is whether anything is still over the page.
  let inside = 0;
  const show = (by: number) => {
    inside = Math.max(inside + by, 0);
    sign.hidden = inside === 0;
  };
  window.addEventListener("dragenter", (event) => hasFiles(event) && show(1));
  window.addEventListener("dragleave", (event) => hasFiles(event) && show(-1));
  window.addEventListener("dragover", (event) => {
    if (hasFiles(event)) event.preventDefault();
  });
  window.addEventListener("drop", (event) => {
    if (!hasFiles(event)) return;
    event.preventDefault();
    show(-inside);
    app.attempt(open(app, [...(event.dataTransfer?.files ?? [])]));
  });
}
