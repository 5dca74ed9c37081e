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

/**
 * The view of a recording that has grown. Whoever sees the whole goes on seeing the whole; whoever has zoomed in or
 * gone to a moment stays there. Rows keep their numbers, since allocations are only added, but what a cause
 * or the filter took has to be found anew.
 */
export function follow(state: Readonly<View>, recording: Recording): View {
  const before = state.recording;
  const whole = before === null || (state.from <= 0 && state.to >= before.entries + 1);
  const atPeak = before === null || state.moment === before.head.peak.reservedAt;
  return {
    recording,
    from: whole ? 0 : state.from,
    to: whole ? recording.entries + 1 : Math.min(state.to, recording.entries + 1),
    moment: atPeak ? recording.head.peak.reservedAt : Math.min(state.moment, recording.entries),
    chosen: state.chosen < recording.allocations.length ? state.chosen : -1,
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
