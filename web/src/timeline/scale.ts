// Where moments lie on the axis: by entries or by time.
//
// In:  a recording's times. Out: a place for each moment, and back; the moments that each column of pixels covers.
//
// Moment m lasts from the entry before it to the entry after it. What comes before the first entry and after the last has
// no length of its own, and is given the mean distance of two entries.
import type { Axis } from "../store.ts";

export interface Scale {
  /** The place of a moment; fractions lie between. */
  place(moment: number): number;
  moment(place: number): number;
}

const ENTRIES: Scale = { place: (moment) => moment, moment: (place) => place };

/** Places by time. Clocks of several threads may go back a little; places never do. */
function byTime(time: Float64Array): Scale {
  const entries = time.length;
  const places = new Float64Array(entries + 2);
  const pause = Math.max((time[entries - 1] - time[0]) / Math.max(entries - 1, 1), 1);
  places[0] = time[0] - pause;
  for (let entry = 0; entry < entries; entry++) {
    places[entry + 1] = Math.max(places[entry], time[entry]);
  }
  places[entries + 1] = places[entries] + pause;
  return {
    place(moment) {
      const whole = Math.min(Math.max(Math.floor(moment), 0), entries);
      return places[whole] + (moment - whole) * (places[whole + 1] - places[whole]);
    },
    moment(place) {
      let low = 0;
      let high = entries;
      while (low < high) {
        const middle = (low + high + 1) >>> 1;
        if (places[middle] <= place) low = middle;
        else high = middle - 1;
      }
      const length = places[low + 1] - places[low];
      return length > 0 ? low + Math.min(Math.max((place - places[low]) / length, 0), 1) : low;
    },
  };
}

/** The scale of a recording; without times there are only entries. */
export function scaleOf(time: Float64Array, timed: boolean, axis: Axis): Scale {
  return axis === "time" && timed && time.length > 0 ? byTime(time) : ENTRIES;
}

/** The first and last moment of each column of pixels, for moments [from, to) of a recording. */
export function columns(
  scale: Scale,
  from: number,
  to: number,
  width: number,
  entries: number,
): { first: Uint32Array; last: Uint32Array } {
  const first = new Uint32Array(width);
  const last = new Uint32Array(width);
  const start = scale.place(from);
  const step = (scale.place(to) - start) / width;
  let here = from;
  for (let x = 0; x < width; x++) {
    const next = x + 1 < width ? Math.min(Math.max(scale.moment(start + (x + 1) * step), here), to) : to;
    first[x] = Math.min(Math.max(Math.floor(here), 0), entries);
    last[x] = Math.min(Math.max(Math.ceil(next) - 1, first[x]), entries);
    here = next;
  }
  return { first, last };
}
