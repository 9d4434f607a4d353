"""Many processes that play on one store, and many calls in flight: what each call then costs.

    python benchmarks/many_processes.py [CASE ...] [--turns 3] [--place DIR] [--open-files N]
        [--rounds 1] [--alone 12] [--out docs/results/many_processes.json]

A case is PROCESSESxIN_FLIGHT@LATENCY_S, or with :GAMES behind it, of each process (as many games as
calls in flight, otherwise). `nip play` is started so many times at once, each for a run of its own
all in one run store under --place (a temporary directory); a stub in a process of its own answers
each call after the latency. All runs make the same calls, and the stub must have answered each of
them once for each run. The first --alone runs of several are then played once more, by a process
alone in a store of its own, and must have the same digests: a run's name is in its digest.

All calls of a case are in flight at once only where the latency is longer than it takes to begin
them; `most_in_flight` says how many were. Above half of `request_timeout_s` nip makes fewer calls.

Processor seconds are those of a process and its children, less those of the same command with one
game. `busy` is the part of the machine that was not idle from the first call to the last answer,
by whatever ran; `rate_by_ideal` compares the calls per second with the calls in flight over the
latency. With --open-files each process has this limit.

What is covered: play with its journals, shards and leases on one disk. What is not: starts, a
network, a model's work, one run whose shards a cluster plays.
"""

import argparse
import json
import os
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import yaml
from beside.players import Nip
from beside.stub import Stub
from measured_commit import describe_commit, describe_machine

CASES = ("1x64@2:512", "12x64@2:512", "1x1000@10", "1x4096@30", "12x834@55")
PAUSE_S = 0.5


@dataclass(frozen=True)
class Case:
    """So many processes, each with so many calls in flight and so many games."""

    processes: int
    in_flight: int
    latency_s: float
    games: int

    @classmethod
    def read(cls, text: str) -> "Case":
        """Read a case from the command line. Raises ValueError."""
        parts = re.fullmatch(r"(\d+)x(\d+)@([\d.]+)(?::(\d+))?", text)
        if parts is None:
            raise ValueError(f"{text} is no PROCESSESxIN_FLIGHT@LATENCY_S[:GAMES]")
        processes, in_flight, latency_s, games = parts.groups()
        return cls(int(processes), int(in_flight), float(latency_s), int(games or in_flight))


class Player:
    """One process that plays a run."""

    def __init__(self, place: Path, number: int, case: Case, url: str, options: Any):
        folder = place / f"own-{number}"
        folder.mkdir()
        command = [*Nip().start(folder, url, case.games, case.in_flight), "--json"]
        file = folder / "config.yaml"
        settings = yaml.safe_load(file.read_text())
        settings |= {"run_name": f"run-{number}", "run_store": str(place / "runs")}
        settings["agents"]["_default"]["freeze_agent"] = True
        rounds = {"max_message_rounds": options.turns, "min_message_rounds": options.turns}
        settings["nip_protocol"] = rounds
        file.write_text(yaml.safe_dump(settings))
        if options.open_files:
            command = ["bash", "-c", f'ulimit -Sn {options.open_files}; exec "$@"', "-", *command]
        self._log, self._out = folder / "log", folder / "printed"
        environment = {**Nip().environment(folder, url), "OMP_NUM_THREADS": "1"}
        with self._log.open("wb") as log, self._out.open("wb") as out:
            self.process = subprocess.Popen(
                command, env=environment, cwd=folder, stdout=out, stderr=log
            )

    def wait(self) -> tuple[float, float, str]:
        """Processor seconds, megabytes at most, digest. Raises SystemExit if it failed."""
        _, status, usage = os.wait4(self.process.pid, 0)
        self.process.returncode = os.waitstatus_to_exitcode(status)
        if self.process.returncode:
            said = (self._out.read_text() + self._log.read_text())[-1500:]
            raise SystemExit(f"nip play ended with {self.process.returncode}: {said}")
        digest = json.loads(self._out.read_text())["canonical_digest"]
        return usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1000, str(digest)


class Watch:
    """What the machine and the stub do from the first call to the last answer."""

    def __init__(self, stub: Stub, calls: int):
        self._stub, self._calls = stub, calls
        self._began: Any = None
        self._ended: Any = None
        self.sockets = 0

    def look(self, players: Sequence[Player]) -> None:
        """Look once."""
        try:
            state, times = self._stub.state(), psutil.cpu_times()
        except OSError:  # it is busy with answers
            return
        if state["begun"] and self._began is None:
            self._began = times
        if state["answered"] < self._calls:
            self._ended = times
        for player in players[:1]:
            path = Path(f"/proc/{player.process.pid}/fd")
            self.sockets = max(self.sockets, len([*path.iterdir()]) if path.exists() else 0)

    @property
    def busy(self) -> float | None:
        """The part of the processors that was not idle."""
        if self._began is None or self._ended is None:
            return None
        spent = [late - soon for soon, late in zip(self._began, self._ended, strict=True)]
        idle = self._ended.idle - self._began.idle + self._ended.iowait - self._began.iowait
        return round(1 - idle / sum(spent[:8]), 2) if sum(spent[:8]) else None


