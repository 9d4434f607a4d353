"""Which tests belong to `make test`, and the names of those that could not be run.

A test marked `long` belongs to `make test-long`, which sets NIP_THOROUGH=1, and is left out of
`make test`; ``long(WANTED)`` says by itself when it is wanted. With NIP_LONG_PART=K/N a run keeps a
part of what is long, by files: the K-th of N parts, which are disjoint and together everything. With
NIP_LONG_ALONE=1 it keeps nothing else: what is marked, the folders, and files that try more examples
where there is time (they import `thorough`).
"""

import os
import zlib
from pathlib import Path

import pytest
import thorough

LONG_ALONE = os.environ.get("NIP_LONG_ALONE") == "1"
LONG_PART = os.environ.get("NIP_LONG_PART", "")
ROOT = Path(__file__).parents[2]


def is_in_part(path: Path, part: str = LONG_PART) -> bool:
    """Whether a file belongs to the part "K/N" of what is long; without a part, every file does."""
    if not part:
        return True
    first, _, second = part.partition("/")
    number, of = (int(text) if text.isdecimal() else 0 for text in (first, second))
    if not 1 <= number <= of:
        raise pytest.UsageError(f"NIP_LONG_PART: K/N with K from 1 to N is needed, got {part!r}")
    return zlib.crc32(path.name.encode()) % of == number - 1


def leave_out_long(
    config: pytest.Config, items: list[pytest.Item], tiers: tuple[str, ...] = ()
) -> None:
    """Take what is long and not wanted out of `items`: marked tests, and files of the folders `tiers`."""
    kept, out = [], []
    folders = [ROOT / tier for tier in tiers]
    long_files = {
        path
        for path in {item.path for item in items}
        if any(path.is_relative_to(folder) for folder in folders)
    }
    for item in items:
        mark = item.get_closest_marker("long")
        if item.path in long_files:
            wanted = is_in_part(item.path)
        elif mark is None:
            wanted = True
        elif mark.args:
            wanted = mark.args[0]
        else:
            wanted = is_in_part(item.path) if LONG_PART else thorough.THOROUGH
        is_long = item.path in long_files or mark is not None or _tries_more(item)
        (kept if wanted and (is_long or not LONG_ALONE) else out).append(item)
    if out:
        config.hook.pytest_deselected(items=out)
        items[:] = kept


def _tries_more(item: pytest.Item) -> bool:
    """Whether the file of a test tries more where there is time."""
    names = vars(getattr(item, "module", None) or object)
    return "THOROUGH" in names or names.get("examples") is thorough.examples


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Name each test that was skipped, with its reason."""
    for report in terminalreporter.stats.get("skipped", []):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple | list) else ""
        terminalreporter.write_line(f"{report.nodeid}: {reason}")
