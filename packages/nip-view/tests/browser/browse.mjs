// Opens pages of `nip view` in a browser, checks each with axe-core, and takes pictures.
//
//   node tests/browser/browse.mjs DIR < PLAN.json > RESULTS.json
//
// DIR has playwright-core and axe-core in node_modules (scripts/build_view.sh). The plan:
//   {"chromium": PATH, "origin": "http://127.0.0.1:PORT", "token": TOKEN or null,
//    "sizes": [[1440, 900], [390, 844]], "schemes": ["light", "dark"],
//    "pages": [{"name": NAME, "path": PATH, "shot": FILE or null, "full": true}],
//    "measured": [SELECTOR], "opened": false}
// The results are a list with one entry for each page, size and scheme: its violations by axe-core,
// what its console has said, how wide its content is, its text, and from where to where the
// elements of each selector are, those alone that can be seen. With "opened" axe-core looks at what
// is folded too.
import { createRequire } from "node:module";
import { readFileSync } from "node:fs";
import path from "node:path";

const require = createRequire(path.resolve(process.argv[2], "node_modules") + "/");
const { chromium } = require("playwright-core");
const axe = readFileSync(require.resolve("axe-core/axe.min.js"), "utf8");
const plan = JSON.parse(readFileSync(0, "utf8"));
const patience = plan.patience_ms ?? 60000;

const browser = await chromium.launch({ executablePath: plan.chromium, args: ["--no-sandbox", "--disable-dev-shm-usage"], timeout: patience });
const results = [];
for (const [width, height] of plan.sizes) {
  for (const scheme of plan.schemes) {
    const context = await browser.newContext({
      viewport: { width, height }, colorScheme: scheme, reducedMotion: "reduce",
      deviceScaleFactor: plan.scale ?? 1,
    });
    context.setDefaultTimeout(patience);
    const page = await context.newPage();
    if (plan.token) {
      await page.goto(`${plan.origin}/?token=${plan.token}`);
      await page.waitForURL((url) => !url.search.includes("token"));
    }
    for (const { name, path: address, shot, full } of plan.pages) {
      const said = [];
      const listen = (message) => { if (message.type() === "error") said.push(message.text()); };
      const crashed = (error) => said.push(String(error));
      page.on("console", listen);
      page.on("pageerror", crashed);
      await page.goto(plan.origin + address, { waitUntil: "load" });
      const places = await page.evaluate((selectors) => Object.fromEntries(selectors.map((selector) => [selector,
          [...document.querySelectorAll(selector)].filter((element) => element.checkVisibility()).map((element) => {
            const { left, right } = element.getBoundingClientRect();
            return [left, right];
          })])), plan.measured ?? []);
      if (shot) {
        const file = shot.replace("{size}", width).replace("{scheme}", scheme);
        await page.screenshot({ path: file, fullPage: full ?? false });
      }
      if (plan.opened) await page.evaluate(() => { for (const fold of document.querySelectorAll("details")) fold.open = true; });
      // The page's policy lets no script in, so axe-core is evaluated by the debugger.
      await page.evaluate(axe);
      const found = await page.evaluate(() => globalThis.axe.run(document, { resultTypes: ["violations"] }));
      results.push({
        name, width, scheme, said,
        violations: found.violations.map(({ id, nodes }) => ({ id, nodes: nodes.slice(0, 4).map((n) => `${n.target}: ${n.failureSummary}`) })),
        passes: found.passes.length,
        scroll_width: await page.evaluate(() => document.documentElement.scrollWidth),
        text: await page.evaluate(() => document.body.innerText),
        places,
        // Fields that are cut off at the edge of the table they stand in, and what is hard to hit.
        cut: await page.evaluate(() => [...document.querySelectorAll(".scroll textarea")].filter((field) => field.getBoundingClientRect().right > field.closest(".scroll").getBoundingClientRect().right).length),
        low: await page.evaluate(() => [...document.querySelectorAll("main :is(a, button, summary)")].filter((target) => target.checkVisibility() && target.getBoundingClientRect().height < 24).map((target) => target.textContent.trim())),
      });
      page.off("console", listen);
      page.off("pageerror", crashed);
    }
    await context.close();
  }
}
await browser.close();
process.stdout.write(JSON.stringify(results));
