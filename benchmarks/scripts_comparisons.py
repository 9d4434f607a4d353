#!/usr/bin/env python3
"""What do verifiers of bags compare when a script answers them, before and after training?

    python benchmarks/scripts_comparisons.py RUNS --out docs/results/scripts/comparisons.json

RUNS is the run store of a played deployments/sweeps/scripts.yaml. Of every script, against the
trained verifiers and against the models that they began with, it counts in the messages of
verifiers: the comparisons of a coin with an answer; which of these answers the prover gave, gave
otherwise (a wrong copy), or never gave (made up); and how many of the latter two agree with the
coin. Beside the verdicts it counts those of a rule: what was not answered is rejected. Nothing is
played. Beside the JSON it writes a table.
"""

import argparse
import json
import re
import sys
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

from measured_commit import describe_commit

from nip_core.rollouts.storage.tables import read_rollouts
from nip_core.run_store.run import RunStore
from nip_core.run_store.store import Store, open_store
from nip_games.bags.challenges import read_coins, read_names

GAMES = ("private3", "private1", "public3")
SEEDS = range(41, 46)
SCRIPTS = ("tell-apart", "guess", "always-a", "no-answer", "coins")
_COMPARISON = re.compile(r"(\d+) is ([AB]), (\d+): ([AB]), (right|wrong)\.")
"""What the verifier writes of one challenge: its coin, the answer to it, and whether they agree."""


def count_episode(prover: str, verifier: str, coins: str, decision: int) -> Counter[str]:
    """Count what is said in one episode."""
    named, tossed = read_names(prover), read_coins(coins)
    compared = _COMPARISON.findall(verifier)
    is_answered = named.keys() >= tossed.keys()
    counts: Counter[str] = Counter(games=1, comparisons=len(compared))
    counts["games with a comparison"] = bool(compared)
    counts["accepted"] = decision == 1
    counts["accepted and answered"] = decision == 1 and is_answered
    for _, coin, number, answer, _ in compared:
        given = named.get(int(number))
        if given == answer:
            continue
        kind = "made up" if given is None else "wrong copies"
        counts[kind] += 1
        counts[f"{kind} that agree with the coin"] += answer == coin
    counts["games with a made-up comparison"] = counts["made up"] > 0
    return counts


def count_test(run: RunStore) -> dict[str, Counter[str]]:
    """Count what is said in an attack, by whether the claim is true."""
    tables = read_rollouts(run.store, run.rollouts(0, "attack"))
    texts: dict[str, dict[str, str]] = defaultdict(dict)
    order = tables.generations.sort_by([("round", "ascending"), ("attempt", "ascending")])
    for row in order.select(["episode", "agent", "text"]).to_pylist():
        texts[row["episode"]][row["agent"]] = row["text"]
    counts = {"false": Counter[str](), "true": Counter[str]()}
    for row in tables.episodes.select(["key", "y", "decision", "drawn"]).to_pylist():
        said, coins = texts[row["key"]], json.loads(row["drawn"])["coins"]
        counted = count_episode(
            said.get("prover", ""), said.get("verifier", ""), coins, row["decision"]
        )
        counts["true" if row["y"] else "false"].update(counted)
    return counts


def measure(store: Store, game: str, label: str) -> list[dict[str, Any]]:
    """Return the counts of each seed that was attacked like that."""
    attacks = []
    for seed in SEEDS:
        name = f"scripts-{game}-{seed}-{label}"
        if store.exists(f"{name}/run.json"):
            counts = count_test(RunStore(store, name))
            attacks.append({"seed": seed, **{claim: dict(of) for claim, of in counts.items()}})
    return attacks


def write_table(table: dict[str, dict[str, list[dict[str, Any]]]]) -> str:
    """Return the page: sums over seeds."""
    lines = [
        "# What verifiers of bags compare when a script answers them",
        "",
        "`python benchmarks/scripts_comparisons.py RUNS --out FILE.json` reads the runs of",
        "`deployments/sweeps/scripts.yaml`. Sums over seeds, on false claims: games, and in how",
        "many the verifier writes a comparison of a coin with an answer; its comparisons; of these",
        "those whose answer the prover never gave (made up), or gave otherwise (wrong copies), and",
        "how many of them agree with the coin, which favours acceptance; games with a made-up one;",
        "false claims accepted, and how many would be by a rule that rejects what was not",
        "answered, each challenge in the asked form.",
        "",
        "| game | script | verifier | games | with a comparison | comparisons | made up"
        " | of these agreeing | games with a made-up one | wrong copies | of these agreeing"
        " | accepted | accepted by the rule |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    names = (
        *("games", "games with a comparison", "comparisons", "made up"),
        *("made up that agree with the coin", "games with a made-up comparison", "wrong copies"),
        *("wrong copies that agree with the coin", "accepted", "accepted and answered"),
    )
    for game, by_attack in table.items():
        for label, seeds in by_attack.items():
            if not seeds:
                continue
            total = sum((Counter(seed["false"]) for seed in seeds), Counter[str]())
            whose = "untrained" if label.startswith("base-") else f"trained, {len(seeds)} seeds"
            cells = [game, label.removeprefix("base-"), whose]
            lines.append(f"| {' | '.join([*cells, *(f'{total[name]:,}' for name in names)])} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    """Read the runs, write counts and page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("runs", metavar="RUNS")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    store = open_store(Path(options.runs), read_only=True)
    labels = [label for script in SCRIPTS for label in (script, f"base-{script}")]
    table = {game: {label: measure(store, game, label) for label in labels} for game in GAMES}
    results: dict[str, Any] = {"commit": describe_commit(), "results": table}
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    page = write_table(table)
    options.out.with_suffix(".md").write_text(page, encoding="utf-8")
    print(page)
    return 0


if __name__ == "__main__":
    sys.exit(main())
