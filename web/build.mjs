// Builds the page: node build.mjs [FOLDER]. The files that `tonnage view` carries are in crates/view/dist.
// The same sources and the same lock file give the same bytes.
import { cp, mkdir, rm } from "node:fs/promises";
import path from "node:path";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

const here = path.dirname(fileURLToPath(import.meta.url));
const out = path.resolve(process.argv[2] ?? path.join(here, "../crates/view/dist"));

await rm(out, { recursive: true, force: true });
await mkdir(out, { recursive: true });
await build({
  absWorkingDir: here,
  entryPoints: { main: "src/main.ts", worker: "src/timeline/worker.ts", style: "src/style.css" },
  outdir: out,
  bundle: true,
  format: "esm",
  target: "es2022",
  minify: true,
  charset: "utf8",
  legalComments: "inline",
  logLevel: "warning",
});
await cp(path.join(here, "src/index.html"), path.join(out, "index.html"));
