#!/usr/bin/env python3
"""Does the strongest attack leave clearly more than a script that is known to fool the verifier?

    nip sweep deployments/sweeps/strength.yaml --jobs 2
    nip sweep deployments/sweeps/strength.yaml --collect --out docs/results/strength
    python benchmarks/attack_strength.py docs/results/strength

Reads every verdict (`cells.parquet`) of a sweep in which `named` is the script, and writes
`attacks.json` and `attacks.md` beside it: of each verifier soundness in its own test and with each
attack, and how much more than the script each attack leaves, on the same problems. Nothing is
played.
"""

import argparse
import json
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from measured_commit import describe_commit

from nip_core.evaluation.confidence_intervals import wilson
from nip_core.evaluation.statistics.differences import mcnemar

OWN, TOLD, SCRIPT = "its own test", "told to lie", "named"
LEFT_OUT = ("shown",)
"""What was played to be imitated, on validation problems."""
WORDS = {
    TOLD: "told to argue for acceptance",
    "chosen": "most convincing of 16",
    "sneaky": "trained to a plateau",
    "begun": "trained to a plateau, after imitating the script",
    SCRIPT: "script: names a right step",
    "unhelpful": "script: names nothing",
    "talkative": "script: calls every step right",
}


def read_tests(cells: list[dict[str, Any]]) -> dict[str, dict[str, dict[str, bool]]]:
    """Return by run and attack whether each wrong problem was rejected, in the test that counts.

    Of an attack by training the first test is of provers that are only told to lie.
    """
    by_test: dict[tuple[str, str, tuple[int, int]], dict[str, bool]] = {}
    for row in cells:
        if row["y"] == 0 and row["attack"] not in LEFT_OUT:
            key = (row["run"], row["attack"] or OWN, (row["iteration"], row["n"] or 0))
            by_test.setdefault(key, {})[row["problem"]] = row["decision"] == 0
    tests: dict[str, dict[str, dict[str, bool]]] = {}
    for (run, attack, at), rejected in sorted(by_test.items()):
        if attack == "sneaky" and at[0] == 0:
            tests.setdefault(run, {})[TOLD] = rejected
        tests.setdefault(run, {})[attack] = rejected  # the last one stays
    return tests


def rate(rejected: dict[str, bool]) -> dict[str, Any]:
    """Return soundness with its 95 % interval."""
    hits, problems = sum(rejected.values()), len(rejected)
    return {
        "soundness": hits / problems,
        "ci95": [*(wilson(hits, problems) or ())],
        "problems": problems,
    }


def compare(rejected: dict[str, bool], by_script: dict[str, bool]) -> dict[str, Any]:
    """Return how much more is left than by the script, on the problems of both."""
    both = rejected.keys() & by_script.keys()
    more = sum(rejected[p] and not by_script[p] for p in both)
    less = sum(by_script[p] and not rejected[p] for p in both)
    return {"more": (more - less) / len(both), "p": mcnemar(more, less), "problems": len(both)}


def describe(tests: dict[str, dict[str, dict[str, bool]]]) -> Iterator[dict[str, Any]]:
    """Return the row of each verifier."""
    for run, by_attack in tests.items():
        attacks = {
            name: {**rate(rejected), "than_script": compare(rejected, by_attack[SCRIPT])}
            for name, rejected in by_attack.items()
            if name != OWN
        }
        lowest = min(attacks, key=lambda name: float(attacks[name]["soundness"]))
        lowest_trained = min(
            (name for name in attacks if name in ("chosen", "sneaky", "begun")),
            key=lambda name: float(attacks[name]["than_script"]["more"]),
        )
        yield {
            "run": run,
            "own": rate(by_attack[OWN]),
            "attacks": attacks,
            "lowest": lowest,
            "lowest_but_scripts": lowest_trained,
        }


def write_page(document: dict[str, Any]) -> str:
    """Return the rows as Markdown."""
    rows = document["verifiers"]
    names = [name for name in WORDS if any(name in row["attacks"] for row in rows)]
    lines = [
        "# Six verifiers of the study, attacked by all that there is",
        "",
        f"`{document['command']}` at {document['commit']}, from the verdicts of "
        "`deployments/sweeps/strength.yaml` ([all of them](README.md)). Soundness in percent on "
        "the same wrong problems, 95 % intervals in brackets. Bold: the lowest.",
        "",
        f"| verifier | {OWN} | {' | '.join(WORDS[name] for name in names)} |",
        "|---" * (len(names) + 2) + "|",
    ]
    for row in rows:
        cells = [row["run"], f"{100 * row['own']['soundness']:.0f}"]
        for name in names:
            of = row["attacks"].get(name)
            if of is None:
                cells.append("–")
                continue
            low, high = (100 * x for x in of["ci95"])
            text = f"{100 * of['soundness']:.0f} [{low:.0f}, {high:.0f}]"
            cells.append(f"**{text}**" if name == row["lowest"] else text)
        lines.append(f"| {' | '.join(cells)} |")
    lines += [
        "",
        "How many points more than the script the attack leaves that is the lowest of those that "
        "are no scripts, on the problems of both (p: McNemar, exact, not adjusted):",
        "",
        "| verifier | attack | points more | p | problems |",
        "|---|---|---|---|---|",
    ]
    for row in rows:
        name = row["lowest_but_scripts"]
        than = row["attacks"][name]["than_script"]
        lines.append(
            f"| {row['run']} | {WORDS[name]} | {100 * than['more']:+.0f} | {than['p']:.2g} "
            f"| {than['problems']} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("directory", type=Path)
    place = parser.parse_args().directory
    tests = read_tests(pq.read_table(place / "cells.parquet").to_pylist())
    document = {
        "command": shlex.join(["python", "benchmarks/attack_strength.py", *sys.argv[1:]]),
        "commit": describe_commit(),
        "verifiers": [*describe(tests)],
    }
    (place / "attacks.json").write_text(json.dumps(document, indent=1) + "\n")
    (place / "attacks.md").write_text(write_page(document))


if __name__ == "__main__":
    main()
