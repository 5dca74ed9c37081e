// A thousand ranks at a glance: ranks by steps as a heat map, what they say, and the way to the page of each.
//
// In:  the fleet, fetched once; what to show, to sort and to group by. Out: the map; recordings that it opened, in front or
//      side by side.
import { type Part, whole } from "../address.ts";
import { api } from "../api.ts";
import type { App } from "../app.ts";
import { askCompare } from "../compare/ask.ts";
import { fill, h } from "../dom.ts";
import { bytes, count, fromEnd, plain, plainSentences } from "../format.ts";
import { whenShown } from "../shown.ts";
import { Tooltip } from "../timeline/tooltip.ts";
import { FIGURES, type Figure, type Grid, gridOf, span, values } from "./grid.ts";
import { showLists } from "./lists.ts";
import { type Cell, RankMap } from "./map.ts";
import { MARKS, marksOf } from "./marks.ts";
import { GROUPINGS, type Grouping, type Order, SORTS, type Sort, isTold, ordered } from "./order.ts";
import { levels } from "./raster.ts";
import { type Fleet, decodeFleet, nameOf, placeOf, readable } from "./table.ts";
import { FIGURE_WORDS, cellLines, figureText, fileOf, rankName } from "./words.ts";

/** Share of the limit from which on a rank is near it: as in `tonnage fleet report`. */
const CLOSE = 0.95;

/** Letters of a name beside the map. */
const LABEL = 12;

const GROUP_WORDS: Record<Grouping, string> = {
  none: "nothing", node: "node", pp: "pp (stage)", tp: "tp (tensors)", dp: "dp (copy)", alike: "what they hold",
};

interface Shown {
  figure: Figure;
  all: Float64Array;
  range: { least: number; most: number } | null;
  levels: Uint8Array;
}

export function mountFleet(element: HTMLElement, app: App): void {
  if (app.start.fleet) new FleetPanel(element, app);
}

class FleetPanel {
  readonly #app: App;
  readonly #element: HTMLElement;
  #fleet: Fleet | null = null;
  #grid: Grid | null = null;
  #order: Order | null = null;
  /** What each row is marked for. */
  #marks: Uint8Array = new Uint8Array();
  /** The figure that is shown, of every cell. */
  #shown: Shown | null = null;
  #loading: Promise<void> | null = null;
  #figure: Figure = "reserved";
  #sort: Sort = "rank";
  #by: Grouping = "none";
  #cursor: Cell | null = null;
  /** Rows to compare, in the order in which they were chosen. */
  #chosen: number[] = [];
  /** What is being read, and what ends that. */
  #reading: { asked: string; stop: AbortController } | null = null;
  /** What an address asks for, until the fleet is there. */
  #wanted: { at: string | null; pair: string | null } = { at: null, pair: null };

