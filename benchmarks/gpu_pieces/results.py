"""The file of a session: sections of pieces, made of rows that are written as soon as measured.

    {"rehearsal": false, "pieces": {PIECE: {"finished": ..., "rows": {ROW: {...}}, ...}}}

A row is what was measured, or {"reason": why not}. A piece whose time is over goes on with the rows
that are missing. A row in which a piece was ended twice is not tried a third time.
"""

import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from beside.runs import Failed

TRIES = 3
"""So often a row is begun."""

Row = dict[str, Any]


class Results:
    """The sections in one file. Raises SystemExit where the file holds the other kind."""

    def __init__(self, path: Path, *, rehearsal: bool):
        self.path = path
        self.value: dict[str, Any] = {"rehearsal": rehearsal, "pieces": {}}
        if not path.exists():
            return
        try:
            self.value = json.loads(path.read_text())
            held = self.value["rehearsal"]
            self.value["pieces"].items()
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise SystemExit(f"{path} holds no session: {error!r}; name another --out") from None
        if held != rehearsal:
            kind = "a rehearsal" if held else "a session on a GPU"
            raise SystemExit(f"{path} holds {kind}, this is the other: name another --out")

    def section(self, piece: str) -> dict[str, Any]:
        """The section of a piece, an empty one if there was none."""
        empty: dict[str, Any] = {"finished": False, "rows": {}}
        section: dict[str, Any] = self.value["pieces"].setdefault(piece, empty)
        return section

    def is_finished(self, piece: str) -> bool:
        """Return whether every row of a piece was measured or has its reason."""
        return bool(self.value["pieces"].get(piece, {}).get("finished"))

    def drop(self, piece: str) -> None:
        """Forget a section, so that all of it is measured again."""
        self.value["pieces"].pop(piece, None)
        self.write()

    def write(self) -> None:
        """Replace the file at once: whoever reads it finds it whole."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        part = self.path.with_suffix(".part")
        part.write_text(json.dumps(self.value, indent=1) + "\n")
        os.replace(part, self.path)


class Piece:
    """A piece that is being measured: its rows come in one after the other."""

    def __init__(self, results: Results, name: str):
        self.name, self._results = name, results
        self._section = results.section(name)
        self._tries = self._section.setdefault("tries", {})

    @property
    def rows(self) -> dict[str, Row]:
        """The rows that there are."""
        rows: dict[str, Row] = self._section["rows"]
        return rows

    def row(self, name: str, measure: Callable[[], Row]) -> Row | None:
        """Measure a row, unless it is there; what goes wrong is its reason, and the next one comes.

        None: it could not be measured.
        """
        if name in self.rows:
            row = self.rows[name]
            return None if "reason" in row else row
        if self._tries.get(name, 0) >= TRIES:
            self.put(name, {"reason": f"it was begun {TRIES} times and did not end in time"})
            return None
        self._tries[name] = self._tries.get(name, 0) + 1
        self._results.write()
        began = time.monotonic()
        try:
            row = measure()
        except Exception as error:
            if not isinstance(error, Failed):
                traceback.print_exc()
            row = {"reason": _told(error)}
        row["took_s"] = round(time.monotonic() - began, 2)
        self.put(name, row)
        return None if "reason" in row else row

    def put(self, name: str, row: Row) -> None:
        """Write a row down, in the place of what it was before."""
        self.rows[name] = row
        self._results.write()
        print(f"{self.name}: {name}: {json.dumps(row)[:600]}", file=sys.stderr, flush=True)

    def without(self, reason: str, *names: str) -> None:
        """Write down why rows are not measured."""
        for name in names:
            if name not in self.rows:
                self.put(name, {"reason": reason})

    def finish(self, **facts: Any) -> None:
        """All rows are there."""
        del self._section["tries"]
        self._section.update(facts, finished=True)
        self._results.write()


def _told(error: Exception) -> str:
    """The words of an error; of several that came together, those of the first."""
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return str(error) if isinstance(error, Failed) else f"{type(error).__name__}: {error}"[-1500:]
