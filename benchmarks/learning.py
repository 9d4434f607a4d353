"""Does the verifier learn, and from what? A game over seeds, and its controls.

Runs `nip train` on the game's configuration once per row below, every run from its own fresh name,
and writes one JSON file and one Markdown table. Runs that are finished are not repeated, so an
interrupted measurement goes on where it stopped.

    python benchmarks/learning.py --out docs/results/learning.json
    python benchmarks/learning.py --game arithmetic --out docs/results/arithmetic_learning.json
    python benchmarks/learning.py --game bags --out docs/results/bags_learning.json
    python benchmarks/learning.py --game smollm2 --out docs/results/smollm2.json

The last one needs `nip models add smollm2` before. Beside the JSON file it writes the Markdown page
and, of the quick start's first run, the learning curve.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
Rows = dict[str, tuple[str, list[str]]]

QUICKSTART: Rows = {
    "seed-6198": ("quick start, seed 6198", []),
    "seed-1": ("quick start, seed 1", ["seed=1"]),
    "seed-2": ("quick start, seed 2", ["seed=2"]),
    "seed-3": ("quick start, seed 3", ["seed=3"]),
    "opposed": (
        "opposed rewards: the prover is paid for acceptance",
        ["protocol_common.shared_reward=false"],
    ),
    "solo": (
        "no prover: solo_verifier",
        [
            "interaction_protocol=solo_verifier",
            "protocol_common.shared_reward=false",
            "agents={_default: {model_provider: SelfHosted, model_name: tiny, temperature: 0.5, "
            "max_tokens_per_message: 64, fine_tune_from_scratch: false, lora_rank: 32, "
            "lora_alpha: 64, lora_dropout: 0.0, per_device_train_batch_size: 4}, "
            "verifier: {num_epochs: 8}}",
        ],
    ),
    "shuffled": (
        "control: training labels drawn at random",
        ["dataset_options.shuffle_train_labels=true"],
    ),
}


_SOLO = ["interaction_protocol=solo_verifier", "protocol_common.shared_reward=false"]
_DEBATE = [
    *("interaction_protocol=debate", "protocol_common.shared_reward=false"),
    "rl.num_iterations=3",  # it learns more slowly than nip
]
ARITHMETIC: Rows = {
    "nip-6198": ("nip, seed 6198", []),
    "nip-1": ("nip, seed 1", ["seed=1", "rl.num_iterations=1"]),
    "nip-2": ("nip, seed 2", ["seed=2", "rl.num_iterations=1"]),
    "shuffled": (
        "control: nip with training labels drawn at random",
        ["dataset_options.shuffle_train_labels=true"],
    ),
    "debate-6198": ("debate, seed 6198", _DEBATE),
    "debate-1": ("debate, seed 1", [*_DEBATE, "seed=1"]),
    "debate-2": ("debate, seed 2", [*_DEBATE, "seed=2"]),
    "solo-6198": ("no prover: solo_verifier, seed 6198", _SOLO),
    "solo-1": ("no prover: solo_verifier, seed 1", [*_SOLO, "seed=1"]),
    "solo-2": ("no prover: solo_verifier, seed 2", [*_SOLO, "seed=2"]),
}
_NIP = ["interaction_protocol=nip", "protocol_common.shared_reward=true"]
READING: Rows = {
    "debate-6198": ("debate, seed 6198", []),
    "debate-1": ("debate, seed 1", ["seed=1"]),
    "debate-2": ("debate, seed 2", ["seed=2"]),
    "shuffled": (
        "control: debate with training labels drawn at random",
        ["dataset_options.shuffle_train_labels=true"],
    ),
    "shuffled-1": (
        "the same control, seed 1",
        ["dataset_options.shuffle_train_labels=true", "seed=1"],
    ),
    "shuffled-2": (
        "the same control, seed 2",
        ["dataset_options.shuffle_train_labels=true", "seed=2"],
    ),
    "nip-6198": ("nip, seed 6198", _NIP),
    "nip-1": ("nip, seed 1", [*_NIP, "seed=1"]),
    "nip-2": ("nip, seed 2", [*_NIP, "seed=2"]),
    "nip-shuffled": (
        "control: nip with training labels drawn at random",
        [*_NIP, "dataset_options.shuffle_train_labels=true"],
    ),
    "solo-6198": ("no prover: solo_verifier, seed 6198", _SOLO),
}
_SHUFFLED = "dataset_options.shuffle_train_labels=true"
SMOLLM2: Rows = {
    "adp-6198": ("adp, seed 6198", []),
    "adp-1": ("adp, seed 1", ["seed=1"]),
    "adp-2": ("adp, seed 2", ["seed=2"]),
    "shuffled-6198": ("control: training labels drawn at random, seed 6198", [_SHUFFLED]),
    "shuffled-1": ("the same control, seed 1", [_SHUFFLED, "seed=1"]),
    "shuffled-2": ("the same control, seed 2", [_SHUFFLED, "seed=2"]),
    "alone": (
        "no prover, trained on the true labels of all episodes: solo_verifier, seed 6198",
        [
            *_SOLO,
            "text_rl.verifier_guess_replacement_proportion=1.0",
            "agents={verifier: {model_provider: SelfHosted, model_name: smollm2, "
            "guided_decoding: true, temperature: 1.0, max_tokens_per_message: 32, "
            "fine_tune_from_scratch: false, num_epochs: 3, lora_rank: 16, lora_alpha: 32, "
            "lora_dropout: 0.0, per_device_train_batch_size: 4}}",
        ],
    ),
}
BAGS: Rows = {
    "private-6198": ("three private coins, seed 6198", []),
    "private-1": ("three private coins, seed 1", ["seed=1"]),
    "private-2": ("three private coins, seed 2", ["seed=2"]),
    "one-6198": ("one private coin, seed 6198", ["scenario_settings.challenges=1"]),
    "public-6198": ("three public coins, seed 6198", ["scenario_settings.coins=public"]),
    "claim-6198": ("the claim alone, seed 6198", ["scenario_settings.challenges=0"]),
    "shuffled": ("control: three private coins, training labels drawn at random", [_SHUFFLED]),
}
GAMES: dict[str, tuple[str, Rows]] = {
    "quickstart": ("deployments/configs/quickstart.yaml", QUICKSTART),
    "arithmetic": ("deployments/configs/arithmetic-tiny.yaml", ARITHMETIC),
    "reading": ("deployments/configs/reading-tiny.yaml", READING),
    "smollm2": ("deployments/configs/smollm2.yaml", SMOLLM2),
    "bags": ("deployments/configs/bags-tiny.yaml", BAGS),
}


def run_one(game: str, name: str, store: Path, threads: int | None) -> dict[str, Any]:
    config, rows = GAMES[game]
    what, overrides = rows[name]
    run_name = f"learning-{name}" if game == "quickstart" else f"learning-{game}-{name}"
    environment = {**os.environ, "DO_NOT_TRACK": "1", "HF_HUB_OFFLINE": "1"}
    if threads:
        environment["OMP_NUM_THREADS"] = str(threads)
    arguments = [f"run_name={run_name}", f"run_store={store}", *overrides]
    command = [sys.executable, "-m", "nip_cli.cli", "train", config, "--json"]
    for argument in arguments:
        command += ["--set", argument]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise SystemExit(f"{name}: exit code {done.returncode}\n{done.stderr[-3000:]}")
    summary = json.loads(done.stdout)
    run = store / run_name
    tests = [entry["test"] for entry in summary["iterations"]]
    stages = [json.loads(path.read_text()) for path in run.glob("iterations/*/times.json")]
    return {
        "what": what,
        "overrides": overrides,
        "seconds": round(sum(s for times in stages for k, s in times.items() if k != "sha256"), 1),
        "iterations": summary["iterations"],
        "believe_the_prover": [test.get("believe_the_prover") for test in tests],
    }


def percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.1f}"


def table(results: dict[str, Any]) -> str:
    rows = results["rows"].values()
    iterations = max(len(row["iterations"]) for row in rows)
    after = " | ".join(f"after {n}" for n in range(1, iterations))
    lines = [
        f"| what | untrained | {after} | gain | completeness | soundness |",
        "|---" * (4 + iterations) + "|",
    ]
    for row in rows:
        tests = [entry["test"] for entry in row["iterations"]]
        cells = [
            f"{percent(t['accuracy'])} [{percent(t['accuracy_ci95'][0])}, "
            f"{percent(t['accuracy_ci95'][1])}]"
            for t in tests
        ]
        cells += ["–"] * (iterations - len(tests))
        first, last = tests[0], tests[-1]
        lines.append(
            f"| {row['what']} | {' | '.join(cells)} | "
            f"{100 * (last['accuracy'] - first['accuracy']):+.1f} | "
            f"{percent(first['completeness'])} → {percent(last['completeness'])} | "
            f"{percent(first['soundness'])} → {percent(last['soundness'])} |"
        )
    believing = next((row for row in rows if row["believe_the_prover"][0]), None)
    if believing is not None:
        base = believing["believe_the_prover"]
        for label, b in (("untrained", base[0]), ("trained", base[-1])):
            without = b.get("without_prover")
            left_out = f"; {without} episodes without its word left out" if without else ""
            lines.append(
                f"| baseline: believe the {label} prover ({believing['what']}{left_out}) "
                f"{'| ' * iterations}"
                f"{percent(b['accuracy'])} [{percent(b['accuracy_ci95'][0])}, "
                f"{percent(b['accuracy_ci95'][1])}] | | {percent(b['completeness'])} | "
                f"{percent(b['soundness'])} |"
            )
    return "\n".join(lines)


def say_durations(results: dict[str, Any]) -> str:
    """Say in minutes how long the shortest and the longest run took."""
    minutes = sorted(row["seconds"] / 60 for row in results["rows"].values())
    return f"The stages of a run took {minutes[0]:.1f} to {minutes[-1]:.1f} minutes."


def write_curve(row: dict[str, Any], target: Path) -> None:
    """The learning curve of one run as a picture, with what believing its prover would give."""
    from nip_core.evaluation.split_metrics import SplitMetrics
    from nip_core.report.plots import learning_curve_svg

    tests = [
        (entry["iteration"], {**entry["test"], "believe_the_prover": believed})
        for entry, believed in zip(row["iterations"], row["believe_the_prover"], strict=True)
    ]
    points = [(iteration, SplitMetrics.model_validate(test)) for iteration, test in tests]
    target.write_text(learning_curve_svg(points) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--store", type=Path, default=ROOT / "runs")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    parser.add_argument("--game", choices=GAMES, default="quickstart")
    parser.add_argument("--only", nargs="*", metavar="ROW", help="instead of all rows")
    arguments = parser.parse_args()
    config, known = GAMES[arguments.game]
    asked = arguments.only or list(known)
    if unknown := set(asked) - known.keys():
        parser.error(f"--only: no rows {sorted(unknown)}; there are {[*known]}")
    threads = max((os.cpu_count() or 1) // arguments.jobs, 1) if arguments.jobs > 1 else None
    store = arguments.store.resolve()
    with ThreadPoolExecutor(arguments.jobs) as pool:
        futures = {
            name: pool.submit(run_one, arguments.game, name, store, threads) for name in asked
        }
        rows = {name: future.result() for name, future in futures.items()}
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    ).stdout.strip()
    results = {
        "commit": commit,
        "command": "python benchmarks/learning.py"
        + (f" --game {arguments.game}" if arguments.game != "quickstart" else "")
        + f" --out {arguments.out}"
        + (f" --only {' '.join(arguments.only)}" if arguments.only else "")
        + (f" --jobs {arguments.jobs}" if arguments.jobs > 1 else ""),
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, Python "
        f"{platform.python_version()}",
        "rows": rows,
    }
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(results, indent=1) + "\n")
    page = (
        f"# Does the verifier learn, and from what? {Path(config).stem}\n\n"
        f"`{results['command']}` at {commit} on {results['machine']}. Accuracy in percent on the "
        f"{rows[asked[0]]['iterations'][0]['test']['distinct_problems']} test problems, "
        "each played once, with 95 % intervals (Wilson).\n\n"
        f"{table(results)}\n\n{say_durations(results)}\n"
    )
    if "seed-6198" in rows:
        write_curve(rows["seed-6198"], arguments.out.parent / "learning-curve.svg")
    arguments.out.with_suffix(".md").write_text(page)
    print(page)


if __name__ == "__main__":
    main()
