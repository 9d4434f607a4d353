"""Protobuf's encoding, as far as Tinker's messages need it: no schema compiler, no package.

read_fields       the fields of a message, one after the other, without a copy of their bytes
Fields            a message's fields by number, each of them known and of its right kind
write_number ...  the bytes of one field

Whatever is wrong with the bytes is a `WireError`. A message's bytes are read where they lie, and
`Budget` bounds how many values one body may have: two bytes of an empty message would otherwise
be several hundred in memory.
"""

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

Kind = Literal["number", "double", "bytes"]
"""How a field is encoded: a varint, eight bytes, or a length and so many bytes."""
Value = int | float | memoryview

_KINDS: Mapping[int, Kind] = {0: "number", 1: "double", 2: "bytes"}
_MOST_FIELD = 2**29 - 1
_CONTINUES, _SEVEN = 0x80, 0x7F


class WireError(ValueError):
    """Bytes that are no message of the schema; the message says what and where."""


@dataclass
class Budget:
    """So many values may still be read of a body."""

    left: int

    def take(self, where: str) -> None:
        """Count one value. Raises WireError if there are too many."""
        self.left -= 1
        if self.left < 0:
            raise WireError(f"{where}: the message has too many values; send it in several")


def read_fields(data: memoryview, where: str, budget: Budget) -> Iterator[tuple[int, Kind, Value]]:
    """Yield (number, kind, value) of each field. Raises WireError for what is no message."""
    at, end = 0, len(data)
    while at < end:
        budget.take(where)
        key, at = _read_varint(data, at, where)
        number, kind = key >> 3, _KINDS.get(key & 7)
        if kind is None or not 1 <= number <= _MOST_FIELD:
            raise WireError(f"{where}: a field has the number {number} and the wire type {key & 7}")
        if kind == "number":
            value, at = _read_varint(data, at, where)
            yield number, kind, value
        elif kind == "double":
            if at + 8 > end:
                raise WireError(f"{where}: field {number} is cut off")
            (double,) = struct.unpack_from("<d", data, at)
            at += 8
            yield number, kind, double
        else:
            length, at = _read_varint(data, at, where)
            if at + length > end:
                raise WireError(
                    f"{where}: field {number} says {length} bytes, {end - at} are there"
                )
            yield number, kind, data[at : at + length]
            at += length


class Fields:
    """The fields of one message. `schema` has the kind of each field by its number.

    Raises WireError for a field that the schema does not have, or of another kind: what it asks
    for would otherwise be ignored.
    """

    def __init__(self, data: memoryview, where: str, budget: Budget, schema: Mapping[int, Kind]):
        self.where, self._budget = where, budget
        self._values: dict[int, list[Value]] = {}
        for number, kind, value in read_fields(data, where, budget):
            expected = schema.get(number)
            # Repeated numbers may come packed into bytes, or each by itself.
            if expected is None or (kind != expected and {kind, expected} != {"number", "bytes"}):
                raise WireError(f"{where}: field {number} ({kind}) is not known to this server")
            self._values.setdefault(number, []).append(value)

    def __contains__(self, number: int) -> bool:
        return number in self._values

    def number(self, number: int, default: int = 0) -> int:
        """The last value of an integer field, as a signed one."""
        value = self._values.get(number, [default])[-1]
        if not isinstance(value, int):
            raise WireError(f"{self.where}: field {number} is no number")
        return value - 2**64 if value >= 2**63 else value

    def double(self, number: int) -> float:
        """The last value of a field of eight bytes."""
        value = self._values.get(number, [0.0])[-1]
        if not isinstance(value, float):
            raise WireError(f"{self.where}: field {number} is no double")
        return value

    def raw(self, number: int) -> memoryview:
        """The last value of a field of bytes."""
        value = self._values.get(number, [memoryview(b"")])[-1]
        if not isinstance(value, memoryview):
            raise WireError(f"{self.where}: field {number} has no bytes")
        return value

    def text(self, number: int) -> str:
        """The last value of a field of text."""
        try:
            return bytes(self.raw(number)).decode()
        except UnicodeDecodeError:
            raise WireError(f"{self.where}: field {number} is no UTF-8") from None

    def messages(self, number: int) -> list[memoryview]:
        """All values of a field of bytes."""
        values = self._values.get(number, [])
        found = [value for value in values if isinstance(value, memoryview)]
        if len(found) != len(values):
            raise WireError(f"{self.where}: field {number} has no bytes")
        return found

    def numbers(self, number: int) -> list[int]:
        """All values of a repeated integer field, packed or not."""
        integers: list[int] = []
        for value in self._values.get(number, []):
            if isinstance(value, int):
                integers.append(value)
                continue
            if isinstance(value, memoryview):
                at = 0
                while at < len(value):
                    self._budget.take(self.where)
                    one, at = _read_varint(value, at, self.where)
                    integers.append(one)
        return [value - 2**64 if value >= 2**63 else value for value in integers]


def _read_varint(data: memoryview, at: int, where: str) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(data):
            raise WireError(f"{where}: it is cut off")
        byte = data[at]
        at += 1
        value |= (byte & _SEVEN) << shift
        if byte < _CONTINUES:
            break
        shift += 7
        if shift > 63:
            raise WireError(f"{where}: a number has more than ten bytes")
    if value >= 2**64:
        raise WireError(f"{where}: a number has more than 64 bits")
    return value, at


def write_varint(value: int) -> bytes:
    """Encode an integer, a negative one in ten bytes."""
    value &= 2**64 - 1
    out = bytearray()
    while value >= _CONTINUES:
        out.append((value & _SEVEN) | _CONTINUES)
        value >>= 7
    out.append(value)
    return bytes(out)


def write_number(number: int, value: int) -> bytes:
    """Encode an integer field; 0 is left out, as proto3 does."""
    return write_varint(number << 3) + write_varint(value) if value else b""


def write_double(number: int, value: float) -> bytes:
    """Encode a field of eight bytes."""
    return write_varint(number << 3 | 1) + struct.pack("<d", value)


def write_bytes(number: int, value: bytes) -> bytes:
    """Encode a field of bytes, text or a message. An empty one is written, too."""
    return write_varint(number << 3 | 2) + write_varint(len(value)) + value


def write_packed(number: int, values: Iterator[int] | list[int]) -> bytes:
    """Encode a repeated integer field; nothing where there is none."""
    packed = b"".join(map(write_varint, values))
    return write_bytes(number, packed) if packed else b""
