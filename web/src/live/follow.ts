// What changes when a run's recording has grown. In: what is shown, what is there. Out: what to show.
import type { RecordingInfo } from "../api.ts";
import type { Recording } from "../recording.ts";
import type { State } from "../store.ts";

/** Recordings that are new or have grown. */
export function grown(known: RecordingInfo[], now: RecordingInfo[]): RecordingInfo[] {
  const versions = new Map(known.map((it) => [it.id, it.version]));
  return now.filter((it) => it.version > (versions.get(it.id) ?? -1));
}

type View = Pick<State, "recording" | "from" | "to" | "moment" | "chosen" | "lit" | "blamed" | "pieces" | "shown">;

/** So many allocations, from all over, tell whether a recording begins as it did. */
const COMPARED = 64;

/** Whether a recording goes on where it was. A run's history has a bound: past that it loses its beginning, and all numbers move. */
export function goesOn(before: Recording, now: Recording): boolean {
  const [was, is] = [before.allocations, now.allocations];
  if (now.entries < before.entries || is.length < was.length) return false;
  const step = Math.max(1, Math.floor(was.length / COMPARED));
  for (let row = 0; row < was.length; row += step) {
    if (was.address[row] !== is.address[row] || was.begin[row] !== is.begin[row] || was.size[row] !== is.size[row]) return false;
  }
  return true;
}

/**
 * The view of a recording that has grown. Whoever sees the whole goes on seeing the whole; whoever has zoomed in or
 * gone to a moment stays there. Rows keep their numbers as long as allocations are only added, but what a cause
 * or the filter took has to be found anew. A recording that has lost its beginning is seen from there.
 */
export function follow(state: Readonly<View>, recording: Recording): View {
  const before = state.recording === null || !goesOn(state.recording, recording) ? null : state.recording;
  const whole = before === null || (state.from <= 0 && state.to >= before.entries + 1);
  const atPeak = before === null || state.moment === before.head.peak.reservedAt;
  return {
    recording,
    from: whole ? 0 : state.from,
    to: whole ? recording.entries + 1 : Math.min(state.to, recording.entries + 1),
    moment: atPeak ? recording.head.peak.reservedAt : Math.min(state.moment, recording.entries),
    chosen: before !== null && state.chosen < recording.allocations.length ? state.chosen : -1,
    lit: null,
    blamed: null,
    pieces: null,
    shown: null,
  };
}

/** How far a run is, from 0 to 1. */
export function progress(done: number, of: number): number {
  return of > 0 ? Math.min(1, Math.max(0, done / of)) : 0;
}

/** Milliseconds until the next look: a second, and longer the longer nothing answers. */
export function pause(failures: number): number {
  return 1000 * Math.min(16, 2 ** failures);
}

/** The range of the loss, 0 included; a loss that is no number is passed over. */
export function range(losses: readonly (number | null)[]): [number, number] {
  let [least, most] = [0, 0];
  for (const loss of losses) {
    if (loss !== null && Number.isFinite(loss)) {
      least = Math.min(least, loss);
      most = Math.max(most, loss);
    }
  }
  return least === most ? [0, 1] : [least * 1.05, most * 1.05];
}
