"""Files from any sender: limits on their size, and on the content of YAML.

read_text    a file -> text; a pipe or a device is read no further than a file
parse_yaml   YAML -> value

Both raise ReadError with the reason in words, to which the caller adds the place: "is not YAML: …"
of a text that breaks its rules, "is not taken: …" of YAML that is refused. JSON: `bounds`.
"""

import os
import select
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from nip_base.formats.bounds import MAX_DEPTH, MAX_DIGITS, ReadError

MAX_YAML_BYTES = 4 * 1024 * 1024
MAX_VALUES = 500_000
"""Of YAML, counted each time that an alias repeats them."""
PIPE_S = 30.0
"""How long a pipe may be without a writer, or without a first byte."""
_MAX_BITS = 14_284  # 10 ** MAX_DIGITS
_SHOWN = 40  # characters


def read_text(path: Path, most_bytes: int = MAX_YAML_BYTES, pipe_s: float = PIPE_S) -> str:
    """The UTF-8 text of a file, with ``\\n`` for line ends.

    A pipe, as a shell makes one of ``<(command)``, is read to its end. Raises ReadError for a file
    that can't be read, is larger, has no end, or is a pipe into which nothing is written for
    `pipe_s` seconds while it is open.
    """
    try:
        # Without waiting for a writer of a pipe.
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
        try:
            is_pipe = stat.S_ISFIFO(os.fstat(file).st_mode)
            os.set_blocking(file, True)
            content = _read(file, most_bytes, pipe_s if is_pipe else None)
        finally:
            os.close(file)
    except ReadError:
        raise
    except OSError as error:
        raise ReadError(f"can't be read ({error.strerror})") from None
    except ValueError as error:  # a NUL byte, or half a surrogate pair
        raise ReadError(f"can't be read (it is no name of a file: {error})") from None
    if len(content) > most_bytes:
        raise ReadError(f"is larger than {most_bytes} bytes, or has no end")
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError:
        raise ReadError("is not UTF-8 text") from None
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _has_something(pipe: int, within_s: float) -> bool:
    waiting = select.poll()
    waiting.register(pipe, select.POLLIN)
    return bool(waiting.poll(within_s * 1000))


def _read(file: int, most_bytes: int, pipe_s: float | None) -> bytes:
    """Read to the end, or to the first byte too many; from a pipe wait for each part so long."""
    parts: list[bytes] = []
    rest_bytes = most_bytes + 1
    while rest_bytes:
        if pipe_s is not None and not _has_something(file, pipe_s):
            raise ReadError(
                f"is a pipe into which nobody wrote for {pipe_s:g} s"
                if not parts
                else f"is a pipe that is still open, and nothing was written for {pipe_s:g} s"
            )
        if not (part := os.read(file, min(rest_bytes, 1 << 20))):
            break
        parts.append(part)
        rest_bytes -= len(part)
    return b"".join(parts)


def parse_yaml(text: str, *, plain_numbers: bool = True) -> Any:
    """The value of YAML; None of an empty text.

    No key may stand twice in a mapping, of which YAML lets the last one win. Where `plain_numbers`,
    ``12:30:45``, ``017`` and ``2024-01-01`` are refused, which YAML 1.1
    takes for 45045, 15 and a day.

    Raises ReadError, which names the line: also for a value that is nested too deeply, repeats too
    much by aliases, or is no value of its kind.
    """
    loader = _Loader(text) if plain_numbers else _AnyNumber(text)
    try:
        return loader.get_single_data()
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        problem = getattr(error, "problem", None) or type(error).__name__
        line_words = f" (line {mark.line + 1})" if mark is not None else ""
        is_yaml = isinstance(error, yaml.constructor.ConstructorError)
        verdict = "is not taken" if is_yaml else "is not YAML"
        raise ReadError(f"{verdict}: {problem}{line_words}") from None
    finally:
        loader.dispose()


class _Refused(yaml.constructor.ConstructorError):
    def __init__(self, problem: str, node: Any):
        super().__init__(problem=problem, problem_mark=node.start_mark)


