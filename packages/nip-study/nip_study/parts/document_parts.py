"""The parts of a sweep's documents."""

from collections.abc import Iterable, Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from nip_core.evaluation.split_metrics import Interval95
from nip_core.evaluation.statistics.differences import holm
from nip_study.parts.two_way import TwoWay


def is_none(value: object) -> bool:
    """Tell whether a field has no value, so that its key is left out."""
    return value is None


class Part(BaseModel):
    """A document about a sweep, or a part of one. An alias is a field's key in the file."""

    model_config = ConfigDict(
        frozen=True, extra="allow", validate_by_name=True, serialize_by_alias=True
    )

    def as_json(self) -> dict[str, Any]:
        """Encode the document as it stands in a file, without the keys of fields not set."""
        return self.model_dump(exclude_unset=True)


class OverRuns(Part):
    """A figure of several runs."""

    mean: float
    lowest: float
    highest: float
    ci95: Interval95 | None = Field(default=None, exclude_if=is_none)
    """Of the mean, over seeds and questions; no key where nothing shows the spread."""


def sum_up(values: Iterable[float | None], both_ways: TwoWay | None = None) -> OverRuns | None:
    """Average a figure over runs; None where no run has it.

    `both_ways` is the same mean over seeds and questions, for its interval: that of a rate.
    """
    numbers = [value for value in values if value is not None]
    if not numbers:
        return None
    interval = None if both_ways is None else both_ways.ci95
    return OverRuns(
        mean=sum(numbers) / len(numbers),
        lowest=min(numbers),
        highest=max(numbers),
        ci95=None if interval is None else clip_interval(interval),
    )


def clip_interval(interval: Interval95, lowest: float = 0.0) -> Interval95:
    """Cut an interval to [`lowest`, 1], the range of rates, or of differences between rates."""
    # With few seeds Student's t reaches beyond the range of a rate.
    return max(lowest, interval[0]), min(1.0, interval[1])


def adjust(p_values: Sequence[float | None]) -> list[float | None]:
    """Adjust the p-values of a table after Holm, for all that there are."""
    adjusted = iter(holm([p for p in p_values if p is not None]))
    return [None if p is None else next(adjusted) for p in p_values]
