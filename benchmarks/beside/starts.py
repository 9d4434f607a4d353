"""Part j: how long a user waits, from a command to its first call or to its words.

The players of part d, and `nip train`, start on the stub: the time is from the start of the process
to the first call that reaches it; the process is killed then. What is called again each time has
its home and caches empty. Commands that only print are run to their end. One round in front of all
does not count, which leaves modules compiled and files in the system's cache.
"""

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from beside.players import TURNS, Nip, Peer, Player
from beside.runs import Failed, Run
from beside.stub import Stub

STORE = "runs"
"""An empty one, for `nip ls`."""
MOST_S, GAMES, IN_FLIGHT, WAIT_S = 300.0, 64, 16, 5.0


class NipTrain(Nip):
    """`nip train`, with a Prefect server that it starts, whose home is new."""

    name = "nip train"

    def start(self, place: Path, url: str, games: int, in_flight: int) -> list[str]:
        """Train on the same configuration."""
        super().start(place, url, games, in_flight)
        return [sys.executable, "-m", "nip_cli", "train", str(place / "config.yaml")]

    def environment(self, place: Path, url: str) -> dict[str, str]:
        """Name no Prefect server, and a home for the one that is started."""
        named = super().environment(place, url) | {"PREFECT_HOME": str(place / "prefect")}
        return {name: value for name, value in named.items() if name != "PREFECT_API_URL"}


def first_call_s(player: Player) -> float:
    """Start, wait for the first call, and kill; the seconds. Raises Failed."""
    with tempfile.TemporaryDirectory() as folder, Stub(WAIT_S, TURNS) as stub:
        place = Path(folder)
        environment = player.environment(place, stub.url)
        command = player.start(place, stub.url, GAMES, IN_FLIGHT)
        began = time.monotonic()
        run = Run(command, environment, place)
        try:
            run.wait_until(lambda: stub.state()["begun"] > 0, MOST_S)
            return time.monotonic() - began
        finally:
            run.kill()


def printed_s(command: Sequence[str]) -> float:
    """Run a command that prints; the seconds. Raises Failed."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / STORE).mkdir()
        began = time.monotonic()
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        seconds = time.monotonic() - began
    if done.returncode != 0:
        raise Failed(f"it ended with {done.returncode}: {' '.join(done.stderr[-400:].split())}")
    return seconds


def commands(players: Sequence[Player]) -> dict[str, list[str]]:
    """Name what prints: nip's, and that of the peers that are there."""
    nip = str(Path(sys.executable).with_name("nip"))
    named = {"nip --help": [nip, "--help"], "nip ls": [nip, "ls", "--run-store", STORE]}
    programs = {"verifiers": "vf-eval", "inspect": "inspect"}
    for player in players:
        program = programs.get(player.name)
        if program and isinstance(player, Peer) and not player.absent():
            path = player.python().with_name(program)
            named[f"{program} --help"] = [str(path), "--help"]
    return named


def measure(players: Sequence[Player], rounds: int, say: Callable[[str], None]) -> dict[str, Any]:
    """All in turn; what fails is a row with its reason."""
    rows: dict[str, dict[str, Any]] = {}
    ways: dict[str, Callable[[], float]] = {}
    for player in [*players, NipTrain()]:
        reason = player.absent()
        rows[player.name] = {"reason": reason} if reason else {"versions": player.versions()}
        ways[player.name] = lambda player=player: first_call_s(player)  # type: ignore[misc]
    for name, command in commands(players).items():
        rows[name] = {"prints": True}
        ways[name] = lambda command=command: printed_s(command)  # type: ignore[misc]
    for number in range(rounds + 1):
        for name, way in ways.items():
            if "reason" in rows[name]:
                continue
            try:
                seconds = round(way(), 2)
            except Failed as error:
                rows[name]["reason"] = str(error)
                say(f"j {name}: {error}")
                continue
            if number > 0:
                rows[name].setdefault("seconds", []).append(seconds)
            say(f"j {number} {name}: {seconds}")
    return {"players": rows}
