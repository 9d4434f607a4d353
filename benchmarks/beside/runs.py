"""Processes that play, and the statistics of what they took."""

import contextlib
import os
import random
import signal
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

BOOTSTRAPS = 10_000
END_S = 10.0


class Failed(Exception):
    """It cannot be measured here; the message is the reason."""


class Run:
    """A process with its children, whose output goes to a file."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], place: Path):
        self.log = place / "log"
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                command, env=environment, cwd=place, stdout=log, stderr=log, start_new_session=True
            )

    def kill(self) -> None:
        """Kill it and its children, as a machine that fails does."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def wait_until(self, done: Callable[[], bool], most_s: float, pause_s: float = 0.02) -> None:
        """Wait until `done` says so. Raises Failed if the process ends before, or it takes long."""
        deadline = time.monotonic() + most_s
        while not done():
            if self.process.poll() is not None and not done():
                raise Failed(f"it ended with {self.process.returncode}: {self.tail()}")
            if time.monotonic() > deadline:
                raise Failed(f"it took more than {most_s:g} s: {self.tail()}")
            time.sleep(pause_s)

    def finish(self, most_s: float) -> None:
        """Wait for its end. Raises Failed if that is a bad one, or does not come."""
        try:
            code = self.process.wait(most_s)
        except subprocess.TimeoutExpired:
            raise Failed(f"it took more than {most_s:g} s: {self.tail()}") from None
        if code != 0:
            raise Failed(f"it ended with {code}: {self.tail()}")

    def tail(self) -> str:
        """The end of its output, in one line."""
        return " ".join(self.log.read_text(errors="replace")[-600:].split())


def ratio(ours: Sequence[float], peers: Sequence[float]) -> dict[str, float | int]:
    """The ratio of two means over rounds, with a 95 % interval by the bootstrap over rounds.

    A round's figures are drawn together, as the machine is as fast for one as for the other within
    it (the percentile interval of Efron, 1979). With few rounds it is too narrow.
    """
    if len(ours) != len(peers) or not ours:
        raise ValueError(f"pairs of rounds are needed, got {len(ours)} and {len(peers)}")
    drawn = random.Random(0)
    rounds = range(len(ours))
    ratios = []
    for _ in range(BOOTSTRAPS):
        chosen = drawn.choices(rounds, k=len(rounds))
        ratios.append(sum(ours[i] for i in chosen) / sum(peers[i] for i in chosen))
    ratios.sort()
    low, high = (ratios[int(share * (BOOTSTRAPS - 1))] for share in (0.025, 0.975))
    mean = statistics.fmean(ours) / statistics.fmean(peers)
    return {
        "ratio": round(mean, 3),
        "low": round(low, 3),
        "high": round(high, 3),
        "rounds": len(ours),
    }
