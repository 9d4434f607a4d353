"""Does a sweep that is killed again and again make the data of one that is not?

    python benchmarks/sweep_kills.py --out docs/results/sweep_kills.json

Runs a sweep whole, and once more in another store, where it is killed with SIGKILL so many times:
at random moments, in turn the sweep alone and with all processes of its runs. Compares every
canonical digest of every manifest, and says how long the whole one took. Ends with status 1 if any
differs.
"""

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

from killed_commands import list_differing, list_digests, run_killed, run_whole
from measured_commit import ROOT, describe_commit, describe_machine

from nip_study.plan.swept_runs import read_sweep

SWEEP = ROOT / "deployments" / "sweeps" / "deterministic.yaml"


def measure(file: Path, place: Path, jobs: int, kills: int) -> dict[str, Any]:
    """Run both sweeps, and compare them."""
    runs = [run.name for run in read_sweep(file).runs]

    def command(store: str) -> list[str]:
        return ["sweep", str(file), "--jobs", str(jobs), "--set", f"run_store={place / store}"]

    whole_s = run_whole(command("whole"), place / "whole.log")
    hit = run_killed(command("killed"), place / "killed.log", kills, whole_s)
    whole, again = (list_digests(place / name, runs) for name in ("whole", "killed"))
    return {
        "sweep": str(file.relative_to(ROOT) if file.is_relative_to(ROOT) else file.name),
        "runs": len(runs),
        "jobs": jobs,
        "whole_s": round(whole_s, 1),
        "kills": len(hit),
        "digests": len(whole),
        "differing": list_differing(whole, again),
        "commit": describe_commit(),
        "machine": describe_machine(),
    }


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="A sweep, killed and not.")
    parser.add_argument("--sweep", type=Path, default=SWEEP)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        results = measure(options.sweep.resolve(), Path(place), options.jobs, options.kills)
    text = json.dumps(results, indent=2) + "\n"
    if options.out:
        options.out.write_text(text)
    print(text)
    if results["differing"] or not results["digests"] or results["kills"] < options.kills:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
