// The state in the address: which recording, which part of it, which moment, what is filtered and chosen.
import { type Part, brief, whole } from "./address.ts";
import { api } from "./api.ts";
import type { App } from "./app.ts";
import type { Recording } from "./recording.ts";
import type { Axis, ColourBy, State } from "./store.ts";
import { within } from "./timeline/window.ts";

export const COLOURS: readonly ColourBy[] = ["purpose", "site", "module", "layer", "frame", "stream", "size"];
export const AXES: readonly Axis[] = ["entries", "time"];

/** What the address says of a state. A what-if is named by its question, since the server keeps few of them. */
export function written(state: Readonly<State>, into: URLSearchParams): void {
  const { recording } = state;
  if (recording === null) return;
  const { info, entries } = recording;
  // A rank of a fleet is named by its file, which can be opened again.
  if (info.row !== null) into.set("rank", String(info.row));
  else into.set("recording", String(info.of ?? info.id));
  if (info.of !== null) {
    into.set("if", info.conf);
    if (info.policy !== "" && info.policy !== "pytorch") into.set("policy", info.policy);
    if (info.limit !== null) into.set("limit", String(info.limit));
  }
  if (state.from > 0 || state.to < entries + 1) {
    into.set("from", brief(state.from));
    into.set("to", brief(state.to));
  }
  into.set("at", String(state.moment));
  into.set("colour", state.colourBy);
  if (state.colourBy === "frame") into.set("depth", String(state.depth));
  if (state.axis !== "entries") into.set("axis", state.axis);
  if (state.query !== "") into.set("filter", state.query);
  if (state.chosen >= 0) into.set("chosen", String(state.chosen));
}

/** The changes that an address asks for, as far as the recording has what they name. */
export function asked(from: URLSearchParams, recording: Recording): Partial<State> {
  const { entries, allocations } = recording;
  const change: Partial<State> = {};
  const [begin, end] = [Number(from.get("from") ?? NaN), Number(from.get("to") ?? NaN)];
  if (Number.isFinite(begin) && Number.isFinite(end) && begin < end) Object.assign(change, within({ from: begin, to: end }, entries));
  const moment = whole(from.get("at"));
  if (moment !== null) change.moment = Math.min(moment, entries);
  const colour = COLOURS.find((it) => it === from.get("colour"));
  if (colour !== undefined) change.colourBy = colour;
  if (colour === "frame") change.depth = Math.min(whole(from.get("depth")) ?? 0, 999);
  change.axis = AXES.find((it) => it === from.get("axis")) ?? "entries";
  change.query = from.get("filter") ?? "";
  const chosen = whole(from.get("chosen"));
  change.chosen = chosen !== null && chosen < allocations.length ? chosen : -1;
  return change;
}

export function shownState(app: App): Part {
  app.store.subscribe(() => app.address.changed());
  return {
    write: (into) => written(app.store.state, into),
    async read(from) {
      const rank = app.start.fleet ? whole(from.get("rank")) : null;
      const id = rank === null ? whole(from.get("recording")) : await app.openRank(rank);
      if (id === null) return;
      if (!app.recordings.some((it) => it.id === id)) {
        app.say("The recording of this address is not open here.", true);
        return;
      }
      const conf = from.get("if");
      if (conf === null) {
        await app.show(id, (recording) => asked(from, recording));
        return;
      }
      // A what-if that is refused leaves what it was asked of.
      let refused: unknown = null;
      const front = api.whatIf(id, { conf, policy: from.get("policy") ?? "pytorch", limit: whole(from.get("limit")) }).then(
        ({ recording }) => {
          app.put(recording);
          return recording.id;
        },
        (error: unknown) => {
          refused = error;
          return id;
        },
      );
      await app.show(front, (recording) => asked(from, recording));
      if (refused !== null) throw refused;
    },
  };
}
