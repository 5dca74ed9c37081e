// What the server answers. Kept in step with crates/view/src/api/: the browser tests load every kind.
//
// The page is served below /TOKEN/, and all addresses are relative to it, so nothing here knows the token.

/** One timeline: a file's device, a run, or a what-if made from another. */
export interface RecordingInfo {
  id: number;
  /** The file's name, or what was asked. */
  name: string;
  kind: "file" | "run" | "what-if";
  /** The device's ordinal. */
  device: number;
  entries: number;
  allocations: number;
  /** Counts up when the recording has grown: a run that goes on. */
  version: number;
  /** The settings string; empty for the defaults. */
  conf: string;
  /** The recording it was made from, if it is a what-if. */
  of: number | null;
  /** The policy and the limit that a what-if was asked for. */
  policy: string;
  limit: number | null;
  /** Of a fleet's rank, and of what-ifs made of it, the number of its file. */
  row: number | null;
}

export interface Start {
  version: string;
  recordings: RecordingInfo[];
  /** Files that could not be opened, and why. */
  refused: { name: string; error: string }[];
  /** Whether a run goes on behind the page. */
  run: boolean;
  /** Whether there is a fleet, whose ranks are opened when someone asks. */
  fleet: boolean;
}

/** A file of a fleet: whose it is by its name, and what became of it. */
export interface FleetFile {
  address: string;
  rank: number | null;
  node: number | null;
  pp: number | null;
  tp: number | null;
  dp: number | null;
  step: number | null;
  /** Its group, from 0; null if it could not be read. */
  group: number | null;
  /** Why it could not be read. */
  error: string | null;
  /** What limits it, in a sentence. */
  cause: string | null;
  /** The number of the file whose run it shares. */
  shares: number | null;
}

/** A list of what the fleet says; a line is about a file, about several that it names one of, or about all. */
export interface FleetSection {
  kind: string;
  title: string;
  lines: { file: string | null; name: string; words: string[] }[];
}

/** The head of a fleet; its columns follow. Files are in the order of their addresses, and are named by their number. */
export interface FleetHead {
  columns: Column[];
  files: FleetFile[];
  text: string;
  sections: FleetSection[];
  /** The limit on reserved bytes, and whether someone said it; else it is concluded. */
  limit: number | null;
  given: boolean;
  failed: number[];
  outliers: number[];
  near: number[];
}

/** A line of the user's program. */
export interface Site {
  file: string;
  line: number;
  function: string;
}

export interface Frame extends Site {
  /** Whether it is a library's. */
  library: boolean;
}

/** A module: its name as the function, the line that calls the next module or 0. */
export interface Module extends Frame {
  /** Which of the modules that the line calls in one pass the next one is; null if that is not known. */
  index: number | null;
}

export interface Column {
  name: string;
  type: "u8" | "u16" | "u32" | "f64";
  length: number;
  /** From the end of the header, a multiple of eight. */
  offset: number;
}

/** The head of a timeline; the columns follow it as they lie in memory. */
export interface TimelineHead {
  columns: Column[];
  /** Call sites; number 0 stands for "not recorded". */
  sites: (Site | null)[];
  streams: string[];
  pools: string[];
  purposes: string[];
  /** Entries at which iterations begin. */
  iterations: number[];
  /** Named spans: the marks of a profiler, or the phases of a recipe. Ends are exclusive. */
  phases: { name: string; begin: number; end: number }[];
  /** How many requests failed, */
  failed: number;
  /** and the last ten thousand of them. */
  ooms: { entry: number; requested: number; free: number | null }[];
  limit: number | null;
  /** Most bytes, and the entries after which they were first reached. */
  peak: { allocated: number; allocatedAt: number; reserved: number; reservedAt: number };
  /** Whether times are known. */
  timed: boolean;
}

/** The `report` of a file in what `tonnage report --json` prints, with its names. Only what the page reads. */
export interface Report {
  verdict: Verdict;
  causes: Verdict[];
  /** Bytes of no use where reserved memory first peaks, by kind. */
  waste: Record<string, number>;
  blame: Blame[];
  peak: Peak;
  growth: Growth;
  failed_requests: number;
  /** The limit on reserved bytes, if one is known. */
  limit: number | null;
  ooms: FailedRequest[];
  /** What replay says of the last request that failed; none if none did. */
  failure?: FailureAnswer | null;
  advice: Advice[];
  settings: { best: string; recorded: number; reserved: number } | null;
  /** Pinned memory of the host, part of no other figure; only where the file speaks of it. */
  pinned?: Pinned;
  notes: string[];
}

