"""The texts of a row, checked. Loads no reader of files, so a scenario can be looked at without."""

from nip_core.errors import DatasetError
from nip_core.hashing import half_pair
from nip_core.scenarios.base import Row


def require_text(row: Row, column: str, name: str) -> str:
    """Return a text of a row. Raises DatasetError, naming the row `name`, if there is none."""
    value = row.get(column)
    if not isinstance(value, str) or not value.strip():
        raise DatasetError(f"{name}: {column} must be a text that is not empty (got {value!r:.80})")
    return refuse_half_pair(value, column, name)


def refuse_half_pair(text: str, column: str, name: str) -> str:
    """Return the text. Raises DatasetError if it has half a surrogate pair."""
    if half := half_pair(text):
        raise DatasetError(f"{name}: {column} has {half}; mend the text, or leave the row out")
    return text
