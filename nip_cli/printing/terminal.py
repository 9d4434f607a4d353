"""The printing of `nip`: a terminal shows every text and obeys none.

A text of a model, a data set or a server may have codes in it that set a terminal's title, hide a
line, make a link or turn letters around. Each is printed as JSON escapes it: ESC is ``\\u001b``.
"""

import logging
import sys
import traceback
from types import TracebackType
from typing import IO, Any

from nip_core.redaction import printable


def say(text: object = "", *, file: IO[str] | None = None, flush: bool = False) -> None:
    """Print a text on standard output or `file`; its line ends and tabs stay."""
    print(printable(str(text)), file=file, flush=flush)


class _Record(logging.LogRecord):
    """A log record, and the traceback with it."""

    def getMessage(self) -> str:  # noqa: N802 (the standard library's)
        return printable(super().getMessage())

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "exc_text" and isinstance(value, str):
            value = printable(value)
        super().__setattr__(name, value)


def guard() -> None:
    """Make what is logged or raised from here to the end of this process printable."""
    logging.setLogRecordFactory(_Record)
    sys.excepthook = _show_traceback


def _show_traceback(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    say("".join(traceback.format_exception(kind, error, trace)).rstrip(), file=sys.stderr)
