"""Values on record, which a change of the code is not to change.

check     compare a value with the one on record; with NIP_RECORD=1 record it instead
Steady    replaces what is drawn or measured anew each time: ids, times, seconds
"""

import json
import os
import re
from pathlib import Path
from typing import Any

_ID = re.compile(r"\b(file-|ftjob-|ftevent-|chatcmpl-|cmpl-|call_|req_)[0-9a-f]{12,}(-\d+)?")
_REFERRED = {"file", "ftjob"}
"""Ids of what other answers speak of: each has a number."""
_SECONDS = {"wall_s", "swap_s", "time_left_s"}
_TIMES = {"created", "created_at", "finished_at", "estimated_finish", "expires_at", "at"}
_OTHERS = {"pid", "disk_free_bytes", "configuration_digest", "version", "requests"}


def check(file: Path, name: str, value: Any) -> None:
    """Fail unless `value` is what `file` has under `name`."""
    record = json.loads(file.read_text()) if file.exists() else {}
    value = json.loads(json.dumps(value))
    if os.environ.get("NIP_RECORD") == "1":
        record[name] = value
        file.write_text(json.dumps(record, indent=1, sort_keys=True, ensure_ascii=False) + "\n")
        return
    assert name in record, f"{file.name} has no {name!r}: record it with NIP_RECORD=1"
    assert value == record[name]


class Steady:
    """Names in place of what is drawn or measured anew; a file or a job keeps its name."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}
        self._count: dict[str, int] = {}

    def __call__(self, value: Any) -> Any:
        if isinstance(value, dict):
            return {key: self._entry(key, item) for key, item in value.items()}
        if isinstance(value, list):
            return [self(item) for item in value]
        return _ID.sub(self._name, value) if isinstance(value, str) else value

    def name(self, text: str, name: str) -> None:
        """From now on `text` stands as `name`."""
        self._names[text] = name

    def _entry(self, key: str, value: Any) -> Any:
        if key in _OTHERS:
            return f"<{key}>"
        for keys, shown in ((_SECONDS, "seconds"), (_TIMES, "time")):
            if key in keys and isinstance(value, (int, float)):
                return f"<{shown}>"
        return self(value)

    def _name(self, match: re.Match[str]) -> str:
        kind = match[1].rstrip("-_")
        if kind not in _REFERRED:
            return f"<{kind}>"
        if match[0] not in self._names:
            self._count[kind] = self._count.get(kind, 0) + 1
            self._names[match[0]] = f"<{kind} {self._count[kind]}>"
        return self._names[match[0]]
