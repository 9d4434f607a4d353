"""The server's prints and logs: a terminal shows the texts of clients and obeys none.

say         in place of `print`
printable   a text as `say` prints it
hide_users  a text without the users and passwords in its addresses
log_here    the log of this process, on standard error
"""

import json
import logging
import re
import sys
from typing import TextIO

_FORMAT = "%(asctime)s %(levelname)s %(name)s %(message)s"
_UNPLAIN = re.compile(r"[^\n\t -~]")
_USER = re.compile(r"(?<=://)[^\s'\"<>]+@")


def say(text: object, *, file: TextIO | None = None, flush: bool = False) -> None:
    """Print a text, with its invisible characters but line ends and tabs escaped as in JSON."""
    print(printable(str(text)), file=file, flush=flush)


def log_here() -> None:
    """Log to standard error, from the level of information on."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Formatter(_FORMAT))
    logging.basicConfig(level=logging.INFO, handlers=[handler])


class _Formatter(logging.Formatter):
    """Escapes all of a record, also the traceback."""

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))


def hide_users(text: str) -> str:
    """Replace user and password, before the last @ in each address, by ``***``."""
    return _USER.sub("***@", text)


def printable(text: str) -> str:
    """Escape a text's invisible characters but line ends and tabs, as JSON does."""
    return _UNPLAIN.sub(lambda match: _visible(match[0]), text)


def _visible(character: str) -> str:
    return character if character.isprintable() else json.dumps(character)[1:-1]
