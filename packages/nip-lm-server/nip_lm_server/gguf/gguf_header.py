"""The header of a GGUF file against the file's size, before any library believes it.

check_header   raises GgufError for numbers that the file has no room for

A file says how many fields, items and weights it has. Libraries allocate, or count, by these
numbers, so a file of some bytes could keep a machine busy for days. Here every count is compared
with the file, in the order of its bytes; nothing is kept.
"""

import struct
from pathlib import Path
from typing import BinaryIO

from nip_lm_server.gguf.gguf_tokenizer import GgufError

_SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
"""Bytes of a value by its kind."""
_TEXT, _LIST = 8, 9
_LEAST_FIELD = 8 + 4 + 1  # bytes: the length of its name, its kind, a value
_LEAST_TENSOR = 8 + 4 + 4 + 8  # bytes: the length of its name, its dimensions, its kind, its place
_MOST_DIMENSIONS = 4
_WEIGHTS_PER_BYTE = 8
"""The smallest kinds of blocks have more than a bit for each weight."""


class _Header:
    """A file that is read from its beginning, never past its end."""

    def __init__(self, file: BinaryIO, size: int, name: str):
        self._file, self.size, self._name = file, size, name
        self.order = "<"

    def number(self, form: str) -> int:
        raw = self._file.read(struct.calcsize(form))
        if len(raw) < struct.calcsize(form):
            self.refuse("it ends within its header")
        value: int = struct.unpack(self.order + form, raw)[0]
        return value

    def skip(self, count: int, unit: str) -> None:
        self.check(count, 1, unit)
        self._file.seek(count, 1)

    def check(self, count: int, least_bytes: int, unit: str) -> None:
        """Raise GgufError where the rest of the file is too short for so many units."""
        rest = self.size - self._file.tell()
        if count * least_bytes > rest:
            self.refuse(f"it says that it has {count} {unit}, and {rest} bytes are left in it")

    def refuse(self, reason: str) -> None:
        raise GgufError(f"{self._name}: {reason}; it is damaged, or no model")


def check_header(path: Path) -> None:
    """Raise GgufError for a file whose header has numbers too large for the file."""
    with path.open("rb") as file:
        header = _Header(file, path.stat().st_size, path.name)
        if file.read(4) != b"GGUF":
            header.refuse("it does not begin as a GGUF file")
        # A file of a machine with the other order of bytes has its version in the upper half.
        if header.number("I") & 0xFFFF == 0:
            header.order = ">"
        tensors, fields = header.number("Q"), header.number("Q")
        header.check(tensors, _LEAST_TENSOR, "tensors")
        header.check(fields, _LEAST_FIELD, "fields")
        for _ in range(fields):
            header.skip(header.number("Q"), "bytes in the name of a field")
            _skip_value(header, header.number("I"))
        for _ in range(tensors):
            _check_tensor(header)


def _skip_value(header: _Header, kind: int) -> None:
    if kind == _TEXT:
        header.skip(header.number("Q"), "bytes in a text")
    elif kind != _LIST:
        header.skip(_find_size(header, kind), "bytes in a value")
    else:
        item, count = header.number("I"), header.number("Q")
        if item == _LIST:
            header.refuse("it has lists in a list")
        if item != _TEXT:
            header.skip(count * _find_size(header, item), "bytes in a list")
            return
        header.check(count, 8, "texts in a list")
        for _ in range(count):
            header.skip(header.number("Q"), "bytes in a text")


def _find_size(header: _Header, kind: int) -> int:
    if kind not in _SIZES:
        header.refuse(f"it has a value of the kind {kind}")
    return _SIZES[kind]


def _check_tensor(header: _Header) -> None:
    header.skip(header.number("Q"), "bytes in the name of a tensor")
    dimensions = header.number("I")
    if dimensions > _MOST_DIMENSIONS:
        header.refuse(f"it has a tensor of {dimensions} dimensions, {_MOST_DIMENSIONS} at most")
    weights = 1
    for _ in range(dimensions):
        weights *= header.number("Q")
    header.number("I")
    start = header.number("Q")
    if weights > header.size * _WEIGHTS_PER_BYTE or start > header.size:
        header.refuse(f"it has a tensor of {weights} weights at byte {start} of {header.size}")
