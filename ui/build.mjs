// Builds the page of the console into the Python package. --check compares instead of writing.
import { readFile, writeFile, mkdir } from "node:fs/promises";
import { existsSync, readdirSync } from "node:fs";
import { basename, dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

const here = dirname(fileURLToPath(import.meta.url));
const target = join(here, "..", "glidemq_orchestrate", "console", "static");

async function bundle() {
  const built = await build({
    absWorkingDir: here,
    entryPoints: { early: "src/early.js", app: "src/app.jsx" },
    outdir: "out",
    bundle: true,
    minify: true,
    sourcemap: false,
    write: false,
    metafile: true,
    format: "iife",
    target: ["es2022"],
    charset: "utf8",
    legalComments: "external",
    jsx: "automatic",
    jsxImportSource: "preact",
    define: { "process.env.NODE_ENV": '"production"' },
  });
  const files = new Map([["index.html", await readFile(join(here, "index.html"), "utf8")]]);
  let comments = "";
  for (const file of built.outputFiles) {
    if (file.path.endsWith(".LEGAL.txt")) comments += file.text;
    else files.set(basename(file.path), file.text);
  }
  files.set("LICENSES.txt", await licences(Object.keys(built.metafile.inputs), comments));
  return files;
}

async function licences(inputs, comments) {
  const names = new Set(inputs.map((path) => /node_modules\/((?:@[^/]+\/)?[^/]+)/.exec(path)?.[1]).filter(Boolean));
  const parts = ["The page of the console contains these packages.\n"];
  for (const name of [...names].sort()) {
    const home = join(here, "node_modules", name);
    const { version, license } = JSON.parse(await readFile(join(home, "package.json"), "utf8"));
    const file = readdirSync(home).find((one) => /^licen[sc]e/i.test(one));
    if (!file) throw new Error(`${name} has no licence file`);
    parts.push(`${"=".repeat(72)}\n${name} ${version} (${license})\n\n${(await readFile(join(home, file), "utf8")).trim()}\n`);
  }
  for (const file of readdirSync(join(here, "licences")).sort()) {
    const text = (await readFile(join(here, "licences", file), "utf8")).trim();
    parts.push(`${"=".repeat(72)}\n${file.replace(".txt", "")} (inside cytoscape)\n\n${text}\n`);
  }
  if (comments.trim()) parts.push(`${"=".repeat(72)}\nNotices inside these packages\n\n${comments.trim()}\n`);
  return parts.join("\n").replaceAll("\r\n", "\n");
}

const files = await bundle();
if (process.argv.includes("--check")) {
  const stale = [];
  for (const [name, text] of files) {
    const path = join(target, name);
    if (!existsSync(path) || (await readFile(path, "utf8")) !== text) stale.push(name);
  }
  if (stale.length) {
    console.error(`glidemq_orchestrate/console/static is stale (${stale.join(", ")}): make ui`);
    process.exit(1);
  }
} else {
  await mkdir(target, { recursive: true });
  for (const [name, text] of files) {
    await writeFile(join(target, name), text);
    console.log(`${name} ${Buffer.byteLength(text)} bytes`);
  }
}
