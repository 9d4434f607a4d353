"""How the settings of two runs differ, as leaves by dotted key.

settings_difference   what two runs on record were told differently
flatten               nested settings as leaves by dotted key
compare_leaves        where two mappings of leaves differ, with both values
"""

import json
from collections.abc import Collection, Mapping
from typing import Any

from pydantic import JsonValue

from nip_core.parameters.stored import complete_settings

Leaves = Mapping[str, JsonValue]
"""Settings by dotted key."""
Difference = dict[str, tuple[JsonValue, JsonValue]]
"""By dotted key, one value and the other."""

ABSENT = "(absent)"
_VALUE_SHOWN = 80  # characters


def flatten(value: Any, prefix: str = "") -> dict[str, JsonValue]:
    """Give the leaves of nested settings by dotted key; lists and empty mappings are leaves."""
    if isinstance(value, Mapping) and value:
        leaves: dict[str, JsonValue] = {}
        for key, inner in value.items():
            leaves |= flatten(inner, f"{prefix}.{key}" if prefix else str(key))
        return leaves
    return {prefix: value} if prefix else {}


def settings_difference(a: Mapping[str, Any], b: Mapping[str, Any]) -> Difference:
    """Compare the settings on record of two runs: by dotted key both values, where they differ.

    Settings that the version which wrote one of them did not have yet count as their defaults.
    """
    return compare_leaves(flatten(complete_settings(a)), flatten(complete_settings(b)))


def settings_on_record(stored: Mapping[str, Any], given: Mapping[str, Any]) -> Leaves:
    """Complete the stored leaves with defaults for the newer leaves among those of `given`."""
    named = {*flatten(stored), *flatten(given)}
    return {key: value for key, value in flatten(complete_settings(stored)).items() if key in named}


def compare_leaves(stored: Leaves, given: Leaves) -> Difference:
    """Find the keys whose leaves differ, with both values; `ABSENT` stands for none."""
    return {
        key: (stored.get(key, ABSENT), given.get(key, ABSENT))
        for key in sorted({*stored, *given})
        if stored.get(key, ABSENT) != given.get(key, ABSENT)
    }


def is_neutral(key: str, data_neutral: Collection[str]) -> bool:
    """Tell whether a leaf is, or lies under, one of the `data_neutral` settings."""
    return any(key == neutral or key.startswith(f"{neutral}.") for neutral in data_neutral)


def show_value(value: JsonValue) -> str:
    """Write a leaf as JSON for an error, cut short where it is long."""
    shown = ABSENT if value == ABSENT else json.dumps(value, ensure_ascii=False)
    return shown if len(shown) <= _VALUE_SHOWN else f"{shown[:_VALUE_SHOWN]}…"
