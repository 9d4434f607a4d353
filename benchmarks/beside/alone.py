"""Parts g to i: what nip's own benchmarks of growth measure, in small sizes, each by its command.

    g   resume.py: a killed run of thousands of rollouts goes on
    h   dataset.py and scale.py: rollouts become training data; memory and disk, as a run grows
    i   view.py: the viewer on a run

They are commands of their own, with bars of their own; one that misses its bar ends with 1 and has
written its figures all the same.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from beside.players import ROOT, Nip
from beside.runs import Failed

Say = Callable[[str], None]


def run(name: str, *arguments: str, out: str = "--out") -> dict[str, Any]:
    """Give the figures of a benchmark. Raises Failed."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "figures.json"
        command = [sys.executable, str(ROOT / "benchmarks" / f"{name}.py"), *arguments]
        done = subprocess.run(
            [*command, out, str(file)], capture_output=True, text=True, check=False, cwd=ROOT
        )
        if not file.exists():
            raise Failed(f"{name}: {' '.join((done.stdout + done.stderr)[-600:].split())}")
        figures: dict[str, Any] = json.loads(file.read_text())
        return figures


def resume(rollouts: int, say: Say) -> dict[str, Any]:
    """Measure part g."""
    figures = run("resume", "--rollouts", str(rollouts))
    say(f"g {figures}")
    return {"resume": figures, "versions": Nip().versions()}


def growth(sizes: tuple[int, ...], rollouts: int, say: Say) -> dict[str, Any]:
    """Measure part h; a dataset of so many rollouts, and all stages at these sizes."""
    dataset = run("dataset", "--rollouts", str(rollouts))
    say(f"h {dataset}")
    scale = run("scale", "--episodes", ",".join(map(str, sizes)))
    say(f"h {scale}")
    return {"dataset": dataset, "scale": scale, "versions": Nip().versions()}


def viewer(episodes: int, say: Say) -> dict[str, Any]:
    """Measure part i."""
    figures = run("view", "--episodes", str(episodes))
    say(f"i {figures}")
    return {"view": figures, "versions": Nip().versions()}
