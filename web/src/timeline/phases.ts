// Named spans in lanes, so that those inside another are seen too. Pure.

export interface Span {
  name: string;
  /** What is shown where the name has no room. */
  short?: string;
  begin: number;
  end: number;
}

/** More lanes would leave no room for the picture; what lies deeper is left out. */
export const MOST_LANES = 3;

/** Spans by lane: each in the first lane whose last span has ended. `spans` are in order of their beginnings. */
export function lanes(spans: Span[]): Span[][] {
  const found: Span[][] = [];
  for (const span of spans) {
    const lane = found.find((it) => it[it.length - 1].end <= span.begin);
    if (lane !== undefined) lane.push(span);
    else if (found.length < MOST_LANES) found.push([span]);
  }
  return found;
}

/** What the band above the picture shows: phases, or iterations by their number, from 0 as in the report, where no phase is known. */
export function bandOf(head: { phases: Span[]; iterations: number[] }, entries: number): Span[][] {
  if (head.phases.length > 0) {
    return lanes([...head.phases].sort((a, b) => a.begin - b.begin || b.end - a.end));
  }
  return lanes(head.iterations.map((begin, number) => ({
    name: `iteration ${number}`, short: String(number), begin, end: head.iterations[number + 1] ?? entries,
  })));
}
