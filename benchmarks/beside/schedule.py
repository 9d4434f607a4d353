"""Part d: how much of the time that latency alone would take a scheduler needs.

Games of nine turns on the stub, so many calls in flight: ideal is calls times latency over calls
in flight, real the time from the first call to the last answer, both by the stub, so that starts do
not count. Beside the players there is a bare client: nip's own, that only makes the calls.
"""

import asyncio
import contextlib
import math
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from beside.players import ABSENT_PLAYERS, ROOT, TURNS, Nip, Player
from beside.runs import Failed, Run, ratio
from beside.stub import Stub


@dataclass(frozen=True)
class Size:
    """How much is played. The peers play at the first number in flight alone, and in one round:
    they take a minute each, and differ from us by far more than rounds do."""

    games: int = 1000
    few: int = 512
    """Games at the first number in flight, of which that many end at once."""
    in_flight: tuple[int, ...] = (64, 1000)
    latency_s: float = 0.5
    most_s: float = 600.0

    def games_at(self, in_flight: int) -> int:
        """Count the games that are played at a number in flight."""
        return self.few if in_flight == self.in_flight[0] else self.games


class Bare(Player):
    """nip's chat client alone: whole games as chains of calls, nothing parsed and nothing kept."""

    name = "bare client"

    def versions(self) -> dict[str, str]:
        """Give nip's."""
        return Nip().versions()

    def start(self, place: Path, url: str, games: int, in_flight: int) -> list[str]:
        """Play in this module."""
        return [sys.executable, __file__, url, str(games), str(in_flight)]

    def go_on(self, place: Path, url: str, games: int, in_flight: int) -> list[str]:
        """Nothing is kept."""
        raise NotImplementedError

    def environment(self, place: Path, url: str) -> dict[str, str]:
        """Find this package."""
        path = f"{Path(__file__).parents[1]}:{ROOT}"
        return {**super().environment(place, url), "PYTHONPATH": path}


async def play_barely(url: str, games: int, in_flight: int) -> None:
    """All games, as many at once as there may be calls in flight."""
    sys.path.insert(0, str(Path(__file__).parent / "peers"))
    from game_texts import SYSTEM, problem

    from nip_core.rollouts.client.chat_client import ChatClient
    from nip_core.rollouts.client.completions import Endpoint

    endpoint, numbers = Endpoint(f"{url}/v1", "key"), iter(range(games))

    async def worker(client: ChatClient) -> None:
        for number in numbers:
            chats = [
                [{"role": "system", "content": text}, {"role": "user", "content": problem(number)}]
                for text in SYSTEM.values()
            ]
            for turn in range(TURNS):
                speaker, listener = chats if turn % 2 == 0 else chats[::-1]
                answer = await client.complete(endpoint, {"model": "stub", "messages": speaker})
                speaker.append({"role": "assistant", "content": str(answer.text)})
                listener.append({"role": "user", "content": str(answer.text)})

    async with ChatClient(concurrency=in_flight, timeout_s=300, retries=0) as client:
        await asyncio.gather(*(worker(client) for _ in range(min(games, in_flight))))


def ideal_s(size: Size, in_flight: int) -> float:
    """The seconds that latency alone takes: no fewer than one game's, nor than all calls' share."""
    calls = size.games_at(in_flight) * TURNS
    return max(TURNS, math.ceil(calls / in_flight)) * size.latency_s


class Memory(threading.Thread):
    """The most memory that a process and its children had together, looked at every second.

    What they share counts for each.
    """

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self._pid = pid
        self.mb = 0.0

    def run(self) -> None:
        """Look until the process is gone."""
        with contextlib.suppress(psutil.NoSuchProcess):
            parent = psutil.Process(self._pid)
            while parent.is_running() and parent.status() != psutil.STATUS_ZOMBIE:
                total = 0
                for process in (parent, *parent.children(recursive=True)):
                    with contextlib.suppress(psutil.NoSuchProcess):
                        total += process.memory_info().rss
                self.mb = max(self.mb, total / 1e6)
                time.sleep(1.0)


def play_once(player: Player, size: Size, in_flight: int) -> dict[str, Any]:
    """One player's games. Raises Failed."""
    with tempfile.TemporaryDirectory() as folder, Stub(size.latency_s, TURNS) as stub:
        place = Path(folder)
        environment = player.environment(place, stub.url)
        games = size.games_at(in_flight)
        run = Run(player.start(place, stub.url, games, in_flight), environment, place)
        memory = Memory(run.process.pid)
        memory.start()
        try:
            run.finish(size.most_s)
        finally:
            run.kill()
        ended = stub.state()
    if ended["answered"] != games * TURNS:
        raise Failed(f"{ended['answered']} calls were answered, not {games * TURNS}")
    return {
        "seconds": round(ended["seconds"], 2),
        "ideal_by_real": round(ideal_s(size, in_flight) / ended["seconds"], 4),
        "calls_per_s": round(ended["answered"] / ended["seconds"], 1),
        "most_in_flight": ended["most_in_flight"],
        "peak_mb": round(memory.mb),
        "mean_request_bytes": ended["mean_request_bytes"],
    }


def measure(players: Sequence[Player], rounds: int, size: Size, say: Any) -> dict[str, Any]:
    """All players in turn, then ours alone: in another order in each round, and more in flight."""
    rows: dict[str, dict[str, Any]] = {}
    for player in [*players, Bare()]:
        reason = player.absent()
        rows[player.name] = {"reason": reason} if reason else {"versions": player.versions()}
    for number in range(rounds):
        for in_flight in size.in_flight:
            all_play = number == 0 and in_flight == size.in_flight[0]
            able = [*players, Bare()] if all_play else [Nip(), Bare()]
            turn = number % len(able)
            for player in [*able[turn:], *able[:turn]]:
                row = rows[player.name]
                if "reason" in row:
                    continue
                try:
                    figures = play_once(player, size, in_flight)
                except Failed as error:
                    row["reason"] = f"{in_flight} in flight: {error}"
                    say(f"d {player.name}: {row['reason']}")
                    continue
                row.setdefault(str(in_flight), []).append(figures)
                say(f"d {player.name} {in_flight}: {figures}")
    return {
        "games": size.games,
        "few": size.few,
        "turns": TURNS,
        "latency_s": size.latency_s,
        "in_flight": list(size.in_flight),
        "players": rows,
        "absent": ABSENT_PLAYERS,
        "ratios": _ratios(rows, size),
    }


def _ratios(rows: dict[str, dict[str, Any]], size: Size) -> list[dict[str, Any]]:
    """nip's calls per second over each other one's, by the rounds in which both played."""
    ratios = []
    for in_flight in map(str, size.in_flight):
        ours = rows["nip"].get(in_flight, [])
        for name, row in rows.items():
            theirs = row.get(in_flight, [])
            if name != "nip" and ours and 0 < len(theirs) <= len(ours):
                rounds = (ours[: len(theirs)], theirs)
                both = ([f["calls_per_s"] for f in figures] for figures in rounds)
                ratios.append({"in_flight": int(in_flight), "to": name} | ratio(*both))
    return ratios


if __name__ == "__main__":
    asyncio.run(play_barely(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
