"""Where the keys of a YAML file stand, for errors.

Written      the lines of keys, and plain values as they were written
read_written both, of a file's text
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

Keys = tuple[str, ...]


@dataclass(frozen=True)
class Written:
    """The lines and the texts of a YAML file, by the keys that lead to them."""

    lines: Mapping[Keys, int]
    """From 1."""
    texts: Mapping[Keys, str]
    """Plain values before YAML reads them: "yes" is no truth value here."""

    def find_line(self, keys: Sequence[Any]) -> int | None:
        """Find the line of a key, or of the nearest block around it."""
        address = tuple(map(str, keys))
        for length in range(len(address), 0, -1):
            if address[:length] in self.lines:
                return self.lines[address[:length]]
        return None


def read_written(text: str) -> Written:
    """Read both of a text that `parse_yaml` has read without an error."""
    lines: dict[Keys, int] = {}
    texts: dict[Keys, str] = {}
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    for keys, line, value in _walk(root, ()):
        lines[keys] = line
        if isinstance(value, yaml.ScalarNode):
            texts[keys] = value.value
    return Written(lines, texts)


def _walk(node: Any, parents: Keys) -> Iterator[tuple[Keys, int, Any]]:
    if isinstance(node, yaml.MappingNode):
        pairs = [(str(key.value), key, value) for key, value in node.value]
    elif isinstance(node, yaml.SequenceNode):
        pairs = [(str(number), value, value) for number, value in enumerate(node.value)]
    else:
        return
    for name, key, value in pairs:
        yield (*parents, name), key.start_mark.line + 1, value
        if len(parents) < 2:  # no setting stands deeper
            yield from _walk(value, (*parents, name))
