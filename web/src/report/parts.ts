// The parts of a report as elements. In: a report and what a click does. Out: sections. Keeps nothing.
import type { Advice, FailedRequest, Growth, Peak, Report, Verdict } from "../api.ts";
import { copyLines } from "../copy.ts";
import { h } from "../dom.ts";
import { bytes, count } from "../format.ts";
import { percent } from "../what-if/meaning.ts";
import { confOf, limitOf } from "./opening.ts";
import { WASTE, capital, growthWords, sentence, spaced, toldBy } from "./words.ts";

export interface Actions {
  /** Lights up what a cause blames. */
  blame: (cause: Verdict) => void;
  /** Shows only what the filter takes. */
  filter: (key: "purpose" | "line" | "module" | "frame", value: string) => void;
  /** Goes to what happened after so many entries. */
  go: (moment: number) => void;
  /** Asks what settings would do under a limit. */
  ask: (conf: string, limit: number | null) => void;
}

function section(title: string, ...children: (Node | null)[]): HTMLElement {
  return h("section", { "aria-label": title }, h("h3", { text: title }), ...children);
}

/** A bar whose width is a share, in percent. */
function bar(part: number, whole: number, kind: string): HTMLElement {
  const inner = h("i", { class: `fill-${kind}` });
  inner.style.width = `${whole > 0 ? Math.min(100, (part / whole) * 100) : 0}%`;
  return h("span", { class: "share", "aria-hidden": "true" }, inner);
}

/** The figures that the rest explains. */
export function tiles(report: Report): HTMLElement {
  const { reserved, requested } = report.peak;
  const wasted = reserved.bytes - reserved.requested;
  const tile = (word: string, size: number, beside: string) =>
    h("div", {}, h("dt", { text: word }), h("dd", { title: `${count(size)} bytes` }, bytes(size), h("small", { text: beside })));
  const best = report.settings !== null && report.settings.reserved < report.settings.recorded ? report.settings : null;
  return h("dl", { class: "numbers tiles" },
    tile("Reserved, at its peak", reserved.bytes, "obtained from the device"),
    tile("Need", requested, "live at once, at most"),
    tile("Waste", wasted, `${percent(wasted, reserved.bytes)} of reserved`),
    report.limit === null ? null : tile("Limit", report.limit, `${percent(reserved.bytes, report.limit)} reserved`),
    best === null ? null : tile("With the best settings", best.reserved, "reserved, by replay"));
}

export function causes(report: Report, { blame }: Actions): HTMLElement {
  const items = report.causes.map((cause) => {
    const button = h(
      "button", { type: "button", class: "cause", "aria-pressed": "false", "data-cause": cause.cause },
      h("span", { class: "what", text: capital(spaced(cause.cause)) }),
      h("span", { class: "size", text: bytes(cause.bytes) }),
      h("span", { class: "text name", text: cause.text }),
    );
    button.addEventListener("click", () => blame(cause));
    return h("li", {}, button);
  });
  return section("Causes", h("ul", { class: "causes" }, ...items));
}

export function waste(report: Report): HTMLElement {
  const { bytes: whole, requested } = report.peak.reserved;
  const parts: [string, string, number][] = [
    ["requested", "asked for and live", requested],
    ...WASTE.map(([kind, meaning]): [string, string, number] => [kind, meaning, report.waste[kind] ?? 0]),
    ...Object.entries(report.waste).flatMap(([kind, size]): [string, string, number][] => (WASTE.some(([it]) => it === kind) ? [] : [[kind, "", size]])),
  ];
  const shown = parts.filter(([, , size]) => size > 0);
  const pieces = shown.map(([kind, , size]) => {
    const piece = h("i", { class: `fill-${kind}` });
    piece.style.flexGrow = String(size);
    return piece;
  });
  const said = shown.map(([kind, , size]) => `${spaced(kind)} ${percent(size, whole)}`).join(", ");
  const rows = shown.map(([kind, meaning, size]) =>
    h("tr", {},
      h("th", { scope: "row" }, h("i", { class: `sample fill-${kind}`, "aria-hidden": "true" }), spaced(kind), " ", h("span", { class: "muted", text: meaning })),
      h("td", { class: "number", text: bytes(size) }),
      h("td", { class: "number", text: percent(size, whole) })));
  const total = h("tr", {}, h("th", { scope: "row", text: "reserved" }), h("td", { class: "number", text: bytes(whole) }), h("td"));
  return section(
    "Reserved memory at its peak",
    h("div", { class: "stacked", role: "img", "aria-label": said }, ...pieces),
    h("table", { class: "figures-table" }, h("tbody", {}, ...rows), h("tfoot", {}, total)),
  );
}

