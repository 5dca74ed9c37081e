// Which frames of a stack are the user's, and which a library's, as the server says. Pure.
import type { Frame } from "../api.ts";

/** The user's frames and the rest, each from the innermost outwards. */
export function sorted(frames: Frame[]): { user: Frame[]; library: Frame[] } {
  const user = frames.filter((frame) => !frame.library);
  // Without a frame of the user's, all are worth showing.
  return user.length === 0 ? { user: frames, library: [] } : { user, library: frames.filter((frame) => frame.library) };
}
