"""Errors of pydantic about a judge.yaml, in a line.

describe_error  each problem with its line; a key that is nearly right with the one that was meant
"""

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from nip_core.nearest import did_you_mean
from nip_judges.settings.yaml_lines import Written

_MOST_SHOWN = 3


def describe_error(
    error: ValidationError, place: str, marks: Written, kind: type[BaseModel]
) -> str:
    """Describe up to three problems: `judge.yaml, line 4: …; line 7: …`."""
    lines: dict[str, None] = {}
    for detail in error.errors():
        keys = tuple(part for part in detail["loc"] if part != "function-wrap")
        line = marks.find_line(keys)
        words = _explain(detail, keys, kind)
        lines[f"line {line}: {words}" if line else words] = None
    first, *further = list(lines)[:_MOST_SHOWN]
    joint = ", " if first.startswith("line ") else ": "
    return "; ".join([f"{place}{joint}{first}", *further])


def _explain(detail: ErrorDetails, keys: tuple[Any, ...], kind: type[BaseModel]) -> str:
    name = ".".join(map(str, keys))
    if detail["type"] == "extra_forbidden":
        return _explain_unknown(str(keys[-1]), tuple(map(str, keys[:-1])), kind)
    if detail["type"] == "missing":
        return f"{name} is missing{_NEEDED.get(name, '')}"
    if detail["type"] == "literal_error":
        return f"{name} is {detail['ctx']['expected']} (got {_show(detail.get('input'))})"
    if detail["type"] == "value_error":
        return f"{name}: {detail['ctx']['error']}"
    if name == "judge.key":
        return "judge.key: the name of the environment variable with the key is needed, no key"
    if detail["type"] in ("model_type", "dict_type", "model_attributes_type"):
        return f"{name} is a block of settings (got {_show(detail.get('input'))})"
    message = detail["msg"].removeprefix("Input ")
    return f"{name} {message[:1].lower()}{message[1:]} (got {_show(detail.get('input'))})"


_NEEDED: Mapping[str, str] = {
    "judge": ": name the judge by prompt, function, grader or reward_model",
    "data": ": name the graded rows by file",
    "data.file": ": name the graded rows, .jsonl, .json, .csv, .parquet or a log of Inspect",
}


def _explain_unknown(name: str, parents: tuple[str, ...], kind: type[BaseModel]) -> str:
    blocks = _list_blocks(kind)
    keys_here = blocks.get(parents[0], ()) if parents else tuple(kind.model_fields)
    in_block = f" in {parents[0]}" if parents else ""
    hint = did_you_mean(name, keys_here).replace("'", '"')
    if not hint:
        further = [block for block, keys in blocks.items() if name in keys]
        further += [""] if parents and name in kind.model_fields else []
        if further:
            place = f"in the block {further[0]}" if further[0] else "at the left, in no block"
            hint = f"; it stands {place}"
    if not hint:
        hint = f"; there are {', '.join(keys_here)}"
    return f'unknown key "{name}"{in_block}{hint}'


def _list_blocks(kind: type[BaseModel]) -> dict[str, tuple[str, ...]]:
    """List the keys of each block by its name."""
    return {
        name: tuple(field.annotation.model_fields)
        for name, field in kind.model_fields.items()
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)
    }


def _show(value: Any) -> str:
    """Show a value; one with an address in it, or a long one, may hold a secret."""
    text = repr(value)
    return "a value that is not shown" if "://" in text or "@" in text else text[:80]
