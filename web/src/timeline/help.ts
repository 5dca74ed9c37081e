// Which keys and gestures there are, in a dialog of its own.
import { h } from "../dom.ts";

const KEYS: [string, string][] = [
  ["← →", "move along the recording"],
  ["+ −", "come closer, go away"],
  ["0 or Home", "show the whole recording"],
  ["F", "fit the height to what is shown, and back"],
  ["[ ]", "point at the previous or next allocation at the moment"],
  ["Enter", "choose what is pointed at"],
  ["Esc", "choose nothing"],
  [", .", "move the moment by an entry; with Shift, to the next iteration or by a hundredth"],
  ["P", "move the moment to the peak"],
  ["/", "go to the filter"],
  ["?", "this help"],
];

const GESTURES: [string, string][] = [
  ["wheel", "closer and away, around the pointer"],
  ["drag", "move along the recording"],
  ["Shift + drag", "mark a part and show it alone"],
  ["Alt + drag, or the dot", "move the moment that the segment map shows"],
  ["click", "choose an allocation, at that moment"],
  ["double click", "show the whole recording"],
];

function table(caption: string, rows: [string, string][]): HTMLElement {
  return h(
    "table",
    {},
    h("caption", { text: caption }),
    h("tbody", {}, ...rows.map(([what, does]) => h("tr", {}, h("th", { scope: "row", text: what }), h("td", { text: does })))),
  );
}

/** A dialog; `showModal` opens it. */
export function help(): HTMLDialogElement {
  const close = h("button", { type: "button", text: "Close" });
  const dialog = h(
    "dialog",
    { class: "help", "aria-label": "Keys and gestures" },
    table("Keys, when the timeline has the focus", KEYS),
    table("With a pointer", GESTURES),
    close,
  );
  close.addEventListener("click", () => dialog.close());
  dialog.addEventListener("click", (event) => {
    if (event.target === dialog) dialog.close();
  });
  return dialog;
}