/** How a purpose is known. */
function sure(confidence: string): string {
  return confidence === "recorded" ? "recorded by the program" : `confidence: ${confidence}`;
}

export function peak(found: Peak, { filter, go }: Actions): HTMLElement {
  const most = Math.max(...found.purposes.map((it) => it.bytes), ...found.sites.map((it) => it.bytes), ...found.modules.map((it) => it.bytes), 0);
  const row = (word: string, size: number, blocks: number, kind: string, take: (() => void) | null) => {
    const children = [
      h("span", { class: "what name", text: word }), h("span", { class: "size", text: bytes(size) }), bar(size, most, kind),
    ];
    const title = `${count(blocks)} ${blocks === 1 ? "block" : "blocks"}`;
    if (take === null) {
      return h("li", {}, h("div", { class: "holder", title }, ...children));
    }
    const button = h("button", { type: "button", class: "holder", title: `${title}; show only these` }, ...children);
    button.addEventListener("click", take);
    return h("li", {}, button);
  };
  const where = h("button", { type: "button", class: "link", text: `entry ${count(found.event)}` });
  where.addEventListener("click", () => go(found.event + 1));
  const iteration = found.iteration === null ? "" : `, in iteration ${count(found.iteration)}`;
  const sites = found.sites.filter((it) => it.line !== null);
  return section(
    "What was live when most was",
    h("p", { class: "muted small" }, `${bytes(found.requested)} in ${count(found.blocks)} ${found.blocks === 1 ? "block" : "blocks"}, after `, where, `${iteration}.`),
    h("ul", { class: "holders", "aria-label": "By purpose" },
      ...found.purposes.map((it) => row(`${it.purpose} (${sure(it.confidence)})`, it.bytes, it.blocks, it.purpose, () => filter("purpose", it.purpose)))),
    sites.length === 0 ? null : h("ul", { class: "holders", "aria-label": "By line" },
      ...sites.map((it) => row(it.line ?? "", it.bytes, it.blocks, "site", () => filter("line", it.line ?? "")))),
    found.modules.length === 0 ? null : h("ul", { class: "holders", "aria-label": "By module" },
      ...found.modules.map(({ module, indexed, bytes: size, blocks }) => row(indexed ?? module ?? "no module", size, blocks, "site", module === null ? null : () => filter("module", module)))),
    found.libraries.length === 0 ? null : h("ul", { class: "holders", "aria-label": "By line of a library" },
      ...found.libraries.map(({ line, bytes: size, blocks }) => row(line ?? "no line of a library", size, blocks, "site", line === null ? null : () => filter("frame", line)))),
  );
}

