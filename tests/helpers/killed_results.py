"""What the kill matrix and the injected faults came to, as files for the docs."""

import json
import os
import platform
import subprocess
import textwrap
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

SAME = "killed, ended the same"
"""What is to have happened at every point."""
ROOT = Path(__file__).parents[2]
STEPS = ("mkdir", "rmdir", "open", "write", "torn", "link", "rename", "remove", "sql", "send")
STEPS += ("answered",)
"""The first words of labels that name what is done."""


ABOUT = {
    "kill_matrix": (
        "Each point is a SIGKILL of a process right before a step: a file of the run store or of the "
        "server is created, written, linked, renamed or removed, a row goes into the server's "
        "database, a request is sent to the server or to Prefect (`send`), or its answer has come "
        "and nobody has looked at it (`answered`); `torn`: half of a journal's frame is written. "
        "The process is started again, and in the end the run has the same canonical digests, "
        "datasets and models as one that was never killed, the server one job for each key and "
        "the same adapters, no generation with a durable record was asked for again, of the "
        "others at most the one that was in flight (`calls repeated`), and no process "
        "is left.",
        "A worker of Prefect is killed so at each request that it sends to Prefect from its start "
        "until the flow has started, and while the flow plays. Another worker is started at once, "
        "and `reconcile` runs when nothing moves any more.",
        "A run of a flow is killed up to twelve times, one after another, at points that are "
        "spread over it. Stars stand for what is drawn at random. The points are those that two "
        "unbroken runs have in common. Not covered: the heartbeat of the lease, which beats by "
        "the clock; a loss of power, which is what syncs are for; the Prefect server; runs in a "
        "bucket, which `make test-cluster` kills at a few points; what a worker "
        "polls again and again, and its websockets.",
    ),
    "faults": (
        "A real server with the deterministic engine behind a proxy that injects faults by a "
        "seeded plan, at most two in a row for one request; time is injected too. A stage is "
        "tried again as Prefect would do it, a run that stopped is run again.",
        "In the end all digests are those of the run without faults: no job was created twice "
        "(counted behind the proxy), no episode was lost, "
        "no row names another model than was asked, nothing waited past its deadline.",
    ),
    "two_runners": (
        "In each round two processes start together, and both try to play the same run of one "
        "iteration. The server takes half a second for each answer. One process plays the run to "
        "its end. The other exits with status 4 and a message that names the first.",
        "All rounds end with the same canonical digests, and no process is left.",
    ),
}


@dataclass
class Results:
    """What is shown of a session: sections of rows."""

    folder: Path | None = None  # where to write them; None: nowhere
    started_s: float = field(default_factory=time.monotonic)
    rows: dict[str, list[dict[str, Any]]] = field(default_factory=dict)

    def add(self, name: str, row: Any) -> None:
        """Add a row to the file `name`."""
        self.rows.setdefault(name, []).append(row if isinstance(row, dict) else asdict(row))

    def save(self) -> None:
        """Write a JSON file and a page for each name, as far as things have gone.

        Rows of processes that are in the file and not in this session stay there.
        """
        for name, rows in self.rows.items():
            if self.folder is not None:
                self.folder.mkdir(parents=True, exist_ok=True)
                _write(self.folder / name, rows, time.monotonic() - self.started_s)


def _write(path: Path, rows: list[dict[str, Any]], seconds: float) -> None:
    git = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=12"]
    commit = subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip()
    facts: dict[str, Any] = {
        "commit": commit,
        "command": "make kill-matrix",
        "machine": f"{os.cpu_count()} cores, Python {platform.python_version()}",
        "seconds": round(seconds),
    }
    if "process" in rows[0]:
        kept, commits = _of_other_processes(path.with_suffix(".json"), rows)
        commits |= dict.fromkeys((row["process"] for row in rows), commit)
        rows = kept + rows
        facts |= {"seconds": round(sum(row["seconds"] for row in rows)), "commits": commits}
    path.with_suffix(".json").write_text(json.dumps({**facts, "rows": rows}, indent=1) + "\n")
    lines = [
        f"# {path.stem.replace('_', ' ').capitalize()}",
        "",
        f"`{facts['command']}` at {facts['commit']}, {facts['machine']}: {len(rows)} rows, "
        f"{facts['seconds']} s.",
        "",
        *(line for part in ABOUT[path.stem] for line in (*textwrap.wrap(part, 120), "")),
        *(list_points(path.stem, rows, facts["commits"]) if "commits" in facts else _table(rows)),
    ]
    path.with_suffix(".md").write_text("\n".join(lines) + "\n")


def _table(rows: list[dict[str, Any]]) -> list[str]:
    columns = list(rows[0])
    cells = [[str(row[column]).replace("|", "/") for column in columns] for row in rows]
    head = ["| " + " | ".join(columns) + " |", "|" + " --- |" * len(columns)]
    return [*head, *("| " + " | ".join(row) + " |" for row in cells)]


def list_points(name: str, rows: list[dict[str, Any]], commits: dict[str, str]) -> list[str]:
    """The points by process, by kind of step, and each that did not end the same."""
    steps: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in rows:
        kind = row["label"].split()[0] if row["label"].split()[0] in STEPS else row["label"]
        steps.setdefault((row["process"], kind), []).append(row)
    shown = [
        {
            "process": process,
            "before it could": kind,
            "points": len(points),
            "ended the same": sum(row["happened"] == SAME for row in points),
            "calls repeated, at most": max(row["calls repeated"] for row in points),
        }
        for (process, kind), points in steps.items()
    ]
    other = [row for row in rows if row["happened"] != SAME]
    lines = [*_counts(rows, commits), "", *_table(shown)]
    lines += ["", f"[Every point]({name}.json), with its step, occurrence and seconds."]
    return [*lines, "", *_table(other)] if other else lines


def _of_other_processes(
    path: Path, rows: list[dict[str, Any]]
) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """What another session wrote of processes that are not in `rows`; the commit of each."""
    if not path.exists():
        return [], {}
    before = json.loads(path.read_text())
    own = {row["process"] for row in rows}
    kept = [row for row in before["rows"] if row["process"] not in own]
    commits = before.get("commits", {})
    return kept, {row["process"]: commits.get(row["process"], before["commit"]) for row in kept}


def _counts(rows: list[dict[str, Any]], commits: dict[str, str]) -> list[str]:
    lines = ["| process | points | ended the same | seconds per point | at |", "|" + " --- |" * 5]
    for process, commit in commits.items():
        own = [row for row in rows if row["process"] == process]
        same = sum(row["happened"] == SAME for row in own)
        mean = sum(row["seconds"] for row in own) / len(own)
        lines.append(f"| {process} | {len(own)} | {same} | {mean:.1f} | {commit} |")
    return lines
