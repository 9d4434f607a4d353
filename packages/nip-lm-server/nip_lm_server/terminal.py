"""The server's prints and logs: a terminal shows the texts of clients and obeys none.

say        in place of `print`
log_here   the log of this process, on standard error
"""

import json
import logging
import re
import sys
from typing import TextIO

_FORMAT = "%(asctime)s %(levelname)s %(name)s %(message)s"
_UNPLAIN = re.compile(r"[^\n\t -~]")


def say(text: object, *, file: TextIO | None = None, flush: bool = False) -> None:
    """Print a text, with its invisible characters but line ends and tabs escaped as in JSON."""
    print(_printable(str(text)), file=file, flush=flush)


def log_here() -> None:
    """Log to standard error, from the level of information on."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Formatter(_FORMAT))
    logging.basicConfig(level=logging.INFO, handlers=[handler])


class _Formatter(logging.Formatter):
    """Escapes all of a record, also the traceback."""

    def format(self, record: logging.LogRecord) -> str:
        return _printable(super().format(record))


def _printable(text: str) -> str:
    return _UNPLAIN.sub(lambda match: _visible(match[0]), text)


def _visible(character: str) -> str:
    return character if character.isprintable() else json.dumps(character)[1:-1]
