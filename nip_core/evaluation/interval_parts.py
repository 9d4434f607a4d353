"""The intervals among metrics that are written down, apart from the figures that they belong to.

Loads nothing that reckons: a reader of a run's documents needs only these.
"""

from collections.abc import Mapping

from pydantic import JsonValue

_SUFFIX = "_ci95"


def pick_intervals(
    metrics: Mapping[str, JsonValue], reference: Mapping[str, JsonValue]
) -> dict[str, JsonValue]:
    """Pick the intervals of `metrics` with another value in `reference`, in the same nesting."""
    picked: dict[str, JsonValue] = {}
    for name, value in metrics.items():
        counterpart = reference.get(name)
        if isinstance(value, dict) and isinstance(counterpart, dict):
            inner = pick_intervals(value, counterpart)
            picked |= {name: inner} if inner else {}
        elif name.endswith(_SUFFIX) and value != counterpart:
            picked[name] = value
    return picked


def replace_intervals(
    metrics: Mapping[str, JsonValue], intervals: Mapping[str, JsonValue]
) -> dict[str, JsonValue]:
    """Put the intervals of `pick_intervals` in the place of the ones in `metrics`."""
    replaced = dict(metrics)
    for name in intervals.keys() & metrics.keys():
        value, metric = intervals[name], metrics[name]
        if isinstance(value, dict) and isinstance(metric, dict):
            value = replace_intervals(metric, value)
        replaced[name] = value
    return replaced