def is_each_once(case: Case, turns: int, state: Mapping[str, Any]) -> bool:
    """Tell whether the stub had all calls of a case, each once for each process."""
    once = [case.processes, case.processes]
    each = (state["begun_each"], state["answered_each"])
    return each == (once, once) and state["different"] == case.games * turns


def is_over(player: Player) -> bool:
    """Tell whether a process has ended, and leave it to be waited for."""
    return psutil.Process(player.process.pid).status() == psutil.STATUS_ZOMBIE


def play(case: Case, options: Any, first: int = 0) -> dict[str, Any]:
    """Play a case with runs of these numbers; its row, with all processor seconds in it."""
    with (
        tempfile.TemporaryDirectory(dir=options.place) as folder,
        Stub(case.latency_s, options.turns) as stub,
    ):
        players = [
            Player(Path(folder), first + number, case, stub.url, options)
            for number in range(case.processes)
        ]
        calls = case.processes * case.games * options.turns
        watch = Watch(stub, calls)
        try:
            while not all(map(is_over, players)):
                watch.look(players)
                time.sleep(PAUSE_S)
        except BaseException:
            for player in players:
                player.process.kill()
            raise
        seconds, megabytes, digests = zip(*(player.wait() for player in players), strict=True)
        state = stub.state()
        stub_s = sum(psutil.Process(stub._process.pid).cpu_times()[:2])
    return {
        "calls": calls,
        "lost": calls - state["answered"],
        "doubled": state["begun"] - calls,
        "different": state["different"],
        "each_once": is_each_once(case, options.turns, state),
        "digests": [*digests],
        "most_in_flight": state["most_in_flight"],
        "calls_per_s": round(calls / state["seconds"], 1),
        "rate_by_ideal": round(
            calls * case.latency_s / (case.processes * case.in_flight) / state["seconds"], 3
        ),
        "processor_s": round(sum(seconds), 2),
        "stub_ms_per_call": round(1000 * stub_s / calls, 3),
        "megabytes": round(max(megabytes)),
        "open_files": watch.sockets,
        "busy": watch.busy,
        "load": round(os.getloadavg()[0], 1),
    }


def is_as_alone(case: Case, digests: Sequence[str], options: Any) -> bool:
    """Tell whether each run has the digest of the same one, played by one process alone."""
    lone = Case(1, 64, 0.02, case.games)
    return all(
        (row["digests"], row["each_once"]) == ([digest], True)
        for number, digest in enumerate(digests[: options.alone])
        for row in [play(lone, options, first=number)]
    )


def measure(text: str, options: Any, start_s: float) -> dict[str, Any]:
    """Play a case in all rounds; its row."""
    case, rounds = Case.read(text), []
    for _ in range(options.rounds):
        row = play(case, options)
        played_s = row["processor_s"] - case.processes * start_s
        row["ms_per_call"] = round(1000 * played_s / row["calls"], 3)
        rounds.append(row)
        print(f"{text}: {json.dumps(row)}", file=sys.stderr, flush=True)
    medians = {
        name: statistics.median(row[name] for row in rounds)
        for name in ("calls_per_s", "ms_per_call", "rate_by_ideal")
    }
    digests = [row.pop("digests") for row in rounds]
    same = all(each == digests[0] for each in digests)
    if case.processes > 1:
        same = same and is_as_alone(case, digests[0], options)
    worst = {name: max(row[name] for row in rounds) for name in ("lost", "doubled")}
    worst["each_once"] = all(row["each_once"] for row in rounds)
    return {**rounds[-1], **medians, **worst, "rounds": len(rounds), "same_digests": same}


def main() -> None:
    """Measure the cases, compare digests, write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("cases", nargs="*", default=[*CASES])
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--alone", type=int, default=12, help="so many runs are played alone, too")
    parser.add_argument("--place", type=Path)
    parser.add_argument("--open-files", type=int, default=0)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # the stub has all connections
    starts = [play(Case(1, 64, 0.01, 1), options)["processor_s"] for _ in range(3)]
    rows = {text: measure(text, options, statistics.median(starts)) for text in options.cases}
    document = {
        "command": "python " + " ".join(["benchmarks/many_processes.py", *sys.argv[1:]]),
        "commit": describe_commit(),
        "machine": describe_machine(),
        "open_files": options.open_files or soft,
        "start_processor_s": statistics.median(starts),
        "cases": rows,
    }
    print(json.dumps(document, indent=1))
    if options.out is not None:
        options.out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    if not all(row["each_once"] and row["same_digests"] for row in rows.values()):
        raise SystemExit("calls were lost or doubled, or runs differ")


if __name__ == "__main__":
    main()
