"""The file of grades: a line is written when its row is graded, and is never graded again.

GradedFile   it, opened by one process at a time

A grade that a kill has cut short is removed when the file is opened, so at most the rows that were
being graded are lost. Of a file of anything else not a byte is changed.
"""

import contextlib
import fcntl
import json
import os
import re
import stat
from types import TracebackType

from nip_sandbox.grading.grade import Grade
from nip_sandbox.grading.rows import Row, RowError

_ID = re.compile(rb'("[^"\\]*(?:\\.[^"\\]*)*"|-?[0-9]+)(.*)', re.DOTALL)
_PASSED = (b"true", b"false", b"null")


class GradedFile:
    """A file of grades, new or resumed.

    Raises RowError if it can't be written, another process writes it, or a line is no grade.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._digests: dict[str | int, str] = {}
        try:
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
        except OSError as error:
            raise RowError(f"{path}: can't be written to ({error.strerror})") from None
        try:
            if stat.S_ISREG(os.fstat(self._descriptor).st_mode):  # and no device or pipe
                self._lock()
                self._read()
        except BaseException:
            os.close(self._descriptor)
            raise

    def __enter__(self) -> "GradedFile":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        os.close(self._descriptor)

    def has(self, row: Row) -> bool:
        """Tell whether the row is graded.

        Raises:
            RowError: another row with its id is: of other code, tests or limits.
        """
        digest = self._digests.get(row.id)
        if digest is not None and digest != row.digest:
            raise RowError(
                f"{row.place}: {self.path} has a grade of id {row.id!r} with other code, tests or "
                "limits; name another file for the grades, or give the row another id"
            )
        return digest is not None

    def append(self, grade: Grade) -> None:
        """Write a grade, whole, before the next one is.

        Raises:
            RowError: the file can't be written.
        """
        self._write(grade.as_line().encode("ascii"))
        self._digests[grade.id] = grade.digest

    def _write(self, data: bytes) -> None:
        try:
            while data:
                data = data[os.write(self._descriptor, data) :]
        except OSError as error:
            raise RowError(
                f"{self.path}: can't be written to ({error.strerror}); what it has is kept, and "
                "running again goes on"
            ) from None

    def _lock(self) -> None:
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RowError(
                f"{self.path}: another process writes grades to it; wait for it, or name another"
            ) from None
        except OSError:  # a file system without locks
            return

    def _read(self) -> None:
        """Read which rows are graded, and remove a last line that a kill has cut short."""
        whole = 0
        with open(self.path, "rb") as file:
            for number, line in enumerate(file, 1):
                if not line.endswith(b"\n") and _is_cut_short(line):
                    os.ftruncate(self._descriptor, whole)
                    return
                whole += len(line)
                self._note(line, number)
        if whole and not line.endswith(b"\n"):  # an editor has taken the end
            self._write(b"\n")

    def _note(self, line: bytes, number: int) -> None:
        try:
            grade = json.loads(line)
            identity, digest = grade["id"], grade["digest"]
            if not isinstance(identity, str | int) or not isinstance(digest, str):
                raise TypeError
            if not grade.keys() >= {"passed", "tests"}:
                raise KeyError
        except (ValueError, TypeError, KeyError, RecursionError):
            raise RowError(
                f"{self.path}:{number}: is no grade, and nothing is written over; name another file"
            ) from None
        self._digests[identity] = digest


def _is_cut_short(line: bytes) -> bool:
    """Tell whether `Grade.as_line` could have begun so, and gone on."""
    with contextlib.suppress(ValueError, RecursionError):
        json.loads(line)
        return False  # it is whole
    begin = b'{"id": '
    if not line.startswith(begin):
        return begin.startswith(line)
    identity = _ID.fullmatch(line, len(begin))
    if identity is None:  # it ends within the id
        return line[len(begin) :][:1] in (b"", b'"', b"-")
    nexts = [b', "passed": %s, "tests": [{"passed": ' % word for word in _PASSED]
    return any(identity[2].startswith(part) or part.startswith(identity[2]) for part in nexts)
