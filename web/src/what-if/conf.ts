// Settings strings, as in PYTORCH_CUDA_ALLOC_CONF. In: text. Out: keys with their values, in order, and back.
//
// Nothing is checked here: the engine's own parser has the last word, and its message is shown.

export type Settings = [key: string, value: string][];

/** Takes a string apart. Commas within brackets belong to a value. */
export function parse(conf: string): Settings {
  const parts: string[] = [];
  let depth = 0;
  let part = "";
  for (const character of conf) {
    depth += character === "[" ? 1 : character === "]" ? -1 : 0;
    if (character === "," && depth <= 0) {
      parts.push(part);
      part = "";
    } else {
      part += character;
    }
  }
  parts.push(part);
  return parts
    .map((it) => it.trim())
    .filter((it) => it !== "")
    .map((it) => {
      const colon = it.indexOf(":");
      return colon < 0 ? [it, ""] : [it.slice(0, colon).trim(), it.slice(colon + 1).trim()];
    });
}

export function write(settings: Settings): string {
  return settings.map(([key, value]) => (value === "" ? key : `${key}:${value}`)).join(",");
}

/** The value of a key; the last one counts, as in PyTorch. */
export function valueOf(conf: string, key: string): string {
  return parse(conf).filter(([it]) => it === key).at(-1)?.[1] ?? "";
}

/** The same string with another value for a key; an empty one takes the key out. */
export function withValue(conf: string, key: string, value: string): string {
  const settings = parse(conf);
  const place = settings.findIndex(([it]) => it === key);
  const rest = settings.filter(([it]) => it !== key);
  if (value !== "") {
    rest.splice(place < 0 ? rest.length : place, 0, [key, value]);
  }
  return write(rest);
}
