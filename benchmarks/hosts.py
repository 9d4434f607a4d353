"""Four hosts, what happens between them, and the page that tells of it.

    python benchmarks/hosts.py --out docs/results/hosts.json [--only WORDS] [--episodes 60]

For root on Linux; needs PostgreSQL's programs and `pip install -e ".[local,dev,cluster]"`. Plays a
run on the hosts for every fault, while it happens, and compares its digests with those of the same
run on one machine. Writes the file and the page beside it; what is in the file already is not
played again. Ends with status 1 if any digests differ, with 2 if hosts can't be made here.
"""

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from measured_commit import ROOT, describe_commit

sys.path.insert(0, str(ROOT / "tests" / "helpers"))
from four_hosts.network import HostsError, Network, enter_apart
from host_faults.site import Site
from host_faults.trials import FAULTS, Trial, on_one, play

ANSWER_S = 1.5
IN_FLIGHT = 4
NOTES = (
    "Answers are made up and follow from the seed. *The same data*: the canonical digests of "
    "rollouts and the digests of datasets are those of the same run on one machine, which nothing "
    "happened to. *Flow runs*: a second one was asked for where the first had failed, as on a full "
    "disk. Where a runner is lost, most of the longest time without an answer is the patience of "
    "leases and of `reconcile`, asked for again and again here; the rest is of the machine."
)
COMMAND = "python benchmarks/hosts.py --out docs/results/hosts.json"
_COLUMNS = {
    "fault": "what happens",
    "same_digests": "the same data",
    "flow_runs": "flow runs",
    "epochs": "runners, one after the other",
    "calls": "calls answered",
    "repeated": "of these again",
    "standstill_s": "longest time without an answer, s",
    "playing_s": "first to last answer, s",
    "commit": "at",
    "machine": "on",
}


def measure(
    site: Site, place: Path, wanted: Collection[str], episodes: int, done: Callable[[Trial], None]
) -> None:
    """Play a run for every wanted fault, and hand it to `done`."""
    for number, (words, (happen, reconciles)) in enumerate(FAULTS.items()):
        if words in wanted:
            # Few calls at once, so that there is time for a fault; and other seeds for each run, as
            # the server keeps what it has answered.
            settings = site.settings(f"fault-{number}", episodes, concurrency=IN_FLIGHT)
            settings["seed"] += number
            expected = on_one(settings, place)
            done(play(site, settings, expected, words, happen, reconciles))


def read_rows(out: Path) -> list[dict[str, Any]]:
    """Read the rows of a file that may not be there."""
    return list(json.loads(out.read_text())["rows"]) if out.exists() else []


def write(row: dict[str, Any], out: Path) -> None:
    """Put a row into the file, in the place of an older one of its fault, and write the page."""
    by_fault = {old["fault"]: old for old in [*read_rows(out), row]}
    rows = [by_fault[fault] for fault in FAULTS if fault in by_fault]
    out.write_text(json.dumps({"command": COMMAND, "rows": rows}, indent=1) + "\n")
    lines = [
        "# Faults between hosts",
        "",
        f"`{COMMAND}`. Each row is a run of its own on four hosts: one has the object store, "
        "PostgreSQL and Prefect's server, two have a worker each, the last one the model server, "
        f"which takes {ANSWER_S:g} s for an answer ([how](../decisions/0054-hosts.md)). "
        f"{IN_FLIGHT} calls are in flight.",
        "",
        "| " + " | ".join(_COLUMNS.values()) + " |",
        "|" + " --- |" * len(_COLUMNS),
    ]
    for kept_row in rows:
        values = {**kept_row, "same_digests": "yes" if kept_row["same_digests"] else "**no**"}
        lines.append("| " + " | ".join(str(values[name]) for name in _COLUMNS) + " |")
    missing = [fault for fault in FAULTS if fault not in by_fault]
    if missing:
        lines += ["", f"Not measured: {'; '.join(missing)}."]
    lines += ["", NOTES]
    out.with_suffix(".md").write_text("\n".join(lines) + "\n")


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description="Faults between four hosts.")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", default="")
    parser.add_argument("--episodes", type=int, default=60)
    options = parser.parse_args()
    are_same: list[bool] = []
    measured = {row["fault"] for row in read_rows(options.out)}
    faults = [words for words in FAULTS if options.only in words and words not in measured]
    if not faults:
        print("hosts: every fault that is asked for is in the file")
        return 0

    def done(trial: Trial) -> None:
        row = {
            **trial.to_dict(),
            "commit": describe_commit(),
            "machine": f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.0f}",
        }
        print(json.dumps(row), flush=True)
        are_same.append(trial.same_digests)
        write(row, options.out)

    try:
        enter_apart()
        with tempfile.TemporaryDirectory() as folder, Network(Path(folder) / "logs") as network:
            network.join()
            with Site(network, ANSWER_S) as site:
                measure(site, Path(folder), faults, options.episodes, done)
    except HostsError as error:
        print(f"hosts: {error}", file=sys.stderr)
        return 2
    return 0 if are_same and all(are_same) else 1


if __name__ == "__main__":
    sys.exit(main())
