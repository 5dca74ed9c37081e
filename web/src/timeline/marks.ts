// What the timeline draws besides allocations. In: a recording, what is chosen. Out: a word and a swatch for each. Pure.
import type { Recording } from "../recording.ts";

export interface Mark {
  word: string;
  /** The class of its swatch. */
  swatch: string;
}

export function marksOf({ head }: Pick<Recording, "head">, chosen: boolean, lit: boolean): Mark[] {
  const marks: [boolean, Mark][] = [
    [true, { word: "reserved", swatch: "line reserved" }],
    [head.limit !== null, { word: "limit", swatch: "dashed limit" }],
    [head.iterations.length > 0, { word: "an iteration begins", swatch: "upright iteration" }],
    [head.phases.length > 0, { word: "phase", swatch: "band" }],
    [head.ooms.length > 0, { word: "out of memory", swatch: "upright failed" }],
    [true, { word: "the moment", swatch: "upright moment" }],
    [chosen, { word: "chosen, and its life", swatch: "line chosen" }],
    [lit, { word: "what the cause means", swatch: "lit" }],
  ];
  return marks.flatMap(([there, mark]) => (there ? [mark] : []));
}
