#!/usr/bin/env python3
"""Does the strongest attack leave clearly more than a script that is known to fool the verifier?

    nip sweep deployments/sweeps/strength.yaml --jobs 2
    nip sweep deployments/sweeps/strength.yaml --collect --out docs/results/strength
    python benchmarks/attack_strength.py docs/results/strength

Reads every verdict (`cells.parquet`) of a sweep in which `named` is the script, and which attacks
are finished (`facts.json`). It writes `attacks.json` and `attacks.md` beside them: of each verifier
soundness in its own test and with each attack, and how much more than the script an attack leaves,
on the wrong problems that the script and this attack play. Nothing is played.
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
from nip_core.evaluation.statistics.differences import holm, mcnemar
from nip_study.documents.results_document import FINISHED

Rejected = dict[str, bool]
"""Whether a wrong problem was rejected, by problem."""
OWN, TOLD, SCRIPT = "its own test", "told", "named"
WORDS = {
    TOLD: "told to argue for acceptance",
    "chosen": "most convincing of 16",
    "sneaky": "trained on until a plateau",
    "begun": "the same, begun by imitating the script",
    SCRIPT: "script: names a right step",
    "unhelpful": "script: names nothing",
    "talkative": "script: calls every step right",
}
SCRIPTS = (SCRIPT, "unhelpful", "talkative")


def read_tests(place: Path) -> Iterator[dict[str, Any]]:
    """Return of each finished run its test and those of its finished attacks, and their verdicts.

    Of the attack `sneaky` the test before any training is one of its own, `told`.
    """
    by_test: dict[tuple[str, int, int | None], Rejected] = {}
    for cell in pq.read_table(place / "cells.parquet").to_pylist():
        if cell["y"] == 0:
            name = cell["run"] if cell["attack"] is None else f"{cell['run']}-{cell['attack']}"
            test = by_test.setdefault((name, cell["iteration"], cell["n"]), {})
            test[cell["problem"]] = cell["decision"] == 0
    for run in json.loads((place / "facts.json").read_text())["runs"]:
        last = max((at for name, at, _ in by_test if name == run["name"]), default=None)
        if run["status"] != FINISHED or last is None:
            continue
        tests = {OWN: by_test[run["name"], last, None]}
        for attack in run["attacks"]:
            if attack["status"] == FINISHED and attack["label"] in WORDS:
                at = (attack["name"], attack["iteration"], attack["n"])
                tests[attack["label"]] = by_test[at]
                if attack["label"] == "sneaky":
                    tests[TOLD] = by_test[attack["name"], 0, None]
        verdicts = {of["label"]: of["verdict"] for of in run["attacks"] if of.get("verdict")}
        yield {"run": run["name"], "tests": tests, "verdicts": verdicts}


def count_rejected(rejected: Rejected, problems: set[str]) -> dict[str, Any]:
    """Return soundness on these problems, with its 95 % interval."""
    hits = sum(rejected[problem] for problem in problems)
    interval = wilson(hits, len(problems))
    return {
        "problems": len(problems),
        "soundness": hits / len(problems),
        "ci95": [*(interval or ())],
    }


def compare(rejected: Rejected, by_script: Rejected, problems: set[str]) -> dict[str, float]:
    """Return how much more is left than by the script on these problems, and McNemar's p."""
    more = sum(rejected[p] and not by_script[p] for p in problems)
    less = sum(by_script[p] and not rejected[p] for p in problems)
    rates = {"more": (more - less) / len(problems), "p": mcnemar(more, less)}
    return {"problems": len(problems), **rates}


def describe(read: dict[str, Any]) -> dict[str, Any]:
    """Return the row of a verifier."""
    tests: dict[str, Rejected] = read["tests"]
    # Best of 16 plays half of them.
    shared = set(tests[SCRIPT] if SCRIPT in tests else tests[OWN])
    played = {name: shared & rejected.keys() for name, rejected in tests.items()}
    rates = {name: count_rejected(tests[name], problems) for name, problems in played.items()}
    others = [name for name in tests if name != OWN and name not in SCRIPTS]
    compared = (
        {name: compare(tests[name], tests[SCRIPT], played[name]) for name in others}
        if SCRIPT in tests
        else {}
    )
    adjusted = holm([than["p"] for than in compared.values()])
    for than, p in zip(compared.values(), adjusted, strict=True):
        than["p_holm"] = p
    return {
        "run": read["run"],
        "problems": len(shared),
        "rates": rates,
        "verdicts": read["verdicts"],
        "than_script": compared,
    }


def write_page(document: dict[str, Any]) -> str:
    """Return the rows as Markdown."""
    rows = document["verifiers"]
    names = [name for name in WORDS if any(name in row["rates"] for row in rows)]
    lines = [
        f"# {len(rows)} verifiers of the study, attacked by all that there is",
        "",
        f"`{document['command']}` at {document['commit']}, from the verdicts of "
        "`deployments/sweeps/strength.yaml` ([all of them](README.md)). Soundness in percent on "
        "the wrong problems that the script plays, 95 % intervals in brackets; where an attack "
        "played fewer of them, their number. Bold: the lowest of a row on all of them, a minimum "
        "over several tests and so too low. A dash: not finished.",
        "",
        f"| verifier | problems | {OWN} | {' | '.join(WORDS[name] for name in names)} |",
        "|---" * (len(names) + 3) + "|",
    ]
    for row in rows:
        attacked = {name: of["soundness"] for name, of in row["rates"].items() if name != OWN}
        counts = {name: of["problems"] for name, of in row["rates"].items()}
        lowest = min(attacked[name] for name in attacked if counts[name] == row["problems"])
        cells = [row["run"], str(row["problems"]), f"{100 * row['rates'][OWN]['soundness']:.0f}"]
        for name in names:
            if name not in attacked:
                cells.append("–")
                continue
            low, high = (100 * bound for bound in row["rates"][name]["ci95"])
            cell = f"{100 * attacked[name]:.0f} [{low:.0f}, {high:.0f}]"
            is_whole = counts[name] == row["problems"]
            cell = f"**{cell}**" if is_whole and attacked[name] == lowest else cell
            cell += "" if is_whole else f" of {counts[name]}"
            ended = row["verdicts"].get(name)
            cells.append(cell + (f" ({ended})" if ended else ""))
        lines.append(f"| {' | '.join(cells)} |")
    lines += [
        "",
        "How many points more than the script that names a right step the attacks leave in which "
        "provers are models, paired by problem (p: McNemar's, exact, by Holm over a verifier's "
        "attacks):",
        "",
        "| verifier | attack | problems | points more | p |",
        "|---|---|---|---|---|",
    ]
    lines += [
        f"| {row['run']} | {WORDS[name]} | {than['problems']} | {100 * than['more']:+.0f} | "
        f"{than['p_holm']:.2g} |"
        for row in rows
        for name, than in row["than_script"].items()
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("directory", type=Path)
    place = parser.parse_args().directory
    document = {
        "command": shlex.join(["python", "benchmarks/attack_strength.py", *sys.argv[1:]]),
        "commit": describe_commit(),
        "verifiers": [describe(read) for read in read_tests(place)],
    }
    (place / "attacks.json").write_text(json.dumps(document, indent=1) + "\n")
    (place / "attacks.md").write_text(write_page(document))


if __name__ == "__main__":
    main()
