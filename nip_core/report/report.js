"use strict";
/* The browser of transcripts. Whatever a model or a data set wrote is shown through textContent
   alone; nothing here builds markup from text. */
(() => {
  const DECISIONS = ["reject", "accept", "no decision", "neither"];
  const CHOSEN = {
    failed: "failed", wrong: "wrong", invalid: "invalid answers", changed: "changed verdict",
    sample: "sample",
  };
  const data = JSON.parse(document.getElementById("transcript-data").textContent);
  const transcripts = data.transcripts;
  const form = document.getElementById("filters");
  const list = document.getElementById("list");
  const reader = document.getElementById("reader");
  const count = document.getElementById("count");
  let shown = [];
  let chosen = null;

  function element(tag, className, ...content) {
    const made = document.createElement(tag);
    if (className) made.className = className;
    made.append(...content.map((part) => (part instanceof Node ? part : String(part))));
    return made;
  }

  const PAST = ["rejected", "accepted", "no decision", "neither accepted nor rejected"];
  const side = (right) => (right ? "right" : "wrong");
  // The value says more than the word only between the ends of the scale.
  const minus = (number) => String(number).replace("-", "\u2212");
  const decided = ({ decision, decision_value: value }) => DECISIONS[decision] +
    (value === null || [-1, 0, 1].includes(value) ? "" : ` (${value > 0 ? "+" : ""}${minus(value)})`);
  const verdict = (transcript) =>
    transcript.outcome === "failed" ? "failed" : decided(transcript);
  // The verdict beside the label, as `judged_words` of episode_transcripts.py has it.
  const judged = ({ outcome, decision, decision_value: value, y, right, thing, label }) => {
    const scaled = value === null || [-1, 0, 1].includes(value) ? "" : ` (${value > 0 ? "+" : ""}${minus(value)})`;
    const words = outcome === "failed" ? "failed" : PAST[decision] + scaled;
    if (![0, 1].includes(y)) return `${words}; ${label}`;
    const truth = `the ${thing} is ${label}`;
    if (outcome === "failed") return `${words}; ${truth}`;
    if (right) return `right: ${words}, and ${truth}`;
    return `wrong: ${words}${[0, 1].includes(decision) ? ", but" : ";"} ${truth}`;
  };
  const sign = ({ outcome, right }) => (outcome === "failed" ? "!" : right ? "✓" : "✗");

  for (const transcript of transcripts) {
    transcript.search = [
      transcript.problem, transcript.key, ...transcript.texts.map(({ text }) => text),
      transcript.mutation || "", transcript.difficulty || "", transcript.error || "",
      ...transcript.messages.map((message) => message.text),
    ].join("\n").toLowerCase();
  }

  function addOptions(name) {
    const values = [...new Set(transcripts.map((transcript) => transcript[name]))];
    const order = Object.keys(CHOSEN);
    values.sort((a, b) => (typeof a === "number" ? a - b
      : name === "chosen" ? order.indexOf(a) - order.indexOf(b) : a < b ? -1 : 1));
    for (const value of values) {
      const option = element("option", "", name === "chosen" ? CHOSEN[value] : value);
      option.value = String(value);
      form.elements[name].append(option);
    }
    return values.map(String);
  }

  function matches(transcript) {
    for (const name of ["iteration", "split", "right", "y", "outcome", "chosen"]) {
      const wanted = form.elements[name].value;
      if (wanted !== "" && String(transcript[name]) !== wanted) return false;
    }
    return transcript.search.includes(form.elements.text.value.trim().toLowerCase());
  }

  // One line of a text, whatever is in it.
  function shorten(text, most) {
    const line = [...text.slice(0, 4 * most).replace(/[\s\u0000-\u001f\u007f-\u009f]+/g, " ").trim()];
    return line.length > most ? `${line.slice(0, most - 1).join("").trimEnd()}…` : line.join("");
  }

  function isolated(className, text) {
    return element("span", className, element("bdi", "", text));
  }

  function entry(transcript) {
    const mark = element("span", `mark ${side(transcript.right)}`, sign(transcript));
    mark.title = side(transcript.right);
    const question = transcript.texts.find(({ language }) => language === null) || transcript.texts[0];
    const last = transcript.messages.filter(
      ({ agent, invalid_reason: reason }) => agent.startsWith("prover") && reason === null).pop();
    const button = element(
      "button", "", mark,
      isolated("name", (question && shorten(question.text, 80)) || transcript.problem),
      ...(last ? [isolated("said", shorten(last.text, 120))] : []),
      element("span", "small",
        `iteration ${transcript.iteration}, ${transcript.split}: ` +
        judged(transcript)),
      element("span", "small", transcript.problem),
    );
    button.type = "button";
    button.dataset.key = transcript.key;
    button.addEventListener("click", () => choose(transcript));
    return element("li", "", button);
  }

  function chips(transcript) {
    const box = element("ul", "chips");
    const chip = (text, kind) => box.append(element("li", `chip ${kind || ""}`, text));
    chip(`${sign(transcript)} ${judged(transcript)}`, side(transcript.right));
    if (transcript.outcome !== "failed") chip(transcript.outcome);
    if (transcript.difficulty) chip(transcript.difficulty);
    if (transcript.mutation) chip(`mutation: ${transcript.mutation}`);
    if (["invalid", "changed"].includes(transcript.chosen)) chip(CHOSEN[transcript.chosen]);
    if (transcript.prover_stance !== null) {
      const argued = `argued for ${transcript.prover_stance === 1 ? "accept" : "reject"}`;
      chip(transcript.stance ? `${transcript.stance} prover` : argued);
    }
    for (const agent of Object.keys(transcript.rewards).sort()) {
      chip(`${agent} reward ${minus(Number(transcript.rewards[agent].toFixed(3)))}`);
    }
    return box;
  }

  function siblings(transcript) {
    const same = transcripts.filter(
      (other) => other.problem === transcript.problem && other.split === transcript.split);
    if (same.length < 2) return [];
    const box = element("div", "chips");
    for (const other of same) {
      const button = element("button", `chip ${side(other.right)}`,
        `iteration ${other.iteration}: ${verdict(other)}`);
      button.type = "button";
      if (other === transcript) button.setAttribute("aria-current", "true");
      button.addEventListener("click", () => choose(other, true));
      box.append(button);
    }
    return [element("h4", "", "This problem in the run"), box];
  }

  function message(transcript, item) {
    const role = item.agent.startsWith("prover") ? "prover"
      : item.agent.endsWith("verifier") ? "verifier" : "";
    const meta = element("p", "meta",
      element("strong", "", item.agent),
      element("span", "", `round ${item.round}`));
    if (item.channels.length) meta.append(element("span", "", `to ${item.channels.join(", ")}`));
    meta.append(element("code", "", item.model));
    if (item.decision !== 2) {
      meta.append(element("span", "decided", `decides: ${decided(item)}`));
    }
    if (item.remark) meta.append(element("span", "", item.remark));
    if (item.invalid_reason !== null) {
      meta.append(element("span", "why",
        `invalid answer, attempt ${item.attempt + 1}: ${item.invalid_reason}`));
    }
    const kind = item.invalid_reason !== null ? "invalid" : "";
    const answer = element("div", `message ${role} ${kind}`, meta, element("p", "prose", item.text));
    if (item.told === null) return [answer];
    const told = element("div", "message told",
      element("p", "meta", element("strong", "", `told to ${item.agent}`),
        element("span", "", `${item.attempt > 0 ? "when it was asked again" : "before its turn"} in round ${item.round}`)),
      element("p", "prose", item.told));
    return [told, answer];
  }

  function prompts(transcript) {
    return Object.entries(transcript.system_prompts).map(([agent, prompt]) => element("details", "",
      element("summary", "", `System prompt of ${agent}`),
      element("p", "prose", data.prompts[prompt])));
  }

  function render(transcript) {
    const parts = [
      element("h3", "", `${transcript.problem}, iteration ${transcript.iteration}, ${transcript.split}`),
      chips(transcript),
      ...siblings(transcript),
      ...transcript.texts.flatMap(({ heading, text, language }) => [element("h4", "", heading),
        language === null ? element("p", "prose", text)
          : element("pre", "", element("code", "", text))]),
    ];
    if (transcript.error) {
      parts.push(element("h4", "", "Error"), element("pre", "", transcript.error));
    }
    const asked = prompts(transcript);
    if (asked.length) parts.push(element("h4", "", "What the agents were told"), ...asked);
    parts.push(element("h4", "", "Conversation"));
    if (transcript.messages.length === 0) parts.push(element("p", "quiet", "Nobody spoke."));
    parts.push(...transcript.messages.flatMap((item) => message(transcript, item)));
    reader.replaceChildren(...parts);
  }

  function choose(transcript, focusReader) {
    chosen = transcript;
    for (const button of list.querySelectorAll("button")) {
      if (button.dataset.key === transcript.key) button.setAttribute("aria-current", "true");
      else button.removeAttribute("aria-current");
    }
    render(transcript);
    if (focusReader) reader.focus({ preventScroll: true });
    try {
      history.replaceState(null, "", `#t=${encodeURIComponent(transcript.key)}`);
    } catch { /* some viewers forbid it; the address is only a convenience */ }
  }

  function update() {
    shown = transcripts.filter(matches);
    list.replaceChildren(...shown.map(entry));
    count.textContent = `${shown.length} of ${transcripts.length} transcripts`;
    if (shown.length === 0) {
      chosen = null;
      reader.replaceChildren(element("p", "quiet", "No transcript matches these filters."));
      return;
    }
    chosen = shown.includes(chosen) ? chosen : shown[0];
    render(chosen);
    list.querySelectorAll("button")[shown.indexOf(chosen)].setAttribute("aria-current", "true");
  }

  list.addEventListener("keydown", (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!step) return;
    const buttons = [...list.querySelectorAll("button")];
    const next = buttons[buttons.indexOf(document.activeElement) + step];
    if (!next) return;
    event.preventDefault();
    next.focus();
    next.click();
  });
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("input", update);
  form.addEventListener("reset", () => setTimeout(update));

  if (transcripts.length === 0) return;
  const iterations = addOptions("iteration");
  const splits = addOptions("split");
  addOptions("outcome");
  addOptions("chosen");
  const asked = /^#t=(.+)$/.exec(location.hash);
  const linked = asked && transcripts.find((one) => encodeURIComponent(one.key) === asked[1]);
  if (linked) {
    chosen = linked;
  } else {
    if (splits.includes("test")) form.elements.split.value = "test";
    form.elements.iteration.value = iterations[iterations.length - 1];
  }
  document.getElementById("browser").hidden = false;
  update();
  if (linked) document.getElementById("transcripts").scrollIntoView();
})();
