// Runs the unit tests: each test/*.test.ts is bundled, then handed to Node's own runner.
import { spawnSync } from "node:child_process";
import { mkdtemp, readdir, rm } from "node:fs/promises";
import os from "node:os";
import path from "node:path";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

const here = path.dirname(fileURLToPath(import.meta.url));
const tests = (await readdir(path.join(here, "test"))).filter((name) => name.endsWith(".test.ts"));
const out = await mkdtemp(path.join(os.tmpdir(), "tonnage-web-"));
try {
  await build({
    absWorkingDir: here,
    entryPoints: tests.map((name) => `test/${name}`),
    outdir: out,
    outExtension: { ".js": ".mjs" },
    bundle: true,
    platform: "node",
    format: "esm",
    sourcemap: "inline",
    logLevel: "warning",
  });
  const files = tests.map((name) => path.join(out, name.replace(/\.ts$/, ".mjs")));
  const ran = spawnSync(process.execPath, ["--enable-source-maps", "--test", ...files], { stdio: "inherit" });
  process.exitCode = ran.status ?? 1;
} finally {
  await rm(out, { recursive: true, force: true });
}
