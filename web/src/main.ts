// The page: opens what the server has, and gives each panel its place.
import { api } from "./api.ts";
import { App } from "./app.ts";
import { mountCompare } from "./compare/compare.ts";
import { fill, h } from "./dom.ts";
import { mountFilter } from "./filter/filter.ts";
import { mountRun } from "./live/run.ts";
import { mountReport } from "./report/report.ts";
import { mountSegments } from "./segments/segments.ts";
import { mountDetails } from "./timeline/details.ts";
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

const VIEWS = ["memory", "what-if", "compare", "training"];

/** Shows the view that the address names. */
function route(): void {
  const asked = location.hash.slice(1);
  const shown = VIEWS.includes(asked) ? asked : "memory";
  for (const view of VIEWS) {
    place(view).hidden = view !== shown;
    const link = document.querySelector(`nav a[href="#${view}"]`);
    link?.toggleAttribute("aria-current", view === shown);
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
        h("option", { value: it.id, selected: it.id === front, text: `${it.name} · device ${it.device}` }),
      ),
    );
  };
  list();
  app.onRecordings(list);
  select.addEventListener("change", () => app.attempt(app.show(Number(select.value))));
  app.store.subscribe((state, before) => {
    if (state.recording !== before.recording && state.recording !== null) {
      select.value = String(state.recording.info.id);
      document.title = `${state.recording.info.name} · Tonnage`;
    }
  });
}

async function main(): Promise<void> {
  const app = new App(await api.start());
  chooser(app);
  mountFilter(place("filter"), app);
  mountTimeline(place("timeline"), app);
  mountSegments(place("segments"), app);
  mountDetails(place("details"), app);
  mountReport(place("report"), app);
  mountWhatIf(place("what-if"), app);
  mountCompare(place("compare"), app);
  mountTraining(place("training"), app);
  mountRun(place("run"), app);
  window.addEventListener("hashchange", route);
  route();
  for (const { name, error } of app.start.refused) {
    app.say(`${name}: ${error}`, true);
  }
  const first = app.recordings[0];
  if (first !== undefined) {
    await app.show(first.id);
  } else if (location.hash === "") {
    location.hash = "training";
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
