"""The test reports of solutions, in a journal: a resumed build does not run them again.

KnownReports   the reports by key, those of builds before among them

A report that a clock or a busy machine ended is not kept, see `nip_problems.tested`.
"""

from collections.abc import Mapping
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from shutil import copy
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Any, Self

from nip_core.errors import CorruptionError, DatasetError, StoreError
from nip_core.rollouts.storage.journal import Journal
from nip_sandbox.sandbox import Isolation, TestReport

_DERIVED = ("passed", "failed", "errors", "wall_s")


class KnownReports:
    """The reports in a journal, and those that are added. Use as a context manager."""

    def __init__(self, path: Path, *, is_kept: bool = True) -> None:
        """Read the journal at `path`, if there is one, and hold it until the end.

        Unless `is_kept` a copy is read, so that nothing is written and no other process waits.
        """
        self._path, self._is_new = path, not path.exists()
        self._journal: Journal | None = None
        self._has_more = False
        self.by_key: dict[str, TestReport] = {}
        if is_kept:
            self._journal = _opened(path)
            try:
                self.by_key = _read(self._journal, path)
            except BaseException:
                self._journal.close()
                raise
        elif not self._is_new:
            with TemporaryDirectory() as place:
                with closing(_opened(Path(copy(path, place)))) as journal:
                    self.by_key = _read(journal, path)

    def keep(self, reports: Mapping[str, TestReport]) -> None:
        """Make reports durable."""
        if self._journal is not None and reports:
            self._journal.append_all(_record_of(key, reports[key]) for key in reports)
            self._has_more = True

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
        if self._is_new and (isinstance(error, DatasetError) or not self._has_more):
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


def _read(journal: Journal, path: Path) -> dict[str, TestReport]:
    try:
        records = journal.replay()
    except CorruptionError as error:
        message = str(error).partition(";")[0].replace(journal.name, str(path))
        raise CorruptionError(f"{message}; delete it, and the tests run again") from error
    return {record.pop("key"): _report_of(record) for record in records}


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
