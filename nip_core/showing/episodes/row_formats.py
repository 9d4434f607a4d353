"""Rows of episodes as lines of JSON and of CSV.

encode_row     a row as a line of JSON, with exactly the texts that were recorded; decode_row: back
CsvColumns     which columns rows have, and their cells
write_csv_lines lines of cells; as_cell: one of them; without_guards: the text of one

A spreadsheet executes nothing of a CSV, for all texts of models, and wherever it splits the file. A
program for German splits at semicolons, takes no quotation mark in the middle of a field for one,
and so begins a new cell at each semicolon and at each line of a text. So in a text an apostrophe
stands before every sign that would begin a formula after a comma, a semicolon, a tab, a line's end
or at the beginning, and `without_guards` takes these apostrophes away again. An episode's key is
left as it is, to be joined with: of one that begins with a hyphen a spreadsheet makes an unknown
name. Control codes are shown as JSON escapes them, and each line end is one. A number here is a
number there, and stands without quotation marks. The file begins with a byte order mark:
without it Excel reads UTF-8 as something else; pandas, Polars and DuckDB pass over it.
"""

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, fields
from functools import cached_property

import orjson

from nip_core.game.native_calls import spell_out
from nip_core.game.render import ChatMessage
from nip_core.redaction import printable
from nip_core.showing.episodes.episode_rows import ReadableEpisode, ReadableMessage

CSV_BEGIN = "\ufeff"
_SIGNS = "[=+\\-@\u2212\ufe62\ufe63\ufe66\ufe6b\uff0b\uff0d\uff1d\uff20]"
"""Signs that a spreadsheet may take for the beginning of a formula, full-width forms too."""
_CELL_BEGINS = r"(?:^|[,;\t\r\n])[\s\"]*"
"""Where a cell begins in one reader or another, with the signs that it may pass over."""
_UNGUARDED = re.compile(f"({_CELL_BEGINS})('*{_SIGNS})")
_GUARDED = re.compile(f"({_CELL_BEGINS})'('*{_SIGNS})")
_SIGN = re.compile(_SIGNS)
_KEY = re.compile(r"[A-Za-z0-9_-]{16}")
_HIDDEN = re.compile("[\u007f-\u009f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Signs that readers may take for the end of a line, that turn letters around; halves of pairs."""
_DELETE = b"\x7f"
_NAMES = [field.name for field in fields(ReadableEpisode)]
_NAMES_WITHOUT_ASKED = [name for name in _NAMES if name != "asked"]
_BEFORE_TEXTS = _NAMES[: _NAMES.index("columns")]
_AFTER_TEXTS = _NAMES[_NAMES.index("asked") + 1 :]

Cell = str | int | float | bool | list[str] | None


def encode_row(row: ReadableEpisode, with_asked: bool = True) -> bytes:
    """Write a row as a line of JSON, without the line's end."""
    names = _NAMES if with_asked else _NAMES_WITHOUT_ASKED
    try:
        line = orjson.dumps({name: getattr(row, name) for name in names})
    except TypeError:  # half of a pair, which UTF-8 can't have and an escape can
        values = asdict(row)
        line = json.dumps({name: values[name] for name in names}, separators=(",", ":")).encode()
    if line.isascii() and _DELETE not in line:
        return line  # as most are
    return _HIDDEN.sub(lambda match: f"\\u{ord(match[0]):04x}", line.decode()).encode()


def decode_row(line: bytes) -> ReadableEpisode:
    """Read a line of `encode_row`."""
    try:
        value = orjson.loads(line)
    except ValueError:  # half of a pair
        value = json.loads(line)
    value.setdefault("asked", None)
    value["messages"] = [ReadableMessage(**message) for message in value["messages"]]
    return ReadableEpisode(**value)


def as_cell(value: Cell) -> str:
    """Write a value as it stands in a line: a spreadsheet shows it, and executes nothing."""
    if value is None or value == "":
        return ""
    if isinstance(value, bool):
        return "TRUE" if value else "FALSE"
    if isinstance(value, int | float):
        return repr(value)
    return _quote(_guard(value if isinstance(value, str) else ", ".join(value)))


def without_guards(text: str) -> str:
    """Take away the apostrophes by which a text of a CSV begins no formula."""
    return _GUARDED.sub(r"\1\2", text)


def write_csv_lines(rows: Iterable[Sequence[str]]) -> Iterator[bytes]:
    """Write rows of cells, as `as_cell` gives them, as lines of RFC 4180, in UTF-8."""
    for row in rows:
        yield f"{','.join(row)}\r\n".encode("utf-8", "replace")


def _guard(text: str) -> str:
    # Most texts are plain, and there are many.
    clean = text if text.isprintable() else printable(text.replace("\r\n", "\n"))
    return _UNGUARDED.sub(r"\1'\2", clean) if _SIGN.search(clean) else clean


def _quote(text: str) -> str:
    return '"' + text.replace('"', '""') + '"'


def _key_cell(key: str) -> str:
    """Write the key of an episode; one that a table of nip's can't have is a text like others."""
    return _quote(key) if _KEY.fullmatch(key) else as_cell(key)


class CsvColumns:
    """The columns of some rows: those that every row has, and further ones of these rows."""

    def __init__(self, with_asked: bool) -> None:
        """Knows no row yet."""
        self._asked = ("asked",) if with_asked else ()
        self._texts: dict[str, None] = {}
        self._agents: dict[str, None] = {}
        self._turns: set[tuple[int, str]] = set()

    def add(self, row: ReadableEpisode) -> None:
        """Take the columns of a row."""
        self._texts.update(dict.fromkeys(row.columns))
        self._agents.update(dict.fromkeys(row.rewards))
        self._turns.update((message.round, message.agent) for message in row.messages)

    @cached_property
    def _turns_in_order(self) -> list[tuple[int, str]]:
        places = {agent: place for place, agent in enumerate(self._agents)}
        return sorted(
            self._turns, key=lambda turn: (turn[0], places.get(turn[1], len(places)), turn[1])
        )

    def names(self) -> list[str]:
        """List the names of all columns, in their order. No row is to come after that."""
        return [
            *_BEFORE_TEXTS,
            *(f"column_{name}" if name in _NAMES else name for name in self._texts),
            *(f"round_{round_}_{agent}" for round_, agent in self._turns_in_order),
            *self._asked,
            *(f"reward_{agent}" for agent in self._agents),
            *_AFTER_TEXTS,
        ]

    def cells(self, row: ReadableEpisode) -> list[str]:
        """Write a row, a cell for each of `names`."""
        # The last answer of a turn is the valid one, or there is none.
        texts = {(message.round, message.agent): message.text for message in row.messages}
        values: list[Cell] = [
            *(getattr(row, name) for name in _BEFORE_TEXTS),
            *map(row.columns.get, self._texts),
            *map(texts.get, self._turns_in_order),
            *(None if row.asked is None else _write_chat(row.asked) for _ in self._asked),
            *map(row.rewards.get, self._agents),
            *(getattr(row, name) for name in _AFTER_TEXTS),
        ]
        cells = [as_cell(value) for value in values]
        cells[_BEFORE_TEXTS.index("key")] = _key_cell(row.key)
        return cells


def _write_chat(chat: Sequence[ChatMessage]) -> str:
    """Write a chat as one text, each message under its speaker."""
    return "\n\n".join(
        f"[{', '.join(filter(None, (message['role'], message.get('name'))))}]\n{spell_out(message)}"
        for message in chat
    )
