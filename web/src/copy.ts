// A line to copy, with its button.
import { h } from "./dom.ts";

/** Shows a line and copies it at a click. Where the clipboard is closed, the line is selected instead. */
export function copyLine(line: string): HTMLElement {
  return copyLines([line]);
}

/** The same for lines that belong together. */
export function copyLines(lines: readonly string[]): HTMLElement {
  const line = lines.join("\n");
  const code = h("code", { text: line });
  return h("div", { class: "copy" }, code, copyButton(line, code));
}

/** A button that copies a text; where the clipboard is closed, the element that shows it is selected. */
export function copyButton(line: string, code?: HTMLElement): HTMLElement {
  const button = h("button", { type: "button", class: "copies", text: "Copy", "aria-label": `Copy ${line}` });
  button.addEventListener("click", () => {
    const done = (word: string) => {
      button.textContent = word;
      setTimeout(() => (button.textContent = "Copy"), 1500);
    };
    // Browsers open the clipboard to secure addresses only; loopback is one, another machine's name is not.
    const copied = navigator.clipboard?.writeText(line) ?? Promise.reject(new Error("closed"));
    copied.then(
      () => done("Copied"),
      () => {
        getSelection()?.selectAllChildren(code ?? button.previousElementSibling ?? button);
        done("Selected");
      },
    );
  });
  return button;
}

/** The settings as a line for a shell, or nothing where quoting would not be enough. */
export function exportLine(conf: string): string | null {
  if (conf === "") {
    return "unset PYTORCH_CUDA_ALLOC_CONF";
  }
  return conf.length < 500 && /^[A-Za-z0-9_:,.[\]>-]+$/.test(conf) ? `export PYTORCH_CUDA_ALLOC_CONF='${conf}'` : null;
}