export function growth(found: Growth, { filter }: Actions): HTMLElement | null {
  if (found.told_by === null) {
    return null;
  }
  const most = Math.max(1, ...found.each.map((it) => Math.max(it.reserved, it.requested)));
  const columns = found.each.map((it) => {
    const reserved = h("i", { class: "reserved" });
    const requested = h("i", { class: "requested" });
    reserved.style.height = `${(it.reserved / most) * 100}%`;
    requested.style.height = `${(it.requested / most) * 100}%`;
    return h("span", {}, reserved, requested);
  });
  const first = found.each[0];
  const last = found.each.at(-1);
  const span = first && last ? `Reserved ${bytes(first.reserved)} in the first, ${bytes(last.reserved)} in the last; live at once ${bytes(first.requested)} and ${bytes(last.requested)}.` : "";
  const lines = found.lines.filter((it) => it.line !== null).map((it) => {
    const button = h("button", { type: "button", class: "link name", text: it.line ?? "" });
    button.addEventListener("click", () => filter("line", it.line ?? ""));
    return h("li", {}, button, ` ${it.kind === "leak" ? "leaks" : "grows by"} ${bytes(it.bytes)}`);
  });
  return section(
    `Growth: ${growthWords(found.kind)}`,
    h("p", { class: "muted small", text: `${count(found.iterations)} iterations, told by ${toldBy(found.told_by)}. ${span}` }),
    h("div", { class: "iterations", role: "img", "aria-label": `Most reserved and most live bytes of each iteration. ${span}` }, ...columns),
    lines.length === 0 ? null : h("ul", { class: "plain" }, ...lines),
  );
}

export function ooms(report: Report, { go }: Actions): HTMLElement | null {
  if (report.failed_requests === 0) {
    return null;
  }
  const failed = (it: FailedRequest) => {
    const button = h("button", { type: "button", class: "link", text: `${bytes(it.bytes)} at entry ${count(it.event)}` });
    button.addEventListener("click", () => go(it.event));
    const asked = it.line === null ? "" : `Asked for at ${it.line}. `;
    return h("li", {},
      h("p", {}, button, it.fatal ? ": it ended the job." : ": the job went on."),
      h("p", { class: "name", text: `${asked}${sentence(capital(it.why))}` }),
      it.would_have.length === 0 ? null : h("p", { class: "muted", text: "What would have helped:" }),
      it.would_have.length === 0 ? null : h("ul", { class: "inner" }, ...it.would_have.map((would) => h("li", { class: "name", text: would }))));
  };
  return section(`Failed requests: ${count(report.failed_requests)}`, h("ul", { class: "plain failed" }, ...report.ooms.map(failed)));
}

export function advice(report: Report, { ask }: Actions): HTMLElement | null {
  if (report.advice.length === 0) {
    return null;
  }
  const item = (it: Advice) => {
    const conf = confOf(it);
    const look = h("button", { type: "button", text: "See what it does" });
    look.addEventListener("click", () => ask(conf ?? "", limitOf(report)));
    const where = it.line === null ? null : h("p", { class: "muted name", text: `At ${it.line}` });
    return h("li", {},
      h("p", { class: "saves" }, h("strong", { text: bytes(it.serves ?? it.bytes) }),
        ` ${it.serves ? "served" : "saved"}, ${it.basis === "replayed" ? "by replay" : "estimated"}`),
      h("p", { class: "name", text: sentence(capital(it.change)) }), where,
      it.code.length === 0 ? null : copyLines(it.code),
      h("p", { class: "muted small", text: `Costs: ${it.cost}. Confidence: ${it.confidence}.` }),
      conf === null ? null : look);
  };
  return section("What to change", h("ol", { class: "plain advice" }, ...report.advice.map(item)));
}

export function pinned({ pinned: it }: Report): HTMLElement | null {
  if (it === undefined) {
    return null;
  }
  const most = (peak: number | null) => peak === null ? "" : `, at most ${bytes(peak)}`;
  const held = it.lines.map((line) => h("li", { class: "name", text: `${bytes(line.bytes)} held by ${line.line ?? "no line of the program"}` }));
  return section("Pinned memory of the host",
    h("p", { class: "muted small", text: "Part of no figure above." }),
    h("p", { text: `${bytes(it.reserved)} reserved${most(it.reserved_peak)}; ${bytes(it.allocated)} of it handed out${most(it.allocated_peak)}, ${bytes(it.cached)} cached` }),
    h("ul", { class: "plain" }, ...held));
}

export function notes(report: Report): HTMLElement | null {
  if (report.notes.length === 0) {
    return null;
  }
  return h("details", {}, h("summary", { text: "How this was told" }), h("ul", { class: "inner" }, ...report.notes.map((it) => h("li", { class: "name", text: it }))));
}
