// What recordings are called: by the end of their path, with their device, and what-ifs with what they were made from.
import type { RecordingInfo } from "./api.ts";
import { fromEnd, plain } from "./format.ts";

type Named = Pick<RecordingInfo, "id" | "name" | "device" | "kind" | "of">;

/** Letters of a path that are shown where there is little room. */
const SHORT = 40;

/** The whole name: for titles and searches. */
export function fullName(info: Named, all: readonly Named[]): string {
  const source = info.of === null ? undefined : all.find((it) => it.id === info.of);
  const made = info.of === null ? "" : source === undefined ? " of a recording that is gone" : ` of ${plain(source.name)}`;
  return `${plain(info.name)}${made} · device ${info.device}`;
}

/** The same in few letters: of a path its end, which tells ranks and runs apart. */
export function shortName(info: Named, all: readonly Named[]): string {
  const source = info.of === null ? undefined : all.find((it) => it.id === info.of);
  const name = info.kind === "what-if" ? plain(info.name) : fromEnd(plain(info.name), SHORT);
  const made = info.of === null ? "" : source === undefined ? " of a recording that is gone" : ` of ${fromEnd(plain(source.name), SHORT)}`;
  return `${name}${made} · device ${info.device}`;
}
