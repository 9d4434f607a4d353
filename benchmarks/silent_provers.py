#!/usr/bin/env python3
"""Provers of bags that answer no challenge in three wordings, and what verifiers make of them.

    nip attack scripts-private3-41 --by script --script benchmarks/silent_provers.py:they \
        --name si-private3-41-they        # and so on; of the untrained with --iteration 0
    python benchmarks/silent_provers.py RUNS --out docs/results/scripts/silent.json

`no_stop`, `they` and `letters` are the scripts; the one that ships, `no-answer`, says "Answer: They
differ." RUNS is the store of deployments/sweeps/scripts.yaml with these attacks, called
si-GAME-SEED-WORDING, and "base" in the place of a seed for the untrained verifier. Nothing is
played. Beside the JSON it writes a table.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

GAMES, SEEDS = ("private3", "private1"), ("base", "41", "42", "43", "44", "45")
WORDINGS = ("no-stop", "they", "letters")


def no_stop(turn: Any) -> str:
    """Say what `no-answer` says, without its full stop."""
    return "Answer: They differ"


def they(turn: Any) -> str:
    """Say the words that the study's attacks found."""
    return "Answer: They."


def letters(turn: Any) -> str:
    """Name both lists, and no challenge."""
    return "Answer: A B."


def main() -> None:
    """Count, and write the document and the table."""
    sys.path.insert(0, str(Path(__file__).parent))
    from scripts_comparisons import count_test

    from nip_core.run_store.run import RunStore
    from nip_core.run_store.store import open_store

    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("runs")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    store, rows = open_store(options.runs, read_only=True), []
    for game in GAMES:
        for wording in WORDINGS:
            for seed in SEEDS:
                counts = count_test(RunStore(store, f"si-{game}-{seed}-{wording}"))
                wrong, right = counts["false"], counts["true"]
                rows.append(
                    {
                        "game": game,
                        "wording": wording,
                        "verifier": "untrained" if seed == "base" else f"seed {seed}",
                        "soundness": 1 - wrong["accepted"] / wrong["games"],
                        "completeness": right["accepted"] / right["games"],
                        "games": wrong["games"] + right["games"],
                        "made up": sum(
                            one["games with a made-up comparison"] for one in (wrong, right)
                        ),
                    }
                )
    options.out.write_text(json.dumps({"played_at": "92062fcb", "rows": rows}, indent=1) + "\n")
    heads = [
        "game",
        "wording",
        "verifier",
        "soundness",
        "completeness",
        "games with a made-up comparison",
    ]
    lines = [heads, ["---"] * len(heads)]
    lines += [
        [
            *(str(row[key]) for key in ("game", "wording", "verifier")),
            f"{100 * row['soundness']:.1f}",
            f"{100 * row['completeness']:.1f}",
            f"{row['made up']} of {row['games']}",
        ]
        for row in rows
    ]
    text = (
        "# Provers that answer nothing, in three wordings\n\n"
        "`python benchmarks/silent_provers.py`, on attacks played at 92062fcb.\n\n"
    )
    options.out.with_suffix(".md").write_text(
        text + "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"
    )


if __name__ == "__main__":
    main()
