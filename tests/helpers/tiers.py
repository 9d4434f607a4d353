"""Which tests belong to `make test`, and the names of those that could not be run.

A test marked `long` belongs to `make test-long`, which sets NIP_THOROUGH=1, and is left out of
`make test`; ``long(WANTED)`` says by itself when it is wanted.
"""

import pytest
from thorough import THOROUGH


def leave_out_long(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Take the tests that are marked long out of `items`, where they are not wanted."""
    kept, out = [], []
    for item in items:
        mark = item.get_closest_marker("long")
        wanted = mark is None or (mark.args[0] if mark.args else THOROUGH)
        (kept if wanted else out).append(item)
    if out:
        config.hook.pytest_deselected(items=out)
        items[:] = kept


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Name each test that was skipped, with its reason."""
    for report in terminalreporter.stats.get("skipped", []):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple | list) else ""
        terminalreporter.write_line(f"{report.nodeid}: {reason}")
