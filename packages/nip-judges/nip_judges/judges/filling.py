"""Prompts of judges, and the values that fill their placeholders.

list_values   the values of a text that is shown, by the names of fields and columns
Prompt        a prompt with its origin; `fill` puts values in
read_prompts  the system prompt and the prompt of a judge's file

Only named placeholders are filled, in one pass: a value is never searched for placeholders again.
In a file of the user's, other braces stay as written, and {{name}} counts as a placeholder too. A
text of a package that holds {{ or }} is one of `str.format`: a doubled brace becomes a single one.
"""

import functools
import hashlib
import importlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from importlib.metadata import packages_distributions, version
from typing import TYPE_CHECKING, Any

from nip_core.errors import SettingsError
from nip_core.nearest import did_you_mean
from nip_judges.parts import ShownText
from nip_judges.settings.named_texts import find_placeholders, is_address, read_named_text

if TYPE_CHECKING:
    from nip_judges.settings.judge_file import JudgeFile

_FIELDS = ("question", "response", "reference", "response_a", "response_b")


def list_values(shown_text: ShownText, data: Any = None) -> dict[str, str]:
    """List what placeholders may name: the columns, and before them the fields of the text.

    `data` is the block of the judge's file. The columns that it names as question, response and
    reference have the text that is shown, and not that of the row.
    """
    fields = {"question": shown_text.question, "response": shown_text.response}
    fields["reference"] = shown_text.reference or ""
    values = dict(shown_text.columns)
    for name, value in fields.items():
        if isinstance(column := getattr(data, name, None), str):
            values[column] = value
    values |= fields
    if shown_text.other is not None:
        values |= {"response_a": shown_text.response, "response_b": shown_text.other}
    return values


@dataclass(frozen=True)
class Prompt:
    """A prompt with placeholders."""

    text: str
    place: str
    """The file or the address that it comes from, for people."""
    placeholders: Mapping[str, str]
    """The field or column of each placeholder."""
    required: frozenset[str] = frozenset()
    """The placeholders that must have a value; another without one stays as written."""
    release: str | None = None
    """Of the distribution that has it: "inspect_ai 0.3.285"."""
    fixed: Mapping[str, str] = field(default_factory=dict)
    """The texts of placeholders that are the same for all rows."""
    is_format: bool = False
    """A doubled brace becomes a single one."""
    clean: Callable[[str], str] | None = None
    """The change that the prompt's library makes to each value before it fills it in."""

    @property
    def digest(self) -> str:
        """SHA-256 in hex of its text, the texts that fill it, and its distribution's version."""
        parts = [self.text, self.release or "", *map(repr, sorted(self.placeholders.items()))]
        parts += map(repr, sorted(self.fixed.items()))
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()

    def fill(self, values: Mapping[str, str]) -> str:
        """Put values in the place of their placeholders.

        Raises SettingsError for a placeholder that must have a value and has none.
        """
        filled: dict[str, str] = {}
        for placeholder, name in self.placeholders.items():
            if name in values:
                value = values[name]
                filled[placeholder] = value if self.clean is None else self.clean(value)
            elif placeholder in self.required:
                raise SettingsError(
                    f"{self.place}: no field or column {name!r} for "
                    f"{{{placeholder}}}{did_you_mean(name, values)}"
                )
        filled |= self.fixed
        if not filled:
            return self.text
        names = "|".join(re.escape(name) for name in sorted(filled, key=len, reverse=True))
        if self.is_format:
            pattern = rf"(?P<double>\{{\{{|\}}\}})|\{{(?P<name>{names})\}}"
        else:
            pattern = rf"\{{\{{\s*(?P<double>{names})\s*\}}\}}|\{{(?P<name>{names})\}}"
        return re.sub(pattern, lambda match: self._replace(match, filled), self.text)

    def _replace(self, match: re.Match[str], filled: Mapping[str, str]) -> str:
        if match["name"] is not None:
            return filled[match["name"]]
        return match["double"][0] if self.is_format else filled[match["double"]]

    @property
    def shown(self) -> str:
        """The text as people read it: with its fixed texts, and placeholders as written."""
        text = replace(self, placeholders={}, clean=None)
        return text.fill({})


def read_prompts(file: "JudgeFile") -> tuple[Prompt | None, Prompt]:
    """Read the system prompt, if there is one, and the prompt of a judge's file.

    Raises SettingsError where they can't be read.
    """
    judge, text = file.judge, file.prompt_text
    assert judge.prompt is not None and text is not None
    prompt = _make_prompt(file, text, judge.prompt)
    if judge.system is None or file.system_text is None:
        return None, prompt
    return _make_prompt(file, file.system_text, judge.system), prompt


def _make_prompt(file: "JudgeFile", text: str, address: str) -> Prompt:
    judge = file.judge
    data = file.data
    columns = {name for name in (data.question, data.response, data.reference) if name}
    names = find_placeholders(text, {*_FIELDS, *judge.names, *judge.fill, *columns})
    is_package = is_address(address) and not file.find(address).is_file()
    module = address.rpartition(":")[0] if is_package else None
    fixed = list_library_texts(module, text)
    fixed |= {name: _read_fill(file, name, value) for name, value in judge.fill.items()}
    return Prompt(
        text=text,
        place=address,
        placeholders={
            name: judge.names.get(name, name)
            for name in names
            if name not in judge.as_written and (name not in fixed or name in judge.names)
        },
        required=frozenset(judge.names),
        release=None if module is None or module.endswith(".py") else _find_release(module),
        fixed={name: value for name, value in fixed.items() if name not in judge.names},
        is_format=is_package and ("{{" in text or "}}" in text),
        clean=_library_cleaner(module),
    )


def _read_fill(file: "JudgeFile", name: str, value: str) -> str:
    """Return a text as it is given, or the one at its address in a package."""
    if not is_address(value):
        return value
    try:
        return read_named_text(file.path.parent, value)
    except ValueError as error:
        file.refuse(("judge", "fill", name), str(error))


def _find_release(module: str) -> str:
    package = module.partition(".")[0]
    names = packages_distributions().get(package)
    return f"{names[0]} {version(names[0])}" if names else f"{package} (no version)"


_INSPECT = "inspect_ai.scorer._model"


def list_library_texts(module: str | None, text: str) -> dict[str, str]:
    """List the texts that a template's own library fills in: Inspect's {instructions}."""
    if module != _INSPECT or "{instructions}" not in text:
        return {}
    default = getattr(importlib.import_module(module), "default_instructions", None)
    return {} if default is None else {"instructions": str(default(partial_credit=False))}


def _library_cleaner(module: str | None) -> Callable[[str], str] | None:
    """Return the change that Inspect makes to values: it breaks up its own markers in them."""
    if module != _INSPECT:
        return None
    change = getattr(importlib.import_module(module), "neutralize_structural_delimiters", None)
    return None if change is None else functools.partial(_clean, change)


def _clean(change: Callable[[str], Any], text: str) -> str:
    return str(change(text))
