"""How the settings of two runs differ, as leaves by dotted key.

settings_difference   the different settings of two runs on record
drop_same_files       of these, without two paths to one file
find_same_contents    which of these are two paths to equal content
flatten               nested settings as leaves by dotted key
compare_leaves        where two mappings of leaves differ, with both values
"""

import json
import os
from collections.abc import Collection, Mapping
from typing import Any

from pydantic import JsonValue

from nip_core.parameters.stored import complete_settings

Leaves = Mapping[str, JsonValue]
"""Settings by dotted key."""
Difference = dict[str, tuple[JsonValue, JsonValue]]
"""By dotted key, one value and the other."""

ABSENT = "(absent)"
_CONTENTS = {
    "scenario": "scenario",
    "interaction_protocol": "protocol",
    "attack.by": "attack",
    "attack.script": "script",
    "attack.start_from": "start_from",
    "imitation.chats": "start_from",
    "dataset": "problems",
    "lm_server.replies": "replies",
}
"""By setting with a path, the digest of its content, in the contents on record."""
_OF_AGENTS = {
    "system_prompt_template_path": "templates",
    "model_provider": "providers",
    "script": "scripts",
}
"""The same by setting of an agent."""
_OPPONENTS = "opponents.runs"
_CLASSES = ("scenario", "interaction_protocol", "attack.by")
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


def settings_on_record(old: Mapping[str, Any], new: Mapping[str, Any]) -> Leaves:
    """Complete the leaves of `old` with defaults for the newer leaves that `new` has."""
    keys = {*flatten(old), *flatten(new)}
    return {key: value for key, value in flatten(complete_settings(old)).items() if key in keys}


def compare_leaves(old: Leaves, new: Leaves) -> Difference:
    """Find the keys with different leaves, with both values; `ABSENT` stands for none."""
    return {
        key: (old.get(key, ABSENT), new.get(key, ABSENT))
        for key in sorted({*old, *new})
        if old.get(key, ABSENT) != new.get(key, ABSENT)
    }


def is_neutral(key: str, data_neutral: Collection[str]) -> bool:
    """Tell whether a leaf is, or lies under, one of the `data_neutral` settings."""
    return any(key == neutral or key.startswith(f"{neutral}.") for neutral in data_neutral)


def drop_same_files(difference: Difference) -> Difference:
    """Leave out two paths to one file: from another directory it is called otherwise."""
    return {key: paths for key, paths in difference.items() if not _is_one_file(key, *paths)}


def find_same_contents(
    difference: Difference, old: Mapping[str, Any], new: Mapping[str, Any]
) -> set[str]:
    """Find the settings with two paths to equal content, by the digests on record and now."""
    old_leaves, new_leaves = flatten(old), flatten(new)
    return {
        key
        for key, paths in difference.items()
        if _is_same_content(key, paths, old_leaves, new_leaves)
    }


def _is_one_file(key: str, a: JsonValue, b: JsonValue) -> bool:
    if key == _OPPONENTS and isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        return all(_plays_one_file(*entries) for entries in zip(a, b, strict=True))
    if not (_content_of(key) and isinstance(a, str) and isinstance(b, str)):
        return False
    (first_file, first_name), (second_file, second_name) = _split(key, a), _split(key, b)
    try:
        return first_name == second_name and os.path.samefile(first_file, second_file)
    except (OSError, ValueError):
        return False


def _plays_one_file(a: Any, b: Any) -> bool:
    """Tell whether two entries of opponents differ at most in the path to one file."""
    first, second = dict(a), dict(b)
    scripts = first.pop("script", None), second.pop("script", None)
    return first == second and (scripts[0] == scripts[1] or _is_one_file("attack.script", *scripts))


def _is_same_content(
    key: str, paths: tuple[JsonValue, JsonValue], old_leaves: Leaves, new_leaves: Leaves
) -> bool:
    content = _content_of(key)
    if not content or not all(isinstance(path, str) and path != ABSENT for path in paths):
        return False
    if len({_split(key, str(path))[1] for path in paths}) > 1:  # two classes of one file
        return False
    digests = [
        {k: v for k, v in leaves.items() if k == content or k.startswith(f"{content}.")}
        for leaves in (old_leaves, new_leaves)
    ]
    return bool(digests[0]) and digests[0] == digests[1]


def _content_of(key: str) -> str:
    """Name the digest of the content at a setting's path; "" of a setting without a path."""
    room, _, rest = key.partition(".")
    agent, _, setting = rest.partition(".")
    if room == "agents" and setting in _OF_AGENTS:
        return f"{_OF_AGENTS[setting]}.{agent}"
    return _CONTENTS.get(key, "")


def _split(key: str, path: str) -> tuple[str, str]:
    """Split ``path/to/file.py:Class``."""
    is_class = key in _CLASSES or key.endswith((".model_provider", ".script"))
    file, _, name = path.rpartition(":") if is_class else (path, "", "")
    return file, name


def show_value(value: JsonValue) -> str:
    """Write a leaf as JSON for an error, cut short where it is long."""
    text = ABSENT if value == ABSENT else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _VALUE_SHOWN else f"{text[:_VALUE_SHOWN]}…"
