"""The intervals among metrics that are written down, apart from the figures that they belong to.

pick_intervals      the intervals among metrics, where they differ from others
replace_intervals   metrics with those in their place

Loads nothing that reckons: whoever shows a run by its documents needs only these.
"""

from collections.abc import Mapping

from pydantic import JsonValue

_SUFFIX = "_ci95"


def pick_intervals(
    metrics: Mapping[str, JsonValue], other: Mapping[str, JsonValue]
) -> dict[str, JsonValue]:
    """Pick the intervals of `metrics` with another value in `other`, in the same nesting."""
    picked: dict[str, JsonValue] = {}
    for name, value in metrics.items():
        beside = other.get(name)
        if isinstance(value, dict) and isinstance(beside, dict):
            inner = pick_intervals(value, beside)
            picked |= {name: inner} if inner else {}
        elif name.endswith(_SUFFIX) and value != beside:
            picked[name] = value
    return picked


def replace_intervals(
    metrics: Mapping[str, JsonValue], intervals: Mapping[str, JsonValue]
) -> dict[str, JsonValue]:
    """Put the intervals of `pick_intervals` in the place of those of `metrics`."""
    replaced = dict(metrics)
    for name in intervals.keys() & metrics.keys():
        value, before = intervals[name], metrics[name]
        if isinstance(value, dict) and isinstance(before, dict):
            value = replace_intervals(before, value)
        replaced[name] = value
    return replaced
