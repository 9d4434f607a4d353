"""Does a hardening that is killed again and again make the data of one that is not?

    python benchmarks/hardening_kills.py [--store runs] [--kills 5] [--amid TEXT] [--out FILE]
        RUN [-- --rounds 2 --attack sneaky --steps 30 --attack script:right-step ...]

Copies the run twice and hardens both with `nip harden`, one whole and one that is killed with
SIGKILL so many times: at random moments, in turn the command alone and with all its processes.
With --amid a kill comes soon after a run was started whose name has TEXT in it.
Compares every canonical digest of every manifest of every run that they made, what was said and
decided in each rollout, and the figures of each round. Digests hold log-probabilities, too, whose
last bits follow from which requests an engine computes together: where it computes several at
once in float32, as by default, they may differ where nothing that was said does.

What comes after `--` goes to `nip harden`. A whole one that is there, of the same run, way and
commit, is not hardened again. Ends with status 1 if anything differs.
"""

import argparse
import hashlib
import json
import shlex
import shutil
import sys
from pathlib import Path
from typing import Any

from killed_commands import list_differing, list_digests, run_killed, run_whole
from measured_commit import ROOT, describe_commit, describe_machine

from nip_core.rollouts.storage.tables import read_rollouts
from nip_core.run_store.run import RunStore
from nip_core.run_store.store import open_store

WAY = ("--rounds", "2", "--attack", "sneaky", "--steps", "30", "--attack-set", "rl.lr=0.001")


def prepare(run: str, source: Path, store: Path, way: list[str]) -> tuple[list[str], Path]:
    """Copy the run into an empty store of its own; the command that hardens it, and its log."""
    shutil.rmtree(store, ignore_errors=True)
    shutil.copytree(source / run, store / run)
    command = ["harden", run, "--run-store", str(store), "--name", "hardened", *way]
    return command, store.parent / f"{store.name}.log"


def list_said(store: Path) -> dict[str, str]:
    """Return of all rollouts, by their place, a digest of what was said and decided."""
    digests = {}
    for place in sorted(store.glob("hardened-*/iterations/*/rollouts/*/manifest.json")):
        run = RunStore(open_store(str(store)), place.relative_to(store).parts[0])
        tables = read_rollouts(run.store, str(place.parent.relative_to(store)))
        rows = [
            tables.generations.select(["key", "text"]).sort_by("key").to_pylist(),
            tables.episodes.select(["key", "decision", "outcome"]).sort_by("key").to_pylist(),
        ]
        said = hashlib.sha256(json.dumps(rows).encode())
        digests[str(place.relative_to(store))] = said.hexdigest()
    return digests


def read_rounds(store: Path) -> list[dict[str, Any]]:
    """Return the figures of the rounds, as `nip harden` wrote them."""
    results = json.loads((store / "hardening" / "hardened" / "results.json").read_text())
    return list(results["rounds"])


def measure(
    run: str, source: Path, place: Path, way: list[str], kills: int, amid: str | None
) -> dict[str, Any]:
    """Harden both, and compare them."""
    place.mkdir(parents=True, exist_ok=True)
    commit, record = describe_commit(), place / "whole.json"
    of = {"run": run, "way": way, "commit": commit}
    known = json.loads(record.read_text()) if record.exists() else {}
    if {key: known.get(key) for key in of} != of:
        record.unlink(missing_ok=True)
        known = {**of, "seconds": run_whole(*prepare(run, source, place / "whole", way))}
        record.write_text(json.dumps(known))
    whole_s = known["seconds"]
    hit = run_killed(*prepare(run, source, place / "killed", way), kills, whole_s, amid)
    whole, again = (
        list_digests(store, (path.name for path in store.glob("hardened-*")))
        for store in (place / "whole", place / "killed")
    )
    texts, texts_again = (list_said(place / name) for name in ("whole", "killed"))
    rounds, rounds_again = (read_rounds(place / name) for name in ("whole", "killed"))
    return {
        "run": run,
        "way": shlex.join(way),
        "whole_s": round(whole_s, 1),
        "kills": len(hit),
        "killed_amid": hit,
        "digests": len(whole),
        "differing": list_differing(whole, again),
        "rollouts": len(texts),
        "said_differing": list_differing(texts, texts_again),
        "rounds": rounds,
        "rounds_differ": rounds != rounds_again,
        "commit": commit,
        "machine": describe_machine(),
    }


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--store", type=Path, default=ROOT / "runs")
    parser.add_argument("--place", type=Path, default=ROOT / "runs" / "hardening_kills")
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--amid")
    parser.add_argument("--out", type=Path)
    parser.add_argument("run")
    parser.add_argument("way", nargs="*", default=WAY)
    options = parser.parse_args()
    if options.kills < 1:
        parser.error("--kills: at least 1")
    if options.out is not None and not options.out.parent.is_dir():
        parser.error(f"--out: {options.out.parent} is not a directory")
    results = measure(
        options.run,
        options.store.resolve(),
        options.place.resolve(),
        [*options.way],
        options.kills,
        options.amid,
    )
    results = {
        "command": shlex.join(["python", "benchmarks/hardening_kills.py", *sys.argv[1:]])
    } | results
    text = json.dumps(results, indent=1) + "\n"
    if options.out:
        options.out.write_text(text)
    print(text)
    is_same = not results["differing"] and not results["rounds_differ"] and results["digests"]
    if not is_same or results["kills"] < options.kills:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
