// Builds dist/admin.html: the template with one script and one style inside, and nothing from outside.
// With --check it writes nothing, and fails where the file is not what the source builds to.
import { readFile, writeFile, mkdir } from "node:fs/promises";
import { fileURLToPath } from "node:url";
import * as esbuild from "esbuild";

const here = (path) => fileURLToPath(new URL(path, import.meta.url));
const target = here("dist/admin.html");

async function bundle(entry) {
  const built = await esbuild.build({
    entryPoints: [here(entry)],
    bundle: true,
    write: false,
    minify: true,
    format: "iife",
    target: ["chrome110", "firefox115", "safari16"],
    charset: "utf8",
    legalComments: "none",
  });
  return built.outputFiles[0].text.trim();
}

const [template, style, script] = [await readFile(here("src/admin.html"), "utf8"), await bundle("src/style.css"), await bundle("src/main.js")];
for (const [what, text, end] of [["style", style, "</style"], ["script", script, "</script"]])
  if (text.includes(end)) throw new Error(`the ${what} has ${end} inside`);
const page = template
  .replace(/\n\s*/g, "\n")
  .replace("<!--style-->", () => `<style>${style}</style>`)
  .replace("<!--script-->", () => `<script>${script}</script>`);

if (process.argv.includes("--check")) {
  const there = await readFile(target, "utf8").catch(() => "");
  if (there !== page) {
    console.error("web/dist/admin.html is not what web/src builds to: run npm --prefix web run build, and commit it");
    process.exit(1);
  }
} else {
  await mkdir(here("dist"), { recursive: true });
  await writeFile(target, page);
  console.log(`web/dist/admin.html: ${page.length} characters`);
}
