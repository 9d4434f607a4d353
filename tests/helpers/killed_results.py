"""What the kill matrix and the injected faults came to, as files for the docs."""

import json
import os
import platform
import subprocess
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


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
        """Write a JSON file and a page for each name, as far as things have gone."""
        for name, rows in self.rows.items():
            if self.folder is not None:
                _write(self.folder / name, rows, time.monotonic() - self.started_s)


def _write(path: Path, rows: list[dict[str, Any]], seconds: float) -> None:
    git = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=12"]
    facts = {
        "commit": subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip(),
        "command": "make kill-matrix",
        "machine": f"{os.cpu_count()} cores, Python {platform.python_version()}",
        "seconds": round(seconds),
    }
    path.with_suffix(".json").write_text(json.dumps({**facts, "rows": rows}, indent=1) + "\n")
    columns = list(rows[0])
    lines = [
        f"# {path.stem.replace('_', ' ').capitalize()}",
        "",
        f"`{facts['command']}` at {facts['commit']}, {facts['machine']}: {len(rows)} rows, "
        f"{facts['seconds']} s.",
        "",
        "| " + " | ".join(columns) + " |",
        "|" + " --- |" * len(columns),
        *("| " + " | ".join(str(row[c]).replace("|", "/") for c in columns) + " |" for row in rows),
    ]
    path.with_suffix(".md").write_text("\n".join(lines) + "\n")
