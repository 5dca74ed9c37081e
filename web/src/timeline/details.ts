// The chosen allocation: what it is, how long it lived, who asked for it, who lies beside it.
//
// In:  the chosen row, the moment. Out: a panel; a click on a neighbour chooses it.
import { type Frame, api } from "../api.ts";
import type { App } from "../app.ts";
import { copyButton } from "../copy.ts";
import { fill, h } from "../dom.ts";
import { quoted } from "../filter/parse.ts";
import { address, bytes, count, exactly, fromEnd, plain } from "../format.ts";
import type { Recording } from "../recording.ts";
import { type Neighbour, neighbours } from "../segments/moment.ts";
import type { State } from "../store.ts";
import { sorted } from "./frames.ts";
import { lifetime, momentOf } from "./live.ts";
import { lifeOf, lineOf, poolOf, purposeOf, streamOf } from "./words.ts";

/** Letters of a path that are shown; the whole is copied, and told where the pointer rests. */
const SHORT = 44;

/** More frames than anyone reads. */
const MOST_FRAMES = 100;

/** A frame: its function shows all that it asked for, its place can be copied. */
function frameItem({ file, line, function: name }: Frame, ask: (query: string) => void): HTMLElement {
  const path = plain(file);
  const where = `${path}:${line}`;
  const only = h("button", { type: "button", class: "link code name", text: plain(name), title: `Show all that has ${where} in its stack` });
  only.addEventListener("click", () => ask(`frame:${quoted(where)}`));
  return h("li", {}, only, h("span", { class: "muted name", title: where }, ` ${fromEnd(path, SHORT)}:${line}`), copyButton(where));
}

function stackList(frames: Frame[], ask: (query: string) => void): Node[] {
  const { user, library } = sorted(frames.slice(0, MOST_FRAMES));
  const shown = h("ol", { class: "frames" }, ...user.map((it) => frameItem(it, ask)));
  const folded = library.length > 0 && h(
    "details",
    {},
    h("summary", { text: `${library.length} ${library.length === 1 ? "frame" : "frames"} of libraries` }),
    h("ol", { class: "frames" }, ...library.map((it) => frameItem(it, ask))),
  );
  return folded ? [shown, folded] : [shown];
}

class Details {
  readonly #element: HTMLElement;
  readonly #app: App;
  readonly #stacks = new Map<string, Frame[]>();

  constructor(element: HTMLElement, app: App) {
    this.#element = element;
    this.#app = app;
    element.classList.add("panel");
    app.store.subscribe((state, before) => {
      if (state.recording !== before.recording) this.#stacks.clear();
      const isOther = state.chosen !== before.chosen || state.recording !== before.recording;
      if (isOther || (state.moment !== before.moment && state.chosen >= 0)) this.#show(state, isOther);
    });
    this.#empty();
  }