class _AnyNumber(yaml.SafeLoader):
    """A SafeLoader with the bounds of `parse_yaml`."""

    def __init__(self, text: str):
        try:
            super().__init__(text)
        except yaml.reader.ReaderError as error:
            character, line = chr(error.character), text.count("\n", 0, error.position) + 1
            raise ReadError(
                f"is not YAML: the character {character!r} may not stand in it (line {line})"
            ) from None
        self._depth = 0
        self._values: dict[int, int] = {}  # by node, once it is whole

    def compose_node(self, parent: Any, index: Any) -> Any:
        """Count the values of a node, repeated by aliases too, before any object is made of it."""
        is_alias = self.check_event(yaml.AliasEvent)
        if not is_alias and self._depth >= MAX_DEPTH:
            problem = f"it is nested more than {MAX_DEPTH} deep"
            event: Any = self.peek_event()  # type: ignore[no-untyped-call]
            raise _Refused(problem, event)
        self._depth += 1
        node = super().compose_node(parent, index)
        self._depth -= 1
        if not is_alias:
            self._values[id(node)] = 1 + sum(self._values[id(part)] for part in _parts(node))
        elif id(node) not in self._values:
            raise _Refused("an alias stands for what it is a part of", node)
        if self._values[id(node)] > MAX_VALUES:
            raise _Refused(f"it has more than {MAX_VALUES} values", node)
        return node

    def compose_scalar_node(self, anchor: Any) -> Any:
        """Refuse half a surrogate pair: no writable text has one."""
        node: Any = super().compose_scalar_node(anchor)
        if any("\ud800" <= character <= "\udfff" for character in node.value):
            raise _Refused("it has half a surrogate pair", node)
        return node

    def construct_object(self, node: Any, deep: bool = False) -> Any:
        """Name the place of a value that is none of its kind, like the 13th month of a date."""
        try:
            return super().construct_object(node, deep)
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
            kind = node.tag.rpartition(":")[2]
            raise _Refused(f"{_abbreviate(node)} can't be read as {kind}", node) from None

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        """Refuse a doubled key, and take `on` and `no` as keys for words, not for truth values."""
        seen_keys: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                continue
            key.tag = key.tag.replace(":bool", ":str")
            if key.value in seen_keys:
                raise _Refused(f"the key {_abbreviate(key)} stands twice", key)
            seen_keys.add(key.value)
        return super().construct_mapping(node, deep)

    def construct_yaml_int(self, node: Any) -> int:
        """Refuse an integer too large to be written again."""
        if len(node.value) <= MAX_DIGITS:
            value = super().construct_yaml_int(node)
            if abs(value).bit_length() <= _MAX_BITS:
                return int(value)
        raise _Refused(f"{_abbreviate(node)} has more than {MAX_DIGITS} digits", node)

    def refuse_kind(self, node: Any) -> Any:
        """Refuse what JSON has no form for, and so no setting."""
        kind = node.tag.rpartition(":")[2]
        raise _Refused(f"JSON has no form for a value of the kind {kind}", node)


class _Loader(_AnyNumber):
    """Refuses also numbers with another meaning to their writer."""

    def construct_yaml_int(self, node: Any) -> int:
        value = super().construct_yaml_int(node)
        digits = node.value.lstrip("+-").replace("_", "")
        if ":" in digits or (len(digits) > 1 and digits.isdecimal() and digits[0] == "0"):
            raise _other_number(node, value)
        return value

    def construct_yaml_timestamp(self, node: Any) -> Any:
        super().construct_yaml_timestamp(node)
        raise _Refused(f"{_abbreviate(node)} is a date in YAML: write it in quotes", node)

    def construct_yaml_float(self, node: Any) -> float:
        value = float(super().construct_yaml_float(node))
        if ":" in node.value:
            raise _other_number(node, value)
        return value


def _other_number(node: Any, value: float) -> _Refused:
    base = "60" if ":" in node.value else "8"
    problem = f"{_abbreviate(node)} is {value} in YAML 1.1, to base {base}"
    return _Refused(f"{problem}: write that number, or quotes around a text", node)


def _register(loader: Any) -> None:
    """Register the methods for their tags: PyYAML keeps them as functions of its own class."""
    readers: dict[str, Callable[[Any, Any], Any]] = {
        "int": loader.construct_yaml_int,
        "float": loader.construct_yaml_float,
        "timestamp": loader.construct_yaml_timestamp,
        **dict.fromkeys(("binary", "set", "omap", "pairs"), loader.refuse_kind),
    }
    for name, method in readers.items():
        loader.add_constructor(f"tag:yaml.org,2002:{name}", method)


_register(_AnyNumber)
_register(_Loader)


def _parts(node: Any) -> list[Any]:
    if isinstance(node, yaml.MappingNode):
        return [part for pair in node.value for part in pair]
    return list(node.value) if isinstance(node, yaml.SequenceNode) else []


def _abbreviate(node: Any) -> str:
    text = str(node.value)
    return repr(text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…")
