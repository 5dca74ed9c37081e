// What `tune` found, as bars. In: a Tuning. Out: a list of buttons, each a setting; a click takes it.
import type { Candidate, Tuning } from "../api.ts";
import { fill, h } from "../dom.ts";
import { bytes, count } from "../format.ts";
import { milliseconds, named } from "./meaning.ts";

/** As many are shown at first. */
const FIRST = 10;

/** Where a value stands on bars that end at `most`, in percent. */
export function share(value: number, most: number): number {
  return most > 0 ? Math.min(100, (value / most) * 100) : 0;
}

/**
 * The best ones, and the recorded one wherever it stands. Of settings that come to the same, the shortest is enough:
 * what it leaves out makes no difference.
 */
export function listed(candidates: Candidate[], all: boolean): Candidate[] {
  if (all) {
    return candidates;
  }
  const shortest = new Map<string, Candidate>();
  for (const it of candidates) {
    const result = [it.policy, it.reservedPeak, it.fits, it.driverCalls, it.retries].join();
    const known = shortest.get(result);
    if (known === undefined || it.conf.length < known.conf.length) {
      shortest.set(result, it);
    }
  }
  const apart = new Set(shortest.values());
  const best = new Set(candidates.filter((it) => apart.has(it)).slice(0, FIRST));
  return candidates.filter((it) => best.has(it) || it.recorded);
}

export function ranking(tuning: Tuning, onTake: (candidate: Candidate) => void): HTMLElement {
  const { candidates, floor, limit } = tuning;
  const most = Math.max(floor, ...candidates.map((it) => it.reservedPeak));
  const list = h("ol", { class: "bars" });
  const more = h("button", { type: "button" });
  const few = listed(candidates, false).length;
  let all = false;
  const show = () => {
    fill(list, ...listed(candidates, all).map((it) => row(it, tuning, most, onTake)));
    more.hidden = few === candidates.length;
    more.textContent = all ? `Show the best ${count(few)}` : `Show all ${count(candidates.length)}`;
  };
  more.addEventListener("click", () => {
    all = !all;
    show();
  });
  show();
  const within = limit === null ? "" : ` The limit is ${bytes(limit)}.`;
  return h(
    "div", { class: "ranking" },
    h("p", { class: "muted", text: `Peak of reserved memory under each. The line is the floor: ${bytes(floor)} are live at once, so no allocator can do with less.${within}` }),
    list,
    more,
  );
}

function row(it: Candidate, tuning: Tuning, most: number, onTake: (candidate: Candidate) => void): HTMLElement {
  const bar = h("i", { class: it.recorded ? "bar recorded" : it.fits ? "bar" : "bar misfit" });
  bar.style.width = `${share(it.reservedPeak, most)}%`;
  const line = h("i", { class: "floor" });
  line.style.left = `${share(tuning.floor, most)}%`;
  const notes = [
    it.recorded ? "as recorded" : null,
    it.fits ? null : "does not fit",
    it.retries > 0 ? `${count(it.retries)} retries` : null,
    `${count(it.driverCalls)} driver calls${it.driverNs > 0 ? `, ${milliseconds(it.driverNs)} for pages` : ""}`,
  ].filter((note) => note !== null);
  const button = h(
    "button", { type: "button", class: "candidate" },
    h("span", { class: "setting code", text: it.policy === "pytorch" ? named(it) : `policy ${it.policy}` }),
    h("span", { class: "peak", text: bytes(it.reservedPeak) }),
    h("span", { class: "track", "aria-hidden": "true" }, bar, line),
    h("span", { class: "notes muted", text: notes.join(" · ") }),
  );
  button.addEventListener("click", () => onTake(it));
  return h("li", {}, button);
}
