// Writes a note and gives a star in `nip view`, as a reader does; node tests/browser/note.mjs DIR < PLAN.json
//
// DIR has playwright-core in node_modules. The plan: {"chromium": PATH, "url": the address that nip
// view has printed, "list": an address of episodes, "note": words, "scripts": whether the page's
// script runs, "patience_ms": N}. Says in the end, as JSON, what was seen.
import { createRequire } from "node:module";
import { readFileSync } from "node:fs";
import path from "node:path";

const require = createRequire(path.resolve(process.argv[2], "node_modules") + "/");
const { chromium } = require("playwright-core");
const plan = JSON.parse(readFileSync(0, "utf8"));
const browser = await chromium.launch({ executablePath: plan.chromium, args: ["--no-sandbox", "--disable-dev-shm-usage"], timeout: plan.patience_ms });
const context = await browser.newContext({ javaScriptEnabled: plan.scripts });
context.setDefaultTimeout(plan.patience_ms);
const page = await context.newPage();
const errors = [];
page.on("pageerror", (error) => errors.push(String(error)));
page.on("console", (message) => { if (message.type() === "error") errors.push(message.text()); });

await page.goto(plan.url);
await page.waitForURL((url) => !url.search.includes("token"));
const list = new URL(plan.list, page.url()).href;
// 1. A note and a star in the list; the page comes back to the row.
await page.goto(list);
const row = page.locator("table tbody tr").nth(2);
await row.locator("summary").click();
await row.locator("textarea").fill(plan.note);
await row.getByRole("button", { name: "Keep" }).click();
await page.waitForURL((url) => url.hash.startsWith("#e-"));
const back = page.url().slice(list.length);
await page.locator("tr:target button.star").click();
await page.locator("tr:target button.star[aria-pressed=true]").waitFor();
// 2. Both are in the file that is taken away.
const waiting = page.waitForEvent("download");
await page.getByRole("link", { name: "JSONL" }).first().click();
const download = await waiting;
const rows = readFileSync(await download.path(), "utf8").trim().split("\n").map((line) => JSON.parse(line));
const noted = rows.filter((of) => of.star || of.note).map(({ key, star, note }) => ({ key, star, note }));
// 3. On the page of the episode they are taken away again.
await page.locator("tr:target th a").first().click();
const note = page.locator("#note textarea");
const opened = await note.inputValue();
// Typed and not kept it is not left behind, neither by a link nor by a key.
const asked = [];
page.on("dialog", (dialog) => { asked.push(dialog.type()); dialog.dismiss(); });
await note.fill("not kept");
if (plan.scripts) {
  const there = page.url();
  for (const leave of [() => page.locator("a[data-after]").click({ noWaitAfter: true }), () => page.keyboard.press("j")]) {
    const dialog = page.waitForEvent("dialog");
    await note.blur();
    await Promise.all([dialog, leave()]);
  }
  if (page.url() !== there || await note.inputValue() !== "not kept") errors.push("the note is lost");
}
await note.fill("");
await page.locator("#note").getByRole("button", { name: "Keep" }).click();
await page.waitForURL((url) => url.hash === "#note");
await page.locator("#note button.star").click();
await page.locator("#note button.star[aria-pressed=false]").waitFor();
const emptied = await note.inputValue();
await browser.close();
process.stdout.write(JSON.stringify({ back, file: download.suggestedFilename(), noted, opened, asked, emptied, errors }));
