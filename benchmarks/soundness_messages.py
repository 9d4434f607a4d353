#!/usr/bin/env python3
"""What is said where a verifier of the study of bags accepts a false claim?

    python benchmarks/soundness_messages.py RUNS --out docs/results/soundness/messages.json

RUNS is the run store of a played deployments/sweeps/soundness.yaml. Of every verifier that hears
answers to challenges it reads the last test of its own run (`none`), and the tests of the scripts
and of the worst sneaky prover: how many challenges the prover named, how many the verifier says
that it compared, and how many of these comparisons are with an answer that the prover never gave.
Nothing is played. Beside the JSON it writes a table by game and attack.
"""

import argparse
import json
import re
import sys
from collections import defaultdict
from pathlib import Path
from statistics import mean
from typing import Any

from measured_commit import describe_commit

from nip_core.rollouts.storage.tables import read_rollouts
from nip_core.run_store.run import RunStore
from nip_core.run_store.store import open_store
from nip_games.bags.challenges import read_coins, read_names

GAMES = ("private3", "private1", "public3")
SEEDS = range(41, 46)
ATTACKS = ("none", "best", "coins", "sneaky")
_COMPARISON = re.compile(r"(\d+) is ([AB]), (\d+): ([AB]), (right|wrong)\.")
"""What the verifier writes of one challenge: its coin, the answer to it, and whether they agree."""


def count_episode(prover: str, verifier: str, coins: str, decision: int) -> dict[str, float]:
    """Count what is said in one episode with a false claim."""
    named, tossed = read_names(prover), read_coins(coins)
    compared = _COMPARISON.findall(verifier)
    made_up = [one for one in compared if named.get(int(one[2])) != one[3]]
    return {
        "accepted": decision == 1,
        "no verdict": decision not in (0, 1),
        "named": len(named.keys() & tossed.keys()) / len(tossed),
        "compared": len({int(number) for _, _, number, _, _ in compared} & tossed.keys()),
        "comparisons": len(compared),
        "made up": len(made_up),
        "agreeing": sum(coin == answer for _, coin, _, answer, _ in made_up),
        "answered": len(named.keys() & tossed.keys()) == len(tossed),
    }


def read_episodes(run: RunStore, iteration: int, split: str) -> list[dict[str, float]]:
    """Count what is said in each episode with a false claim of a test."""
    tables = read_rollouts(run.store, run.rollouts(iteration, split))
    texts_by_episode: dict[str, dict[str, str]] = defaultdict(dict)
    order = tables.generations.sort_by([("round", "ascending"), ("attempt", "ascending")])
    for row in order.select(["episode", "agent", "text"]).to_pylist():
        texts_by_episode[row["episode"]][row["agent"]] = row["text"]
    counted = []
    columns = ["key", "y", "decision", "drawn"]
    for row in tables.episodes.select(columns).to_pylist():
        if row["y"] == 0:
            texts, coins = texts_by_episode[row["key"]], json.loads(row["drawn"])["coins"]
            counted.append(
                count_episode(texts.get("prover", ""), texts["verifier"], coins, row["decision"])
            )
    return counted


def sum_up(episodes: list[dict[str, float]]) -> dict[str, float]:
    """Return shares over the episodes of a test, and over those with a false claim accepted."""
    accepted = [episode for episode in episodes if episode["accepted"]]
    comparisons = sum(episode["comparisons"] for episode in episodes)
    made_up = sum(episode["made up"] for episode in episodes)
    return {
        "wrong claims": len(episodes),
        "accepted": len(accepted),
        "no verdict": sum(episode["no verdict"] for episode in episodes),
        "made up": made_up,
        "all challenges answered": mean(episode["answered"] for episode in episodes),
        "challenges named": mean(episode["named"] for episode in episodes),
        "challenges compared": mean(episode["compared"] for episode in episodes),
        "comparisons with an answer never given": made_up / comparisons if comparisons else 0.0,
        "of these agreeing with the coin": (
            sum(episode["agreeing"] for episode in episodes) / made_up if made_up else 0.0
        ),
        "accepted with an answer never given": (
            mean(episode["made up"] > 0 for episode in accepted) if accepted else 0.0
        ),
    }


def find_test(run: RunStore, split: str) -> int:
    """Return the last iteration with a whole test of this split."""
    played = range(run.open().parameters["rl"]["num_iterations"] + 1)
    return max(n for n in played if run.store.exists(f"{run.rollouts(n, split)}/manifest.json"))


def measure(runs: str, game: str, attack: str) -> list[dict[str, float]]:
    """Return the figures of each seed; none where the study has no such attack."""
    store, figures = open_store(Path(runs)), []
    for seed in SEEDS:
        name = f"soundness-{game}-{seed}" + (f"-{attack}" if attack != "none" else "")
        if store.exists(f"{name}/run.json"):
            run = RunStore(store, name)
            split = "test" if attack == "none" else "attack"
            episodes = read_episodes(run, find_test(run, split), split)
            figures.append({"seed": seed, **sum_up(episodes)})
    return figures


def write_table(table: dict[str, dict[str, list[dict[str, float]]]]) -> str:
    """Return the page: means over seeds, in percent."""
    lines = [
        "# What is said where a false claim of the study of bags is accepted",
        "",
        "`python benchmarks/soundness_messages.py RUNS --out docs/results/soundness/messages.json`",
        "reads the tests of the study's runs. Means over seeds: of all false claims, how many are",
        "accepted, and how many end without a verdict; in how many the prover answered every",
        "challenge; how many challenges the verifier says that it compared; which share of its",
        "comparisons is with an answer that the prover never gave; how many of these agree with",
        "its coin (of the seeds that have one); in how many of the accepted ones there is such a",
        "comparison.",
        "",
        "| game | attack | seeds | accepted | no verdict | every challenge answered"
        " | challenges compared | comparisons with an answer never given | of these agreeing"
        " | accepted after one |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for game, by_attack in table.items():
        for attack, seeds in by_attack.items():
            if not seeds:
                continue
            shares = [
                mean(100 * seed["accepted"] / seed["wrong claims"] for seed in seeds),
                mean(100 * seed["no verdict"] / seed["wrong claims"] for seed in seeds),
                mean(100 * seed["all challenges answered"] for seed in seeds),
            ]
            made_up: list[float | None] = [
                mean(100 * seed[f"{what} with an answer never given"] for seed in seeds)
                for what in ("comparisons", "accepted")
            ]
            compared = mean(seed["challenges compared"] for seed in seeds)
            agreeing = [
                seed["of these agreeing with the coin"] for seed in seeds if seed["made up"]
            ]
            made_up.insert(1, 100 * mean(agreeing) if agreeing else None)
            cells = [game, attack, str(len(seeds)), *(f"{share:.0f} %" for share in shares)]
            cells.append(f"{compared:.1f}")
            cells += ["–" if share is None else f"{share:.0f} %" for share in made_up]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    """Read the runs, write figures and page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("runs", metavar="RUNS")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    table = {
        game: {attack: measure(options.runs, game, attack) for attack in ATTACKS} for game in GAMES
    }
    results: dict[str, Any] = {"commit": describe_commit(), "results": table}
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    page = write_table(table)
    options.out.with_suffix(".md").write_text(page, encoding="utf-8")
    print(page)
    return 0


if __name__ == "__main__":
    sys.exit(main())
