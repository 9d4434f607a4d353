"""Does an ART program teach the tiny model? docs/examples/art_program.py, over seeds.

    python benchmarks/art_learning.py --out docs/results/art_learning.json

Needs the environment of scripts/build_art.sh, whose Python `--art` names. Each seed has a server of
its own with the embedded engine. Writes a JSON file and, beside it, a Markdown page with the mean
reward on 200 held-out reports before and after each step, and 95 % intervals (Wilson). Exit status
1 if a seed ends below the bar, or with an interval that meets the one it began with.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
PROGRAM = ROOT / "docs" / "examples" / "art_program.py"
BAR = 0.9


def measure(python: str, seed: int) -> dict[str, Any]:
    """The program with one seed on a server of its own. Raises CalledProcessError."""
    from nip_core.evaluation.confidence_intervals import wilson
    from nip_core.models import resolve_model
    from nip_lm_server import launch as owner
    from nip_lm_server.spec import ServerSpec

    with tempfile.TemporaryDirectory() as directory:
        spec = ServerSpec("embedded", resolve_model("tiny"), served_model_name="tiny")
        server = owner.start_or_attach(spec, Path(directory) / "server", timeout_s=180)
        try:
            done = subprocess.run(
                [
                    *(python, str(PROGRAM), "--server", server.url, "--seed", str(seed)),
                    *("--state", f"{directory}/state"),
                ],
                env={
                    **os.environ,
                    "NIP_API_KEY": server.api_key,
                    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
                    "TQDM_DISABLE": "1",
                },
                stdout=subprocess.PIPE,
                text=True,
                check=True,
            )
        finally:
            owner.stop(server)
    told = json.loads(done.stdout.splitlines()[-1])
    count = told["of"]
    rates = [
        {"step": int(step), "rate": reward, "ci95": wilson(round(reward * count), count)}
        for step, reward in told["mean_reward"].items()
    ]
    met = rates[-1]["rate"] >= BAR and rates[-1]["ci95"][0] > rates[0]["ci95"][1]
    return {"seed": seed, "of": count, "rates": rates, "met": met}


def line(row: dict[str, Any]) -> str:
    """One seed as a line of the table."""
    cells = [
        f"{100 * one['rate']:.1f} [{100 * one['ci95'][0]:.1f}, {100 * one['ci95'][1]:.1f}]"
        for one in row["rates"]
    ]
    met = "yes" if row["met"] else "no"
    return f"| {row['seed']} | {cells[0]} | {', '.join(cells[1:])} | {100 * BAR:.0f} | {met} |"


def main() -> int:
    """Measure every seed; 1 if one does not learn."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--art", default=str(ROOT / ".art-env" / "bin" / "python"))
    options = parser.parse_args()
    rows = []
    for seed in options.seeds:
        rows.append(measure(options.art, seed))
        print(line(rows[-1]), flush=True)
    git = ["git", "describe", "--always", "--dirty"]
    commit = subprocess.run(git, cwd=ROOT, capture_output=True, text=True, check=False)
    results = {
        "commit": commit.stdout.strip(),
        "command": "python benchmarks/art_learning.py --out docs/results/art_learning.json "
        f"--seeds {' '.join(map(str, options.seeds))}",
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, Python "
        f"{platform.python_version()}",
        "rows": rows,
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(results, indent=1) + "\n")
    page = (
        "# Does an ART program teach?\n\n"
        f"`{results['command']}` at {results['commit']} on {results['machine']}. Mean reward in "
        "percent on held-out reports, with 95 % intervals (Wilson), before and after each step of "
        "`docs/examples/art_program.py`.\n\n"
        "| seed | untrained | after the steps | bar | met |\n|---|---|---|---|---|\n"
    )
    options.out.with_suffix(".md").write_text(page + "\n".join(map(line, rows)) + "\n")
    return 0 if all(row["met"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