  #empty(): void {
    fill(
      this.#element,
      h("h2", { text: "Allocation" }),
      h("p", { class: "muted", text: "Click an allocation in the timeline or the segment map: its size, life, stack and neighbours are shown here." }),
    );
  }

  #show(state: Readonly<State>, isOther: boolean): void {
    const { recording, chosen } = state;
    if (recording === null || chosen < 0) {
      if (isOther) this.#empty();
      return;
    }
    const clear = h("button", { type: "button", class: "quiet", text: "Clear", title: "Choose nothing (Esc)" });
    clear.addEventListener("click", () => this.#app.store.set({ chosen: -1 }));
    const stack = h("div", { class: "stack" });
    fill(
      this.#element,
      h("div", { class: "heading" }, h("h2", { text: bytes(recording.allocations.size[chosen]) }), clear),
      this.#facts(recording, chosen),
      this.#lineButton(recording, chosen),
      h("h3", { text: "Stack" }),
      stack,
      h("h3", { text: "Beside it in its segment" }),
      this.#neighbours(recording, chosen, state.moment),
    );
    this.#app.attempt(this.#fillStack(stack, recording, chosen));
  }

  #facts(recording: Recording, row: number): HTMLElement {
    const { allocations, head } = recording;
    const size = allocations.size[row];
    const requested = allocations.requested[row];
    const { open } = lifetime(recording, row);
    const begin = allocations.begin[row];
    const facts: [string, string][] = [
      ["Requested", exactly(requested)],
      ["Block", size === requested ? "the same" : `${exactly(size)}, ${bytes(size - requested)} more`],
      ["Purpose", purposeOf(recording, row)],
      ["Live for", lifeOf(recording, row)],
      ["Entries", `${begin === 0 ? "before the first" : count(begin - 1)} to ${open ? "the end" : count(allocations.end[row] - 1)}`],
    ];
    // A free that waits for no one is complete at the next entry.
    const waited = Math.min(allocations.done[row], recording.entries) - allocations.end[row];
    if (!open && waited > 1) {
      facts.push(["Pending", `for ${count(waited)} more entries, until another stream was done`]);
    }
    facts.push(["Stream", streamOf(recording, row)]);
    facts.push(["Pool", poolOf(recording, row) ?? "not known"]);
    facts.push(["Address", address(allocations.address[row])]);
    const peak = head.peak.allocatedAt;
    facts.push(["At the peak", begin <= peak && peak < allocations.end[row] ? "live" : "not live"]);
    return h("dl", { class: "facts" }, ...facts.flatMap(([name, value]) => [h("dt", { text: name }), h("dd", { class: "name", text: value })]));
  }

  #lineButton(recording: Recording, row: number): HTMLElement {
    const site = recording.head.sites[recording.allocations.site[row]] ?? null;
    const text = h("p", { class: "code name", text: lineOf(recording, row) });
    if (site === null) return text;
    const query = `line:${quoted(`${site.file}:${site.line}`)}`;
    const button = h("button", { type: "button", text: "Show all of this line" });
    button.addEventListener("click", () => this.#app.store.set({ query }));
    return h("div", { class: "line" }, text, button, copyButton(`${site.file}:${site.line}`));
  }

  async #fillStack(element: HTMLElement, recording: Recording, row: number): Promise<void> {
    const stack = recording.allocations.stack[row];
    if (stack === 0) {
      fill(element, h("p", { class: "muted", text: "not recorded" }));
      return;
    }
    const key = `${recording.info.id}/${stack}`;
    let frames = this.#stacks.get(key);
    if (frames === undefined) {
      frames = await api.stack(recording.info.id, stack - 1);
      this.#stacks.set(key, frames);
    }
    fill(element, ...stackList(frames, (query) => this.#app.store.set({ query })));
  }

  #neighbours(recording: Recording, row: number, moment: number): HTMLElement {
    const at = momentOf(recording, row, moment);
    const { above, below } = neighbours(recording, row, at);
    const item = (name: string, it: Neighbour | null) => h("li", {}, h("span", { class: "muted", text: name }), this.#neighbour(recording, it, at));
    if (recording.allocations.segment[row] === 0) {
      return h("p", { class: "muted", text: "its segment is not known" });
    }
    return h("ul", { class: "beside-it" }, item("above", above), item("below", below));
  }

  #neighbour(recording: Recording, it: Neighbour | null, moment: number): HTMLElement {
    if (it === null) return h("span", { text: "the segment ends" });
    if (it.row < 0) return h("span", { text: `${bytes(it.bytes)} free` });
    const text = `${bytes(it.bytes)} · ${purposeOf(recording, it.row)} · ${lineOf(recording, it.row)}`;
    const button = h("button", { type: "button", class: "link name", text });
    button.addEventListener("click", () => this.#app.store.set({ chosen: it.row, moment }));
    return button;
  }
}

export function mountDetails(element: HTMLElement, app: App): void {
  new Details(element, app);
}
