// The page: opens what the server has, and gives each panel its place.
import { split } from "./address.ts";
import { api } from "./api.ts";
import { App } from "./app.ts";
import { mountCompare } from "./compare/compare.ts";
import { fill, h } from "./dom.ts";
import { mountDrop } from "./drop.ts";
import { mountFilter } from "./filter/filter.ts";
import { mountFleet } from "./fleet/fleet.ts";
import { mountFlame } from "./flame/flame.ts";
import { plain } from "./format.ts";
import { mountRun } from "./live/run.ts";
import { fullName, shortName } from "./names.ts";
import { mountPrint } from "./print.ts";
import { mountLit } from "./report/lit.ts";
import { mountReport } from "./report/report.ts";
import { mountSegments } from "./segments/segments.ts";
import { shownState } from "./shown-state.ts";
import { mountDetails } from "./timeline/details.ts";
import { mountEvents } from "./timeline/event-list.ts";
import { mountTimeline } from "./timeline/timeline.ts";
import { mountTraining } from "./training/training.ts";
import { mountWhatIf } from "./what-if/what-if.ts";

function place(id: string): HTMLElement {
  const element = document.getElementById(id);
  if (element === null) {
    throw new Error(`the page has no #${id}`);
  }
  return element;
}

const VIEWS = ["fleet", "memory", "what-if", "compare", "training"];

/** Shows the view that the address names. */
function route(): void {
  const asked = split(location.hash).view;
  const isThere = VIEWS.includes(asked) && document.querySelector(`nav a[href="#${asked}"]:not([hidden])`) !== null;
  const shown = isThere ? asked : "memory";
  for (const view of VIEWS) {
    place(view).hidden = view !== shown;
    const link = document.querySelector(`nav a[href="#${view}"]`);
    if (view === shown) link?.setAttribute("aria-current", "page");
    else link?.removeAttribute("aria-current");
  }
  window.dispatchEvent(new Event("resize"));
}

function chooser(app: App): void {
  const select = place("recordings") as HTMLSelectElement;
  const list = () => {
    const front = app.store.state.recording?.info.id;
    fill(
      select,
      ...app.recordings.map((it) =>
        h("option", { value: it.id, selected: it.id === front, text: shortName(it, app.recordings), title: fullName(it, app.recordings) }),
      ),
    );
    // One that the server has let go stays in front until another is chosen, but is offered no more.
    if (front !== undefined && !app.recordings.some((it) => it.id === front)) select.selectedIndex = -1;
  };
  list();
  app.onRecordings(list);
  select.addEventListener("change", () => app.attempt(app.show(Number(select.value))));
  app.store.subscribe((state, before) => {
    if (state.recording !== before.recording && state.recording !== null) {
      select.value = String(state.recording.info.id);
      document.title = `${plain(state.recording.info.name)} · Tonnage`;
    }
  });
}

/** Keys go to the content without the address becoming another. */
function skipping(): void {
  document.querySelector(".skip")?.addEventListener("click", (event) => {
    event.preventDefault();
    place("main").focus();
  });
}

/** A fleet comes first, where there is one: no recording is open before a rank is chosen. */
function fleet({ start }: App): void {
  if (!start.fleet) return;
  document.querySelector('nav a[href="#fleet"]')?.removeAttribute("hidden");
  if (location.hash === "") history.replaceState(history.state, "", "#fleet");
  fill(place("opening"), h("p", {}, "No rank is open: choose one among ", h("a", { href: "#fleet", text: "all ranks" }), "."));
}

async function main(): Promise<void> {
  const app = new App(await api.start());
  chooser(app);
  skipping();
  fleet(app);
  app.address.add(shownState(app));
  mountFilter(place("filter"), app);
  mountLit(place("lit"), app);
  mountTimeline(place("timeline"), app);
  mountSegments(place("segments"), app);
  mountEvents(place("events"), app);
  mountFlame(place("flame"), app);
  mountDetails(place("details"), app);
  mountReport(place("report"), place("opening"), app);
  mountWhatIf(place("what-if"), app);
  mountFleet(place("fleet"), app);
  mountCompare(place("compare"), app);
  mountTraining(place("training"), app);
  mountRun(place("run"), app);
  mountDrop(app);
  mountPrint();
  window.addEventListener("hashchange", () => {
    route();
    app.attempt(app.address.read());
  });
  route();
  if (app.start.refused.length > 0) {
    app.say(app.start.refused.map(({ name, error }) => `${plain(name)}: ${error}`).join("; "), true);
  }
  const first = app.recordings[0];
  await app.attempt(app.address.read());
  if (app.store.state.recording === null) {
    if (first !== undefined) {
      await app.attempt(app.show(first.id));
    } else if (location.hash === "") {
      location.hash = "training";
    }
  }
  document.documentElement.dataset["ready"] = "true";
}

main().catch((error: unknown) => {
  const said = document.getElementById("said");
  if (said !== null) {
    said.textContent = error instanceof Error ? error.message : String(error);
    said.classList.add("wrong");
  }
});