export interface Pinned {
  reserved: number;
  reserved_peak: number | null;
  allocated: number;
  allocated_peak: number | null;
  cached: number;
  lines: { line: string | null; bytes: number; blocks: number }[];
}

export interface Verdict {
  cause: string;
  bytes: number;
  line: string | null;
  text: string;
}

/** The lines and the largest blocks to blame for one kind of waste. */
export interface Blame {
  kind: string;
  bytes: number;
  lines: { line: string | null; bytes: number; blocks: number }[];
  blocks: { address: number; size: number; wasted: number; stream: number; line: string | null }[];
}

export interface Peak {
  event: number;
  iteration: number | null;
  requested: number;
  blocks: number;
  reserved: { event: number; bytes: number; requested: number; stream: number };
  sites: { line: string | null; bytes: number; blocks: number }[];
  modules: { module: string | null; indexed: string | null; bytes: number; blocks: number; layers: { module: string; bytes: number; blocks: number }[] }[];
  libraries: { line: string | null; bytes: number; blocks: number }[];
  purposes: { purpose: string; bytes: number; blocks: number; confidence: string }[];
}

export interface Growth {
  kind: string;
  told_by: string | null;
  iterations: number;
  leak_per_iteration: number;
  lines: { line: string | null; kind: string; bytes: number; blocks: number }[];
  each: { number: number; first_event: number; requested: number; reserved: number; leaked: number }[];
}

export interface FailedRequest {
  event: number;
  bytes: number;
  line: string | null;
  fatal: boolean;
  /** Bytes that the device had free, and what was reserved of it. */
  device_free: number;
  reserved: number;
  /** Bytes that were free in pools, and the largest free block of the request's own stream. */
  cached: number;
  largest_free: number;
  /** Whether a limit stopped it, and not the device. */
  by_limit: boolean;
  why: string;
  would_have: string[];
}

export interface FailureAnswer {
  answer: string;
  /** The setting that serves it. */
  conf: string | null;
  /** The limit that it ran into: at least so many bytes. */
  limit: { bytes: number };
}

export interface Advice {
  change: string;
  cause: string;
  bytes: number;
  basis: string;
  confidence: string;
  cost: string;
  line: string | null;
  /** Lines to copy. */
  code: string[];
  /** Bytes of the failed request that it serves, by replay. */
  serves?: number | null;
}

/** One setting that `tune` tried. */
export interface Candidate {
  conf: string;
  policy: string;
  reservedPeak: number;
  fits: boolean;
  driverCalls: number;
  /** What the driver's calls about pages take. */
  driverNs: number;
  retries: number;
  recorded: boolean;
}

export interface Tuning {
  candidates: Candidate[];
  /** Most that is live at once: no allocator can do with less. */
  floor: number;
  limit: number | null;
}

export interface WhatIfRequest {
  conf: string;
  policy: string;
  limit: number | null;
}

export interface WhatIfAnswer {
  recording: RecordingInfo;
  reservedPeak: number;
  recordedPeak: number;
  oom: { entry: number; bytes: number } | null;
  /** The driver's calls about pages, and what they take; none where memory comes in whole segments. */
  pageCalls: number;
  pageNs: number;
}

/** A number that a recipe takes, with the range of its slider. */
export interface SizeInfo {
  name: "layers" | "width" | "batch" | "seq" | "image" | "antennas" | "users" | "subcarriers";
  least: number;
  most: number;
  step: number;
  value: number;
}

export interface RecipeInfo {
  name: string;
  about: string;
  /** Whether it has gradients and an optimizer. */
  trains: boolean;
  sizes: SizeInfo[];
  amp: string[];
  checkpoint: string[];
  optimizer: string[];
  accumulate: string[];
}

export type PredictRequest = { recipe: string } & { [size in SizeInfo["name"]]?: number } & {
  accumulate?: number;
  /** Bytes of the GPU, to ask whether it fits. */
  limit?: number;
  amp?: string;
  checkpoint?: string;
  optimizer?: string;
};

