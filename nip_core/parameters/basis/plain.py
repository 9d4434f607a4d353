"""Settings as they are written down: values of YAML and JSON, before they are checked or after."""

from collections.abc import Mapping
from typing import TypeAlias

Plain: TypeAlias = "bool | int | float | str | list[Plain] | dict[str, Plain] | None"
"""One value."""
PlainDict: TypeAlias = dict[str, Plain]
"""A group of settings by name; each may be a group again."""
PlainMapping: TypeAlias = Mapping[str, Plain]
"""The same, where no reader changes it."""
