"""A command that is killed again and again until it has ended, and the digests of what it made."""

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import psutil
from measured_commit import ROOT

AMID_S = (5.0, 20.0)
"""Between these, a kill comes so many seconds after a part was started."""
_TOLD = re.compile(r"\] (?P<part>\S+): (?P<what>started|finished|was finished before)")


def start(arguments: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
    """Start `nip` with these arguments; what it prints is added to the log."""
    command = [sys.executable, "-m", "nip_cli.cli", *arguments]
    environment = {**os.environ, "DO_NOT_TRACK": "1"}
    with log.open("ab") as stream:
        return subprocess.Popen(command, cwd=ROOT, env=environment, stdout=stream, stderr=stream)


def run_whole(arguments: Sequence[str], log: Path) -> float:
    """Run a command to its end and return its seconds. Raises SystemExit if it fails."""
    started = time.monotonic()
    process = start(arguments, log)
    if process.wait():
        raise SystemExit(f"exit code {process.returncode}, see {log}")
    return time.monotonic() - started


def run_killed(
    arguments: Sequence[str], log: Path, kills: int, whole_s: float, amid: str | None = None
) -> list[str]:
    """Run a command to its end through SIGKILLs; returns amid which part each of them came.

    Between two of them lies a drawn time, as much again as would spread them over `whole_s`, so
    that each start gets something done. With `amid` each comes AMID_S after a part whose name has
    this in it was started, and to each part come two at most. In turn the command alone is killed,
    and all that it started. Raises SystemExit if it fails.
    """
    draw, hit, within_s = random.Random(0), list[str](), whole_s / (kills + 1)
    while True:
        began = log.stat().st_size if log.exists() else 0
        process = start(arguments, log)
        if len(hit) < kills and amid is not None:
            while process.poll() is None:
                part = find_part(log, began)
                if amid in part and hit.count(part) < 2:
                    break
                time.sleep(0.1)
        try:
            if len(hit) == kills:
                process.wait()
            elif amid is None:
                process.wait(draw.uniform(0.5, 1.5) * within_s)
            else:
                process.wait(draw.uniform(*AMID_S))
        except subprocess.TimeoutExpired:
            hit.append(find_part(log, began))
            _kill(process, with_children=len(hit) % 2 == 0)
            continue
        if process.returncode:
            raise SystemExit(f"exit code {process.returncode}, see {log}")
        return hit


def find_part(log: Path, began: int) -> str:
    """Return which run a command of ours is at by its log from a byte on; empty if at none."""
    part = ""
    for line in log.read_bytes()[began:].decode(errors="replace").splitlines():
        if told := _TOLD.search(line):
            part = told["part"] if told["what"] == "started" else ""
    return part


def _kill(process: subprocess.Popen[bytes], with_children: bool) -> None:
    children = psutil.Process(process.pid).children(recursive=True) if with_children else []
    for killed in [process, *children]:
        try:
            killed.send_signal(signal.SIGKILL)
        except psutil.NoSuchProcess:
            continue
    process.wait()


def list_digests(store: Path, runs: Iterable[str]) -> dict[str, str]:
    """Return the canonical digests of rollouts and datasets of runs, by their manifest's place."""
    iterations = (store / run / "iterations" for run in runs)
    manifests = (path for place in iterations for path in place.rglob("manifest*.json"))
    extras = {path: json.loads(path.read_text())["extra"] for path in sorted(manifests)}
    return {
        str(path.relative_to(store)): str(extra.get("canonical_digest") or extra["digest"])
        for path, extra in extras.items()
    }


def list_differing(whole: dict[str, str], again: dict[str, str]) -> list[str]:
    """Return the places whose digests differ, or that only one of both has."""
    places = whole.keys() | again.keys()
    return sorted(path for path in places if whole.get(path) != again.get(path))
