"use strict";
/* What makes the pages quicker to use; all of them work without it. Looks for news of a run, lets
   menus apply at once, moves by j, k and /, and asks before a typed note is lost. What comes from
   the server is a whole page of it, with everything that a model wrote escaped there. */
(() => {
  const EVERY_MS = 2000;
  const body = document.body;
  const news = document.getElementById("news");

  // Menus apply at once. Empty fields stay out of the address.
  function tidy(form) {
    for (const field of form.elements) if (field.name && field.value === "") field.disabled = true;
    setTimeout(() => { for (const field of form.elements) field.disabled = false; });
  }
  document.addEventListener("submit", (event) => { if (event.target.method === "get") tidy(event.target); });
  document.addEventListener("change", (event) => {
    const form = event.target.closest("form[data-auto]");
    if (form && event.target.tagName === "SELECT") form.requestSubmit();
  });
  addEventListener("pageshow", () => {
    for (const field of document.querySelectorAll("form :disabled")) field.disabled = false;
    // After "back" the fields say what the page shows, not what was chosen last.
    for (const form of document.querySelectorAll("form[data-auto]")) form.reset();
  });

  // j and k: the next and the previous episode, or row; "/": look for text.
  const typing = (target) => target.closest && target.closest("input, select, textarea, [contenteditable]");
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || typing(event.target)) return;
    if (event.key === "/") {
      const search = document.querySelector("[data-search]") || document.querySelector("input[type=search]");
      if (search) {
        event.preventDefault();
        const fold = search.closest("details");
        if (fold) fold.open = true;
        search.focus();
      }
    } else if (event.key === "j" || event.key === "k") {
      const link = document.querySelector(event.key === "j" ? "a[data-after]" : "a[data-before]");
      if (link) { link.click(); return; }
      const rows = [...document.querySelectorAll("table[data-rows] tbody th a")];
      if (!rows.length) return;
      const at = rows.indexOf(document.activeElement);
      const next = at < 0 ? 0 : at + (event.key === "j" ? 1 : -1);
      if (rows[next]) rows[next].focus();
    }
  });

  // A note that was typed and not kept isn't lost without a question, whatever leads away.
  let sent = null;
  const written = () => [...document.querySelectorAll("textarea")].filter((field) => field.value !== field.defaultValue);
  document.addEventListener("submit", (event) => { if (event.target.method === "post") sent = event.target; });
  addEventListener("beforeunload", (event) => {
    const lost = written().some((field) => field.form !== sent);
    sent = null;  // one may stay, and leave otherwise
    if (lost) event.preventDefault();
  });

  // While a run goes on: ask whether anything is new, and if so take the page again.
  const live = body.dataset.live;
  if (!live) return;
  let failed = 0;
  function opened() {
    return [...document.querySelectorAll("main details")].map((part) => part.open);
  }
  const isBusy = () => written().length > 0 || typing(document.activeElement || body) || String(getSelection()) !== "";
  async function look() {
    if (document.hidden) return;
    try {
      const answer = await fetch(live, { headers: { Accept: "application/json" } });
      if (!answer.ok) throw new Error(String(answer.status));
      const { state } = await answer.json();
      if (failed >= 3) news.textContent = "The viewer answers again.";
      failed = 0;
      if (state === body.dataset.state || isBusy()) return;
      const page = await fetch(location.href);
      if (!page.ok) throw new Error(String(page.status));
      const fresh = new DOMParser().parseFromString(await page.text(), "text/html");
      if (isBusy()) return;  // somebody has begun to type while the page was read
      const folds = opened();
      for (const part of ["main", "header.bar"]) {
        document.querySelector(part).replaceWith(fresh.querySelector(part));
      }
      document.querySelectorAll("main details").forEach((part, k) => { if (folds[k]) part.open = true; });
      if (fresh.body.dataset.live) body.dataset.state = fresh.body.dataset.state;
      else clearInterval(looking);  // the run is finished
      news.textContent = `Brought up to date at ${new Date().toLocaleTimeString()}.`;
    } catch {
      failed += 1;
      if (failed === 3) news.textContent = "The viewer does not answer; this page is of before.";
    }
  }
  const looking = setInterval(look, EVERY_MS);
})();