  readonly #text = h("p", { class: "lead" });
  readonly #said = h("p", { id: "fleet-said", class: "readout", role: "status" });
  readonly #figures = h("select", { id: "fleet-figure" });
  readonly #sorts = h("select", { id: "fleet-sort" },
    h("option", { value: "rank", text: "rank" }), h("option", { value: "most", text: "peak, most first" }));
  readonly #groups = h("select", { id: "fleet-group" });
  readonly #legend = h("div", { class: "legend-ranks" });
  readonly #tooltip = new Tooltip();
  readonly #detail = h("section", { class: "detail", "aria-label": "The rank at the cursor" });
  readonly #pair = h("div", { class: "chosen" });
  readonly #lists = h("div", { class: "lists" });
  readonly #map: RankMap;

  constructor(element: HTMLElement, app: App) {
    this.#app = app;
    this.#element = element;
    this.#map = new RankMap({
      point: (cell, x, y) => this.#point(cell, x, y),
      choose: (cell, shift) => {
        this.#go(cell);
        if (shift) this.#choose(cell.row);
        else this.#attempt(this.#open(cell));
      },
    });
    const zoom = (text: string, label: string, factor: number | null) =>
      h("button", { type: "button", text, "aria-label": label, on: { click: () => this.#map.zoom(factor) } });
    fill(
      element,
      h("div", { class: "answer" }, h("h2", { text: "All ranks" }), this.#text),
      h("div", { class: "map-side" },
        h("div", { class: "toolbar", role: "toolbar", "aria-label": "All ranks" },
          h("label", {}, "Colour ", this.#figures), h("label", {}, "Sort by ", this.#sorts), h("label", {}, "Group by ", this.#groups),
          h("span", { class: "group" }, zoom("−", "Farther", 0.5), zoom("+", "Closer", 2), zoom("Fit", "Show all ranks", null))),
        h("div", { class: "plot" }, this.#map.element, this.#tooltip.element),
        this.#legend,
        this.#said,
        h("p", { id: "fleet-keys", class: "muted keys-line", text: "Click, or Enter: open the rank. Shift + click, or X: choose it to compare; C compares two. Arrows, Page Up, Page Down, Home, End: move. + − 0, or Ctrl + wheel: closer, farther, all." }),
      ),
      h("aside", { class: "beside" }, this.#pair, this.#detail, this.#lists),
    );
    this.#figures.addEventListener("change", () => this.#ask({ figure: this.#figures.value as Figure }));
    this.#sorts.addEventListener("change", () => this.#ask({ sort: this.#sorts.value as Sort }));
    this.#groups.addEventListener("change", () => this.#ask({ by: this.#groups.value as Grouping }));
    this.#map.canvas.addEventListener("keydown", (event) => {
      if (this.#key(event)) event.preventDefault();
    });
    const part: Part = { write: (into) => this.#write(into), read: (from) => this.#read(from) };
    app.address.add(part);
    whenShown(element, () => this.#attempt(this.#load()));
  }

  #attempt(work: Promise<unknown>): void {
    void this.#app.attempt(work);
  }

  #load(): Promise<void> {
    this.#loading ??= this.#fetch().catch((error: unknown) => {
      this.#loading = null;
      this.#text.textContent = "The ranks could not be fetched.";
      throw error;
    });
    return this.#loading;
  }

  async #fetch(): Promise<void> {
    this.#text.textContent = "Fetching all ranks…";
    const fleet = decodeFleet(await api.fleet());
    const grid = gridOf(fleet);
    this.#fleet = fleet;
    this.#grid = grid;
    this.#marks = marksOf(fleet, grid);
    const { limit } = fleet.head;
    fill(this.#figures, ...FIGURES.map((figure) =>
      h("option", { value: figure, text: figure === "limit" && limit === null ? "Near the limit (say --limit)" : FIGURE_WORDS[figure].name, disabled: figure === "limit" && limit === null })));
    fill(this.#groups, ...GROUPINGS.filter((it) => isTold(fleet, it)).map((it) => h("option", { value: it, text: GROUP_WORDS[it] })));
    this.#text.textContent = plainSentences(fleet.head.text);
    showLists(this.#lists, readable(fleet.head.sections), (address) => this.#goTo(address));
    this.#cursor = this.#cellAt(this.#wanted.at) ?? (grid.rows.length > 0 ? { row: 0, column: 0 } : null);
    this.#chosen = (this.#wanted.pair ?? "").split(".").map(whole).flatMap((file) => this.#rowOf(file) ?? []).slice(0, 2);
    this.#arrange();
    this.#element.dataset["ready"] = "true";
  }

  /** The row of a file. */
  #rowOf(file: number | null): number | null {
    const row = this.#grid?.rows.findIndex((own) => own.includes(file ?? -1)) ?? -1;
    return row < 0 ? null : row;
  }

  /** The cell that an address names: a file of the rank, and the step's column. */
  #cellAt(text: string | null): Cell | null {
    const [file, column] = (text ?? "").split(".").map(whole);
    const row = this.#rowOf(file);
    return row === null ? null : { row, column: Math.min(column ?? 0, (this.#grid?.columns.length ?? 1) - 1) };
  }

  #write(into: URLSearchParams): void {
    if (this.#figure !== "reserved") into.set("f.figure", this.#figure);
    if (this.#sort !== "rank") into.set("f.sort", this.#sort);
    if (this.#by !== "none") into.set("f.group", this.#by);
    const { grid, cursor } = { grid: this.#grid, cursor: this.#cursor };
    const at = grid !== null && cursor !== null ? `${grid.rows[cursor.row][0]}.${cursor.column}` : this.#wanted.at;
    if (at !== null && (this.#fleet === null || cursor !== null)) into.set("f.at", at);
    const pair = grid === null ? this.#wanted.pair : this.#chosen.map((row) => grid.rows[row][0]).join(".");
    if (pair !== null && pair !== "") into.set("f.pair", pair);
  }

  #read(from: URLSearchParams): void {
    this.#figure = FIGURES.find((it) => it === from.get("f.figure")) ?? "reserved";
    this.#sort = SORTS.find((it) => it === from.get("f.sort")) ?? "rank";
    this.#by = GROUPINGS.find((it) => it === from.get("f.group")) ?? "none";
    this.#wanted = { at: from.get("f.at"), pair: from.get("f.pair") };
    if (this.#grid === null) return;
    this.#cursor = this.#cellAt(this.#wanted.at) ?? this.#cursor;
    this.#chosen = (this.#wanted.pair ?? "").split(".").map(whole).flatMap((file) => this.#rowOf(file) ?? []).slice(0, 2);
    this.#arrange();
  }

  #ask(change: { figure?: Figure; sort?: Sort; by?: Grouping }): void {
    this.#figure = change.figure ?? this.#figure;
    this.#sort = change.sort ?? this.#sort;
    this.#by = change.by ?? this.#by;
    this.#app.address.changed();
    this.#arrange();
  }

  /** Sorts, groups and colours anew. */
  #arrange(): void {
    const [fleet, grid] = [this.#fleet, this.#grid];
    if (fleet === null || grid === null) return;
    const { limit } = fleet.head;
    // What an address asks for and this fleet does not have.
    if (this.#figure === "limit" && limit === null) this.#figure = "reserved";
    if (!isTold(fleet, this.#by)) this.#by = "none";
    this.#figures.value = this.#figure;
    this.#sorts.value = this.#sort;
    this.#groups.value = this.#by;
    const { all, levels: ofCells } = this.#cells(grid, limit);
    const columns = grid.columns.length;
    const order = ordered(fleet, grid, (row) => all[row * columns], this.#sort, this.#by);
    this.#order = order;
    this.#map.show({
      grid,
      order,
      levels: ofCells,
      marks: this.#marks,
      label: (row) => this.#label(row),
      cursor: this.#cursor,
      chosen: this.#chosen,
    });
    this.#drawLegend();
    this.#tell();
    this.#drawPair();
  }

  /** The figure of every cell; made when another is asked for, not when ranks are sorted. */
  #cells(grid: Grid, limit: number | null): Shown {
    const figure = this.#figure;
    if (this.#shown?.figure !== figure) {
      const all = values(grid, figure, limit);
      const range = span(all);
      const hot = figure === "limit" ? CLOSE : Infinity;
      const found = levels(all, range?.least ?? 0, Math.min(range?.most ?? 0, hot), hot);
      this.#shown = { figure, all, range, levels: found };
    }
    return this.#shown;
  }

  #label(row: number): string {
    const file = this.#fleet!.files[this.#grid!.rows[row][0]];
    return file.rank === null ? fromEnd(plain(file.address), LABEL) : String(file.rank);
  }

  #drawLegend(): void {
    const [fleet, grid] = [this.#fleet!, this.#grid!];
    const range = this.#shown?.range ?? null;
    const text = (value: number) => figureText(this.#figure, value);
    const { name, means } = FIGURE_WORDS[this.#figure];
    const warns = this.#figure === "limit" && range !== null && range.most >= CLOSE;
    const marks = new Set(this.#marks);
    const { limit, given } = fleet.head;
    const ofLimit = this.#figure === "limit" && limit !== null ? ` of ${bytes(limit)}, ${given ? "which was said" : "which is concluded from what ranks reserved and where they failed"}` : "";
    // Where all are that close, there is nothing to grade.
    const graded = warns && range.least >= CLOSE ? null : range;
    const ends = graded && [graded.least, warns ? CLOSE : graded.most].map(text);
    fill(
      this.#legend,
      h("p", {}, h("b", { text: name }), ` ${means}${ofLimit}, of each rank and ${grid.steps === "snapshots" ? "step" : "iteration"}`),
      ends && h("p", { class: "ramp-line" }, h("span", { text: ends[0] }), h("span", { class: "ramp", role: "img", "aria-label": `from ${ends[0]} to ${ends[1]}` }), h("span", { text: ends[1] })),
      h("ul", { class: "keys" },
        warns ? h("li", {}, h("span", { class: "sample hot" }), `${text(CLOSE)} and more`) : null,
        h("li", {}, h("span", { class: "sample nothing" }), "nothing is kept"),
        ...MARKS.flatMap(({ sign, word }, mark) => (mark > 0 && marks.has(mark) ? [h("li", {}, h("span", { class: `sign mark-${mark}`, "aria-hidden": "true", text: sign }), word)] : []))),
    );
  }

  #point(cell: Cell | null, x: number, y: number): void {
    if (cell === null || this.#fleet === null || this.#grid === null) {
      this.#tooltip.hide();
      return;
    }
    this.#tooltip.show(x, y, cellLines(this.#fleet, this.#grid, cell.row, cell.column, this.#fleet.head.limit));
  }

  /** Moves the cursor. */
  #go(cell: Cell): void {
    this.#cursor = cell;
    this.#map.reveal(this.#order?.place[cell.row] ?? 0);
    this.#map.move({ cursor: cell, chosen: this.#chosen });
    this.#app.address.changed();
    this.#tell();
  }

  /** Moves the cursor to the rank of a file. */
  #goTo(address: string): void {
    const row = this.#rowOf(this.#fleet?.byAddress.get(address) ?? null);
    if (row === null || this.#grid === null) return;
    const { file, columns } = this.#grid;
    // Of snapshots the one that the line is about.
    const own = this.#fleet?.byAddress.get(address) ?? -1;
    const cells = Array.from(columns.keys(), (column) => file[row * columns.length + column]);
    const column = this.#grid.steps === "snapshots" ? cells.indexOf(own, 1) : 0;
    this.#go({ row, column: Math.max(column, 0) });
    this.#map.canvas.focus();
  }

  /** Says what is at the cursor, and what is known of its rank. */
  #tell(): void {
    const [fleet, grid, cursor] = [this.#fleet, this.#grid, this.#cursor];
    if (fleet === null || grid === null || cursor === null) {
      fill(this.#detail);
      return;
    }
    this.#said.textContent = cellLines(fleet, grid, cursor.row, cursor.column, fleet.head.limit).join("; ");
    const file = fileOf(grid, cursor.row, cursor.column);
    const own = fleet.files[file];
    const mark = MARKS[this.#marks[cursor.row]];
    const open = h("button", { type: "button", class: "main", text: "Open", disabled: own.error !== null, on: { click: () => this.#attempt(this.#open(cursor)) } });
    const isChosen = this.#chosen.includes(cursor.row);
    const choose = h("button", { type: "button", class: "choose", text: isChosen ? "Do not compare" : "Compare it", "aria-pressed": String(isChosen), disabled: own.error !== null, on: { click: () => this.#chooseBy(cursor.row, this.#detail, ".choose") } });
    fill(
      this.#detail,
      h("h2", { text: nameOf(own) }),
      h("p", { class: "name muted", text: [placeOf(own), plain(own.address)].filter(Boolean).join(" · ") }),
      own.shares === null ? null : h("p", { text: `It shares the run of ${nameOf(fleet.files[own.shares])}: that file is opened for it.` }),
      mark.word === "" ? null : h("p", {}, h("span", { class: `sign mark-${MARKS.indexOf(mark)}`, "aria-hidden": "true", text: mark.sign }), ` ${mark.word}`),
      own.error === null ? h("p", { class: "name", text: plain(own.cause ?? "") }) : h("p", { class: "name wrong", text: plain(own.error) }),
      this.#facts(file),
      h("p", { class: "act" }, open, choose),
    );
  }

  #facts(file: number): HTMLElement | null {
    const { live, reserved, iterations } = this.#fleet!;
    if (Number.isNaN(reserved[file])) return null;
    const kept = this.#fleet!.starts[file + 1] - this.#fleet!.starts[file];
    const all = iterations[file];
    const rows: [string, string][] = [
      ["Reserved at the peak", bytes(reserved[file])],
      ["Live requested at the peak", bytes(live[file])],
      ["Waste", figureText("waste", live[file] > 0 ? reserved[file] / live[file] : NaN)],
      ["Iterations", all > kept ? `${count(all)}; the first and the last are kept, ${count(kept)} in all` : count(all)],
    ];
    return h("dl", {}, ...rows.flatMap(([word, text]) => [h("dt", { text: word }), h("dd", { text })]));
  }

  /** Chooses a rank to compare, or no more; of three the first goes. */
  #choose(row: number): void {
    this.#chosen = this.#chosen.includes(row) ? this.#chosen.filter((it) => it !== row) : [...this.#chosen, row].slice(-2);
    this.#map.move({ cursor: this.#cursor, chosen: this.#chosen });
    this.#app.address.changed();
    this.#drawPair();
    this.#tell();
  }

  /** The same by a button, which is another one then: the focus goes to that, or to the map if none is left. */
  #chooseBy(row: number, within: HTMLElement, button: string): void {
    this.#choose(row);
    (within.querySelector<HTMLElement>(button) ?? this.#map.canvas).focus();
  }

  #drawPair(): void {
    const [fleet, grid] = [this.#fleet, this.#grid];
    if (fleet === null || grid === null || this.#chosen.length === 0) {
      fill(this.#pair);
      return;
    }
    const names = this.#chosen.map((row) => {
      const name = rankName(fleet, grid, row);
      return h("button", { type: "button", text: `${name} ×`, "aria-label": `Do not compare ${name}`, on: { click: () => this.#chooseBy(row, this.#pair, "button") } });
    });
    const compare = h("button", { type: "button", class: "main", text: "Compare", disabled: this.#chosen.length < 2, on: { click: () => this.#attempt(this.#compare()) } });
    fill(this.#pair, h("h2", { text: "To compare" }), h("p", { class: "act" }, ...names, compare),
      this.#chosen.length < 2 ? h("p", { class: "muted", text: "Choose another rank, by Shift + click or X." }) : null);
  }

  /**
   * The recordings of cells' files, open. What was being read is given up for it: storage may let one wait for minutes. None
   * if these are being read already, or if another view has been opened meanwhile.
   */
  async #opened(cells: Cell[], what: "open" | "compare"): Promise<number[] | null> {
    const [fleet, grid] = [this.#fleet!, this.#grid!];
    const files = cells.map(({ row, column }) => fileOf(grid, row, column));
    const asked = `${what} ${files.join()}`;
    if (this.#reading?.asked === asked) return null;
    this.#reading?.stop.abort();
    const reading = { asked, stop: new AbortController() };
    this.#reading = reading;
    const { signal } = reading.stop;
    try {
      const ids: number[] = [];
      for (const file of files) {
        const own = fleet.files[file];
        this.#app.say(`Reading ${nameOf(own)}…`);
        ids.push(await this.#app.openRank(file, signal));
        signal.throwIfAborted();
        this.#app.say(own.shares === null ? "" : `${nameOf(own)} shares the run of ${nameOf(fleet.files[own.shares])}: this is its file.`);
      }
      return this.#element.hidden ? null : ids;
    } finally {
      if (this.#reading === reading) this.#reading = null;
    }
  }

  /** Opens the page of a rank. */
  async #open(cell: Cell): Promise<void> {
    const [id] = (await this.#opened([cell], "open")) ?? [];
    if (id === undefined) return;
    // Whoever comes back finds the map as it is now.
    this.#app.address.write();
    location.hash = "memory";
    await this.#app.show(id);
  }

  async #compare(): Promise<void> {
    const [one, other] = this.#chosen;
    if (other === undefined || this.#fleet === null || this.#grid === null) return;
    // The step that the cursor is at, where both have it; else their peaks.
    const [grid, at] = [this.#grid, this.#cursor?.column ?? 0];
    const column = [one, other].every((row) => grid.file[row * grid.columns.length + at] >= 0) ? at : 0;
    const cells = [one, other].map((row) => ({ row, column }));
    const [first, second] = (await this.#opened(cells, "compare")) ?? [];
    if (first === undefined || second === undefined) return;
    if (first === second) {
      this.#app.say(`${rankName(this.#fleet, this.#grid, one)} and ${rankName(this.#fleet, this.#grid, other)} share one run: there is nothing to compare.`, true);
      return;
    }
    this.#app.say("");
    this.#app.address.write();
    askCompare([first, second]);
  }

  #key(event: KeyboardEvent): boolean {
    const [grid, order, cursor] = [this.#grid, this.#order, this.#cursor];
    if (grid === null || order === null || cursor === null || event.altKey || event.metaKey) return false;
    const place = order.place[cursor.row];
    const last = order.rows.length - 1;
    const to = (at: number, column = cursor.column) => {
      this.#go({ row: order.rows[Math.min(Math.max(at, 0), last)], column: Math.min(Math.max(column, 0), grid.columns.length - 1) });
      return true;
    };
    switch (event.key) {
      case "ArrowUp": return to(place - 1);
      case "ArrowDown": return to(place + 1);
      case "ArrowLeft": return to(place, cursor.column - 1);
      case "ArrowRight": return to(place, cursor.column + 1);
      case "PageUp": return to(place - this.#map.page);
      case "PageDown": return to(place + this.#map.page);
      case "Home": return event.ctrlKey ? to(0, 0) : to(place, 0);
      case "End": return event.ctrlKey ? to(last, grid.columns.length - 1) : to(place, grid.columns.length - 1);
    }
    if (event.ctrlKey) return false;
    switch (event.key) {
      case "Enter":
        this.#attempt(this.#open(cursor));
        return true;
      case "x": case "X":
        this.#choose(cursor.row);
        return true;
      case "c": case "C":
        this.#attempt(this.#compare());
        return true;
      case "+": case "=":
        this.#closer(2);
        return true;
      case "-": case "−":
        this.#closer(0.5);
        return true;
      case "0":
        this.#closer(null);
        return true;
    }
    return false;
  }

  /** Comes closer to the cursor. */
  #closer(factor: number | null): void {
    const place = this.#cursor === null ? 0 : (this.#order?.place[this.#cursor.row] ?? 0);
    this.#map.zoom(factor);
    this.#map.reveal(place);
  }
}
