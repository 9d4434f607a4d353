"""The templates of OpenAI's graders: {{item.x}}, {{sample.output_text}}, {{sample.output_json.x}}.

check_templates  refuse a variable that there is not, and a grader that never sees the response
fill_template    a text with its values, in one pass: values are not searched again
list_items       the values of `item`: the columns, with the shown texts in their places
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from nip_core.nearest import did_you_mean
from nip_judges.judges.filling import list_values
from nip_judges.judges.prompted import UnshownTextError
from nip_judges.parts import ShownText

_TEMPLATE = re.compile(r"\{\{\s*([^{}]*?)\s*\}\}")
_PATH = re.compile(r"[^.\[\]]+|\[\d+\]")
_OUTPUT = "sample.output_text"
_JSON = "sample.output_json"


def check_templates(
    texts: Sequence[str], response_column: str, refuse: Callable[[str], Any]
) -> None:
    """Check the variables of all texts; `refuse` raises with a reason."""
    names = [match[1] for text in texts for match in _TEMPLATE.finditer(text)]
    for name in names:
        if not (name.startswith("item.") or name == _OUTPUT or _is_json(name)):
            hint = did_you_mean(name, [_OUTPUT, _JSON])
            refuse(
                f"no variable {{{{{name}}}}} here; there are item.COLUMN, {_OUTPUT} and "
                f"{_JSON}.KEY{hint}"
            )
    shows = {_OUTPUT, f"item.{response_column}"}
    if not any(name in shows or _is_json(name) for name in names):
        refuse(f"it has no {{{{{_OUTPUT}}}}}: the judge would never see the answer")


def _is_json(name: str) -> bool:
    return name == _JSON or name.startswith((f"{_JSON}.", f"{_JSON}["))


def list_items(shown_text: ShownText, data: Any) -> dict[str, str]:
    """List the values of `item` by name."""
    values = list_values(shown_text, data)
    own = {getattr(data, name, None) for name in ("question", "response", "reference")}
    return {
        name: value for name, value in values.items() if name in shown_text.columns or name in own
    }


def fill_template(text: str, shown_text: ShownText, data: Any) -> str:
    """Fill a template. Raises UnshownTextError where the response has no such value."""
    items = list_items(shown_text, data)
    return _TEMPLATE.sub(lambda match: _find(match[1], items, shown_text), text)


def _find(name: str, items: Mapping[str, str], shown_text: ShownText) -> str:
    if name == _OUTPUT:
        return shown_text.response
    if _is_json(name):
        try:
            value = json.loads(shown_text.response)
        except (ValueError, RecursionError):
            raise UnshownTextError(f"the response is no JSON, which {name} asks for") from None
        return _as_text(_walk(value, name.removeprefix(_JSON), name))
    first, _, path = name.removeprefix("item.").partition(".")
    whole = name.removeprefix("item.")
    if whole in items:
        return items[whole]
    if first in items and path:
        try:
            value = json.loads(items[first])
        except (ValueError, RecursionError):
            raise UnshownTextError(f"column {first} is no JSON, which {name} asks for") from None
        return _as_text(_walk(value, f".{path}", name))
    raise UnshownTextError(f"no column {first!r} for {{{{{name}}}}}{did_you_mean(first, items)}")


def _walk(value: Any, path: str, name: str) -> Any:
    for part in _PATH.findall(path):
        try:
            value = value[int(part[1:-1])] if part.startswith("[") else value[part]
        except (KeyError, IndexError, TypeError):
            raise UnshownTextError(f"the response has no {name}") from None
    return value


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