/** Part of a step: points, events, and how much it queues. Ends are exclusive. */
export interface StepPhase {
  name: string;
  begin: number;
  end: number;
  from: number;
  to: number;
  operations: number;
  kernels: number;
  /** Seconds that it takes at least, by the name of a GPU. */
  seconds: Record<string, number>;
}

/** The largest batch for a GPU, as asked and with each technique; 0 if none fits. */
export interface FitAnswer {
  limit: number;
  batch: number;
  techniques: { flags: string; batch: number }[];
}

/** One training step, predicted by the engine. */
export interface StepTimeline {
  checkpoint: string;
  /** Events, allocations and frees, up to each point. */
  events: number[];
  /** Bytes after each point, at most some 2,000; peaks are kept. */
  allocated: number[];
  reserved: number[];
  /** By purpose, in the order of `purposes`, at the same points. */
  held: number[][];
  purposes: string[];
  phases: StepPhase[];
  peak: { allocated: number; reserved: number; point: number; phase: string };
  parameters: number;
}

export interface PredictAnswer {
  /** Whether it runs on a device of the bytes that were asked about; null if none were. */
  fits: boolean | null;
  /** What was asked for. */
  step: StepTimeline;
  /** The same without checkpoints and with √n of them, where the recipe can. */
  none: StepTimeline | null;
  sqrt: StepTimeline | null;
  command: string;
}

export interface RunState {
  done: number;
  of: number;
  losses: number[];
  allocatedPeak: number;
  reserved: number;
  finished: boolean;
  error: string | null;
}

export class Refused extends Error {}

async function answer(path: string, init?: RequestInit): Promise<Response> {
  let response: Response;
  try {
    response = await fetch(path, { ...init, cache: "no-store" });
  } catch (error) {
    if (error instanceof DOMException && error.name === "AbortError") throw error;
    throw new Refused("the server does not answer: is `tonnage view` still running?");
  }
  if (!response.ok) {
    throw new Refused((await response.text()) || `${response.status} ${response.statusText}`);
  }
  return response;
}

async function json<T>(path: string, init?: RequestInit): Promise<T> {
  return (await (await answer(path, init)).json()) as T;
}

function post(body: unknown): RequestInit {
  return { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body) };
}

export const api = {
  start: () => json<Start>("api/start"),
  timeline: async (id: number) => (await answer(`api/recordings/${id}/timeline`)).arrayBuffer(),
  stacks: async (id: number) => (await answer(`api/recordings/${id}/stacks`)).arrayBuffer(),
  stack: (id: number, stack: number) => json<Frame[]>(`api/recordings/${id}/stacks/${stack}`),
  report: (id: number, signal?: AbortSignal) => json<Report>(`api/recordings/${id}/report`, signal ? { signal } : {}),
  /** The same without what a replay would tell. */
  reportAtOnce: (id: number) => json<Report>(`api/recordings/${id}/report/at-once`),
  tune: (id: number) => json<Tuning>(`api/recordings/${id}/tune`),
  whatIf: (id: number, request: WhatIfRequest) =>
    json<WhatIfAnswer>(`api/recordings/${id}/what-if`, post(request)),
  /** Opens a file that the page was given; one recording for each of its devices. */
  open: (file: File) =>
    json<RecordingInfo[]>(`api/open/${encodeURIComponent(file.name)}`, {
      method: "POST", headers: { "content-type": "application/octet-stream" }, body: file,
    }),
  fleet: async () => (await answer("api/fleet")).arrayBuffer(),
  /** Opens the file of a rank; whoever gives it up ends its reading. */
  openRank: (file: number, signal?: AbortSignal) =>
    json<RecordingInfo>(`api/fleet/open/${file}`, signal ? { ...post({}), signal } : post({})),
  recipes: () => json<RecipeInfo[]>("api/recipes"),
  predict: (request: PredictRequest, signal?: AbortSignal) =>
    json<PredictAnswer>("api/predict", signal ? { ...post(request), signal } : post(request)),
  fit: (request: PredictRequest, signal: AbortSignal) => json<FitAnswer>("api/fit", { ...post(request), signal }),
  run: () => json<RunState>("api/run"),
};
