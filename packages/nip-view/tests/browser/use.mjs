// Uses `nip view` as a reader does, in a browser; node tests/browser/use.mjs DIR < PLAN.json
//
// DIR has playwright-core in node_modules. The plan: {"chromium": PATH, "origin": URL, "url": the
// address that nip view has printed, "run": NAME, "word": a word of one message, "patience_ms": N}.
// Says on standard output, a JSON object a line, what was seen after each step; between "ready" and
// "news" it waits for the page to bring itself up to date.
import { createRequire } from "node:module";
import { readFileSync } from "node:fs";
import path from "node:path";

const require = createRequire(path.resolve(process.argv[2], "node_modules") + "/");
const { chromium } = require("playwright-core");
const plan = JSON.parse(readFileSync(0, "utf8"));
const say = (step, seen) => process.stdout.write(JSON.stringify({ step, ...seen }) + "\n");

const browser = await chromium.launch({ executablePath: plan.chromium, args: ["--no-sandbox", "--disable-dev-shm-usage"], timeout: plan.patience_ms });
const context = await browser.newContext({ viewport: { width: 1440, height: 900 } });
context.setDefaultTimeout(plan.patience_ms);
const page = await context.newPage();
const errors = [];
page.on("pageerror", (error) => errors.push(String(error)));
page.on("console", (message) => { if (message.type() === "error") errors.push(message.text()); });

// 1. The printed address: its token is a cookie by now, and in no address.
await page.goto(plan.url);
await page.waitForURL((url) => !url.search.includes("token"));
say("opened", { url: page.url(), title: await page.title() });
// 2. From the matrix to the worst episode and what was asked in it.
await page.goto(`${plan.origin}/runs/${plan.run}/matrix?split=test`);
await page.locator("a.cell").first().click();
await page.locator(".talk .message").first().waitFor();
say("transcript", { url: page.url(), text: await page.locator(".talk").innerText() });
await page.getByRole("link", { name: "What was asked" }).first().click();
await page.locator(".chat.system").first().waitFor();
say("asked", { text: await page.locator("main").innerText() });
// 3. A menu applies at once, its state is in the address, and "back" undoes it.
await page.goto(`${plan.origin}/runs/${plan.run}/episodes`);
const all = await page.locator(".count strong").innerText();
await page.locator("select[name=verdict]").selectOption("wrong");
await page.waitForURL((url) => url.searchParams.get("verdict") === "wrong");
const wrong = await page.locator("tbody tr").count();
const marks = await page.locator("tbody .mark").allInnerTexts();
const url = page.url();
await page.goBack();
await page.locator(".count strong").waitFor();
say("filter", { all, wrong, marks, url, again: await page.locator(".count strong").innerText() });
// 4. Text, by the keyboard; then through the episodes by j and k.
await page.keyboard.press("/");
await page.keyboard.type(plan.word);
await page.keyboard.press("Enter");
await page.waitForURL((address) => address.searchParams.get("text") === plan.word);
const listed = await page.locator("tbody tr").count();
await page.keyboard.press("j");
await page.keyboard.press("Enter");
await page.locator("a[data-after]").waitFor();
const first = page.url();
await page.keyboard.press("j");
await page.waitForURL((address) => address.href !== first);
const second = page.url();
await page.keyboard.press("k");
await page.waitForURL(first);
say("keys", { listed, first, second, url: page.url() });
// 5. A page of a run that goes on brings itself up to date.
await page.goto(`${plan.origin}/runs/${plan.run}/episodes?iteration=1&split=train`);
say("ready", { count: await page.locator(".count strong").innerText() });
await page.locator("#news", { hasText: "Brought up to date" }).waitFor();
say("news", { count: await page.locator(".count strong").innerText(), url: page.url() });
// 6. Of a run that is finished its page asks for nothing more.
await page.locator("header .status.finished").waitFor();
const requests = [];
page.on("request", (request) => requests.push(request.url()));
await page.waitForTimeout(3 * 2000);
say("finished", { requests, errors });
await browser.close();
