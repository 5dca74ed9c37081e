// Which frames of a stack are the user's, and which a library's. Pure.
import type { Frame } from "../api.ts";

/** Places where libraries live. */
const LIBRARIES = /(^|\/)(site-packages|dist-packages|lib\/python[\d.]*|torch|\.cargo\/registry|rustc)\/|^<(frozen|built-in)|^\?\?$|\.(so|cpp|cc|cu|h|pyx)(\.|$)/;

export function isLibrary({ file }: Frame): boolean {
  return file === "" || LIBRARIES.test(file);
}

/** The user's frames and the rest, each from the innermost outwards. */
export function sorted(frames: Frame[]): { user: Frame[]; library: Frame[] } {
  const user = frames.filter((frame) => !isLibrary(frame));
  // Without a frame of the user's, all are worth showing.
  return user.length === 0 ? { user: frames, library: [] } : { user, library: frames.filter(isLibrary) };
}
