"""Part e: what a kill costs.

Each player plays the same games on the stub; it is killed with SIGKILL, with all its children,
when a share of the calls has been answered, and started again as its own documentation says.
Counted by the stub: calls that were sent again, those in flight when it was killed among them,
calls a second until then, and the time from the second start to the first answer that was not there
before. In the end the files that the player has left are measured, but for what it printed.
"""

import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from beside.players import ABSENT_PLAYERS, TURNS, Player
from beside.runs import Failed, Run
from beside.stub import Stub


@dataclass(frozen=True)
class Size:
    """How much is played."""

    games: int = 200
    in_flight: int = 32
    latency_s: float = 0.25
    shares: tuple[float, ...] = (0.5, 0.95)
    most_s: float = 900.0
    """Seconds until the kill, and from the second start to the end."""

    @property
    def calls(self) -> int:
        """Count the calls of all games."""
        return self.games * TURNS


def kill_once(player: Player, size: Size, share: float) -> dict[str, Any]:
    """Play, kill, go on to the end. Raises Failed."""
    with (
        tempfile.TemporaryDirectory() as folder,
        Stub(size.latency_s, TURNS) as stub,
        player.beside(place := Path(folder)) as elsewhere,
    ):
        environment = player.environment(place, stub.url)
        game = (place, stub.url, size.games, size.in_flight)
        first = Run(player.start(*game), environment, place)
        try:
            enough = share * size.calls
            first.wait_until(lambda: stub.state()["answered"] >= enough, size.most_s)
        finally:
            first.kill()
        time.sleep(2 * size.latency_s)  # what was in flight is answered to nobody, and not counted
        killed = stub.state()
        stub.mark()
        second = Run(player.go_on(*game), environment, place)
        try:
            second.finish(size.most_s)
        finally:
            second.kill()
        ended = stub.state()
        left = _measure_files([place, *elsewhere], but_for=second.log)
    if ended["different"] != size.calls:
        raise Failed(f"{ended['different']} different calls were made, not {size.calls}")
    return {
        "begun_before": killed["begun"],
        "in_flight": killed["begun"] - killed["answered"],
        "repeated": ended["begun"] - ended["different"],
        "calls_per_s": round(killed["answered"] / killed["seconds"], 1),
        "bytes": left,
        "seconds_to_new_answer": round(ended["new_answer_s"], 3),
        "unknown_requests": ended["unknown"],
    }


def _measure_files(places: Iterable[Path], but_for: Path) -> int:
    """Sum up the bytes of all files below."""
    files = (path for place in places for path in place.rglob("*"))
    return sum(f.stat().st_size for f in files if f.is_file() and f != but_for)


def measure(players: Sequence[Player], rounds: int, size: Size, say: Any) -> dict[str, Any]:
    """All players in turn, in another order in each round."""
    rows: dict[str, dict[str, Any]] = {}
    for player in players:
        reason = player.absent()
        rows[player.name] = {"reason": reason} if reason else {"versions": player.versions()}
    for share in size.shares:
        for number in range(rounds):
            turn = number % len(players)
            for player in [*players[turn:], *players[:turn]]:
                row = rows[player.name]
                if "reason" in row:
                    continue
                try:
                    figures = kill_once(player, size, share)
                except Failed as error:
                    row["reason"] = f"killed at {share:.0%}: {error}"
                    say(f"e {player.name}: {row['reason']}")
                    continue
                row.setdefault(f"{share:g}", []).append(figures)
                say(f"e {player.name} {share:g}: {figures}")
    return {
        "games": size.games,
        "turns": TURNS,
        "in_flight": size.in_flight,
        "latency_s": size.latency_s,
        "shares": list(size.shares),
        "players": rows,
        "absent": ABSENT_PLAYERS,
    }
