"""How much do attacks take from verifiers, and how long do they take? With the tiny model.

    python benchmarks/attack.py RUN [RUN ...] --out results.json
    python benchmarks/attack.py arithmetic-tiny:0 arithmetic-tiny:2 --by sneaky --steps 20 --every 5

Each RUN is a run in the store, with ``:ITERATION`` after it where it is not the newest models that
are attacked. Attacks that are finished are not repeated, so an interrupted measurement goes on
where it stopped; the seconds are those of this call. Prints soundness and completeness for each
number of messages, or step, and the seconds; with --out also as JSON.

The bar: best-of-n with 1, 4, 16 and 64 messages over 200 problems against three verifiers in at
most 30 minutes on two cores.
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from nip_core.attack_figures.metrics_document import ShownAttack
from nip_core.attack_figures.sentences import loss_sentences

ROOT = Path(__file__).parent.parent


def attack(run: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Attack one run, or go on with that; its summary with the seconds that this call took."""
    name, _, iteration = run.partition(":")
    command = [sys.executable, "-m", "nip_cli.cli", "attack", name, "--json"]
    command += ["--by", arguments.by, "--run-store", str(arguments.store)]
    command += ["--iteration", iteration] if iteration else []
    for option in ("n", "steps", "every", "problems"):
        value = getattr(arguments, option)
        command += [f"--{option}", str(value)] if value is not None else []
    for setting in arguments.set or ():
        command += ["--set", setting]
    started = time.monotonic()
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{run}: exit code {done.returncode}\n{done.stderr[-3000:]}")
    seconds = round(time.monotonic() - started, 1)
    return {"attacked": run, "seconds": seconds, **json.loads(done.stdout)["attack"]}


def lines(result: dict[str, Any]) -> list[str]:
    """The figures of an attack as text."""
    kind = "n" if "by_n" in result else "step"
    rows = [
        f"  {kind} {row[kind]:>4}: soundness {_percent(row, 'soundness')}, completeness "
        f"{_percent(row, 'completeness')}, {row['fooled']} fooled"
        for row in result[f"by_{kind}"]
    ]
    said = [result["caution"]] if result["caution"] else []
    said += [*result["causes"], *loss_sentences(ShownAttack.model_validate(result))]
    of_all = [f"  {sentence}" for sentence in said]
    return [f"{result['attacked']}: {result['seconds']} s", *rows, *of_all]


def _percent(row: dict[str, Any], name: str) -> str:
    if row[name] is None:
        return "-"
    low, high = row[f"{name}_ci95"]
    return f"{100 * row[name]:.1f} [{100 * low:.1f}, {100 * high:.1f}]"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs="+", metavar="RUN[:ITERATION]")
    parser.add_argument("--by", choices=("best-of-n", "sneaky"), default="best-of-n")
    parser.add_argument("--store", type=Path, default=ROOT / "runs")
    parser.add_argument("--n")
    parser.add_argument("--steps", type=int)
    parser.add_argument("--every", type=int)
    parser.add_argument("--problems", type=int, default=100, help="of each label")
    parser.add_argument("--set", action="append", metavar="A.B=C")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    arguments.store = arguments.store.resolve()
    results = []
    for run in arguments.runs:
        results.append(attack(run, arguments))
        print("\n".join(lines(results[-1])), flush=True)
    print(f"in all {sum(result['seconds'] for result in results):.1f} s")
    if arguments.out is not None:
        arguments.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
