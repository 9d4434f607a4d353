"""Settings that an earlier version of nip wrote down, as this version reads them."""

from collections.abc import Mapping
from typing import Any

from nip_core.parameters.base import Parameters, walk
from nip_core.parameters.hyper_parameters import HyperParameters


def with_defaults(stored: Mapping[str, Any]) -> dict[str, Any]:
    """A run's settings on record, where those that came later have their defaults.

    Nothing is checked, and what is not known any more stays as it is.
    """
    return walk(HyperParameters, stored, _complete)


def from_stored(stored: Mapping[str, Any]) -> HyperParameters:
    """A run's settings on record as settings of today. Raises ValueError if they can't be."""
    return HyperParameters.from_dict(with_defaults(stored), ignore_extra_keys=True)


def _complete(kind: type[Parameters], values: Mapping[str, Any]) -> dict[str, Any]:
    as_now = kind._modernised(values)
    return {**kind.model_construct().to_dict(), **as_now, "_type": kind.__name__}
