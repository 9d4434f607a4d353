"""What the small documents of a run have to be like, as far as what is shown rests on it.

checked   a value as it is, or CorruptionError with the file and the place in it
damaged   that error, where a document is not what nip writes

Documents of earlier versions may lack fields, and may have others.
"""

from typing import Any, TypeVar

from pydantic import BaseModel, StrictFloat, StrictStr, TypeAdapter, ValidationError

from nip_core.errors import CorruptionError
from nip_core.records.models import Decision

_T = TypeVar("_T")


class ServedModel(BaseModel):
    model: StrictStr


class _Swap(BaseModel):
    groups: dict[str, ServedModel]
    promotion: Decision | None = None


SWAP = TypeAdapter(_Swap)
"""models.json: the models by group, and the decision of the gate."""
SECONDS = TypeAdapter(dict[str, StrictFloat])
"""times.json."""
AMOUNTS = TypeAdapter(dict[str, StrictFloat | None])
"""Tokens and US dollars by name."""


def checked(value: _T, shape: TypeAdapter[Any], place: str) -> _T:
    """Return `value` as it is. Raises CorruptionError that names the `place` if it is not so."""
    try:
        shape.validate_python(value)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        got = f"{first['msg']} (got {repr(first['input'])[:40]})"
        raise damaged(place, f"{where}: {got}" if where else got) from error
    return value


def damaged(place: str, error: Exception | str) -> CorruptionError:
    """The error of a document that is not what nip writes."""
    words = error if isinstance(error, str) else f"{type(error).__name__}: {error}"
    return CorruptionError(f"{place}: damaged, not what nip writes there ({words})")
