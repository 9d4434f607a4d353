"""What the small documents of a run have to be like, as far as what is shown rests on it.

checked   a value as it is, or CorruptionError with the file and the place in it

Documents of earlier versions may lack fields, and may have others.
"""

from typing import Any, TypeVar

from pydantic import BaseModel, StrictFloat, TypeAdapter, ValidationError

from nip_core.run_store.documents import damaged, first_fault

_T = TypeVar("_T")
_Interval = list[StrictFloat] | None


class _Rates(BaseModel):
    accuracy: StrictFloat | None = None
    accuracy_ci95: _Interval = None
    completeness: StrictFloat | None = None
    completeness_ci95: _Interval = None
    soundness: StrictFloat | None = None
    soundness_ci95: _Interval = None
    agents: dict[str, dict[str, Any]] | None = None


RATES = TypeAdapter(_Rates)
"""Of metrics, what is shown of every split."""


def checked(value: _T, shape: TypeAdapter[Any], place: str) -> _T:
    """Return `value` as it is. Raises CorruptionError that names the `place` if it is not so."""
    try:
        shape.validate_python(value)
    except ValidationError as error:
        raise damaged(place, first_fault(error)) from error
    return value
