"""Four hosts, what happens between them, and the page that tells of it.

    python benchmarks/hosts.py --out docs/results/hosts.json [--only WORDS] [--speed ROUNDS]

For root on Linux; needs PostgreSQL's programs and `scripts/install.py local,dev,cluster`. Plays a
run on the hosts for every fault, while it happens, and compares its digests with those of the same
run on one machine. With --speed, plays runs on one host and on two instead, in turns, and compares
their time. Writes the file and the page beside it; a fault that is in the file already is not
played again. Ends with status 1 if any digests differ, with 2 if hosts can't be made here.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from measured_commit import ROOT, describe_commit

sys.path.insert(0, str(ROOT / "tests" / "helpers"))
from four_hosts.network import HostsError, Network, enter_apart
from host_faults.site import Site
from host_faults.trials import FAULTS, Speed, Trial, measure_speed, on_one, play

ANSWER_S = 1.5
NOTES = (
    "Answers are made up and follow from the seed. *The same data*: the canonical digests of "
    "rollouts and the digests of datasets are those of the same run on one machine, which nothing "
    "happened to. *Flow runs*: a second one was asked for where the first had failed, as on a full "
    "disk. Where a runner is lost, most of the longest time without an answer is the patience of "
    "leases and of `reconcile`, which is asked for without pause here, with `restart_after_s: 20`; "
    "as it is deployed it comes every five minutes and waits 60 s, so the pause is minutes longer. "
    "The rest is of the machine. "
    "*Of these again*: the server of the models is nip's own. It goes on with a call whose client "
    "has gone, and gives the answer to whoever asks again within ten minutes; of another server "
    "the calls in flight are made again ([price of a kill](side_by_side.md#the-price-of-a-kill))."
)
COMMAND = "python benchmarks/hosts.py --out docs/results/hosts.json"
SPEED_NOTES = (
    "The same network and stores; Dask plays the shards, and nothing happens. *Ideal*: each host "
    "always has all of its calls in flight, and nothing else takes time. All hosts are on one "
    "machine, and a call costs time but no processor. So the table compares one number of calls in "
    "flight with twice that number."
)
_COLUMNS = {
    "fault": "what happens",
    "episodes": "episodes",
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
    site: Site, place: Path, wanted: Collection[str], done: Callable[[Trial], None]
) -> None:
    """Play a run for every wanted fault, and hand it to `done`."""
    for number, (words, fault) in enumerate(FAULTS.items()):
        if words in wanted:
            # Other seeds for each run, as the server keeps what it has answered.
            settings = fault.settings(site, f"fault-{number}")
            settings["seed"] += number
            expected = on_one(settings, place)
            done(play(site, settings, expected, words, fault))


def compare_speed(site: Site, rounds: int, done: Callable[[Speed], None]) -> None:
    """Play runs on one host and on two in turns, and hand each to `done`."""
    for number in range(rounds):
        for hosts in (1, 2) if number % 2 == 0 else (2, 1):
            name = f"speed-{number}-{hosts}"
            done(measure_speed(site, name, hosts, ANSWER_S, seed=1000 + 2 * number + hosts))


def read(out: Path) -> dict[str, Any]:
    """Read a file that may not be there: its rows, and what is known of the speed."""
    there: dict[str, Any] = json.loads(out.read_text()) if out.exists() else {}
    return {"command": COMMAND, "rows": there.get("rows", []), "speed": there.get("speed", [])}


def write_row(row: dict[str, Any], out: Path) -> None:
    """Put a row into the file, in the place of an older one of its fault, and write the page."""
    document = read(out)
    by_fault = {old["fault"]: old for old in [*document["rows"], row]}
    write({**document, "rows": [by_fault[fault] for fault in FAULTS if fault in by_fault]}, out)


def write(document: dict[str, Any], out: Path) -> None:
    """Write the file and the page."""
    out.write_text(json.dumps(document, indent=1) + "\n")
    by_fault = {row["fault"]: row for row in document["rows"]}
    lines = [
        "# Faults between hosts",
        "",
        f"`{COMMAND}`, as root (what is in the file is not played again: to measure, give another "
        "one). Each row is a run of its own on four hosts: one has the object store, "
        "PostgreSQL and Prefect's server, two have a worker each, the last one the model server, "
        f"which takes {ANSWER_S:g} s for an answer ([how](../decisions/0054-hosts.md)). Four calls "
        "are in flight; of the run of 1,000 episodes, whose shards both hosts play by Dask, 16 of "
        "each host; of that by Ray four of each.",
        "",
        "| " + " | ".join(_COLUMNS.values()) + " |",
        "|" + " --- |" * len(_COLUMNS),
    ]
    for kept_row in by_fault.values():
        values = {**kept_row, "same_digests": "yes" if kept_row["same_digests"] else "**no**"}
        lines.append("| " + " | ".join(str(values[name]) for name in _COLUMNS) + " |")
    missing = [fault for fault in FAULTS if fault not in by_fault]
    if missing:
        lines += ["", f"Not measured: {'; '.join(missing)}."]
    lines += ["", NOTES, *describe_speed(document["speed"])]
    out.with_suffix(".md").write_text("\n".join(lines) + "\n")


def describe_speed(rows: list[dict[str, Any]]) -> list[str]:
    """Make the page's lines of how fast two hosts play beside one."""
    if {row["hosts"] for row in rows} != {1, 2}:
        return []
    shares, seconds = (
        [statistics.median(row[name] for row in rows if row["hosts"] == n) for n in (1, 2)]
        for name in ("ideal_by_real", "playing_s")
    )
    first = rows[0]
    columns = ["playing_s", "ideal_s", "ideal_by_real", "commit", "machine"]
    return [
        "",
        "## Two hosts beside one",
        "",
        f"`{COMMAND} --speed {len(rows) // 2}`, {first['episodes']} episodes each, "
        f"{first['in_flight']} calls in flight of each host. {SPEED_NOTES}",
        "",
        "| hosts that play | first to last answer, s | ideal, s | ideal by real | at | on |",
        "| --- | --- | --- | --- | --- | --- |",
        *(
            f"| {row['hosts']} | " + " | ".join(str(row[name]) for name in columns) + " |"
            for row in rows
        ),
        "",
        f"Medians of ideal by real: {shares[0]:.3f} with one host, {shares[1]:.3f} with two, "
        f"{shares[1] / shares[0]:.2f} of it. Two play {seconds[0] / seconds[1]:.2f} times as fast.",
    ]


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description="Faults between four hosts.")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", default="")
    parser.add_argument("--speed", type=int, default=0, metavar="ROUNDS")
    options = parser.parse_args()
    options.out.parent.mkdir(parents=True, exist_ok=True)
    are_same: list[bool] = []
    speeds: list[dict[str, Any]] = []
    measured = {row["fault"] for row in read(options.out)["rows"]}
    faults = [words for words in FAULTS if options.only in words and words not in measured]
    if not faults and not options.speed:
        print("hosts: every fault that is asked for is in the file")
        return 0

    def told(row: dict[str, Any]) -> dict[str, Any]:
        load = os.getloadavg()[0]
        row |= {"commit": describe_commit(), "machine": f"{os.cpu_count()} cores, load {load:.0f}"}
        print(json.dumps(row), flush=True)
        return row

    def done(trial: Trial) -> None:
        are_same.append(trial.same_digests)
        write_row(told(trial.to_dict()), options.out)

    def timed(speed: Speed) -> None:
        speeds.append(told(speed.to_dict()))
        write({**read(options.out), "speed": speeds}, options.out)

    try:
        enter_apart()
        with tempfile.TemporaryDirectory() as folder, Network(Path(folder) / "logs") as network:
            network.join()
            with Site(network, ANSWER_S) as site:
                if options.speed:
                    compare_speed(site, options.speed, timed)
                else:
                    measure(site, Path(folder), faults, done)
    except HostsError as error:
        print(f"hosts: {error}", file=sys.stderr)
        return 2
    return 0 if all(are_same) else 1


if __name__ == "__main__":
    sys.exit(main())
