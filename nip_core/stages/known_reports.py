"""What tests said of solutions, in a journal: a build that goes on does not run them again.

KnownReports   the reports by key, those of builds before among them

A report that a clock or a busy machine ended is not kept, see `nip_core.problems.tested`.
"""

from collections.abc import Mapping
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from nip_core.errors import CorruptionError, DatasetError, StoreError
from nip_core.problems.sandbox import Isolation, TestReport
from nip_core.rollouts.journal import Journal

_DERIVED = ("passed", "failed", "errors", "wall_s")


class KnownReports:
    """The reports in a journal, and those that are added. Use as a context manager."""

    def __init__(self, path: Path, *, is_kept: bool = True) -> None:
        """Read the journal at `path`, if there is one; nothing is written unless `is_kept`."""
        self._path, self._is_kept, self._is_new = path, is_kept, not path.exists()
        self._journal: Journal | None = None
        self.by_key: dict[str, TestReport] = {}
        if not self._is_new:
            with closing(_opened(path)) as journal:
                try:
                    records = journal.replay()
                except CorruptionError as error:
                    what = str(error).partition(";")[0]
                    raise CorruptionError(f"{what}; delete it, and the tests run again") from error
            self.by_key = {record.pop("key"): _report_of(record) for record in records}

    def keep(self, reports: Mapping[str, TestReport]) -> None:
        """Make reports durable."""
        if self._is_kept and reports:
            if self._journal is None:
                self._journal = _opened(self._path)
            self._journal.append_all(_record_of(key, reports[key]) for key in reports)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._journal is None:
            return
        self._journal.close()
        # A source that gives no dataset leaves nothing behind.
        if isinstance(error, DatasetError) and self._is_new:
            self._journal.remove()
            if not any(self._path.parent.iterdir()):
                self._path.parent.rmdir()


def _opened(path: Path) -> Journal:
    try:
        return Journal(path)
    except StoreError as error:
        if isinstance(error.__cause__, BlockingIOError):
            raise StoreError(f"{path}: another build is at it; wait for it or stop it") from error
        raise


def _record_of(key: str, report: TestReport) -> dict[str, Any]:
    facts = {name: value for name, value in asdict(report).items() if name not in _DERIVED}
    return {"key": key, **facts}


def _report_of(record: Mapping[str, Any]) -> TestReport:
    return TestReport(
        status=record["status"],
        outcomes=tuple(record["outcomes"]),
        details=tuple(record["details"]),
        load_error=record["load_error"],
        wall_s=0.0,
        isolation=Isolation(**record["isolation"]),
    )
