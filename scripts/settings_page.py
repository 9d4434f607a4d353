"""The pages of settings, made from the models: ``python scripts/settings_page.py``.

docs/settings.md           settings that people set
docs/settings-original.md  with `original`: those kept for the ancestor's configurations
"""

import ast
import dataclasses
import inspect
import sys
import textwrap
from functools import cache
from itertools import pairwise
from typing import get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from nip_core.parameters.basis.base import Parameters, groups_in
from nip_core.parameters.basis.not_for_text import (
    NOT_FOR_TEXT,
    OTHERWISE,
    UNAVAILABLE,
    UnusedSetting,
    is_for_ancestor,
)
from nip_core.parameters.basis.update_schedule import SCHEDULES
from nip_core.parameters.checks import GROUP_SETTINGS
from nip_core.parameters.hyper_parameters import DATA_NEUTRAL, HyperParameters

_HEAD = """# Settings

Made by `python scripts/settings_page.py`. Settings come from a YAML file and from
`--set a.b=c`; an unknown one is an error. Those marked ◦ may change when a run is resumed; those
marked † must be the same for all agents of a shared model group. `nip train --dry-run`
shows what differs from the defaults, and with `--json` all of a configuration, each group of
settings with its class as `_type`, which may be left out.

Settings that only configurations of neural-interactive-proofs have are on
[a page of their own](settings-original.md).
"""

_ORIGINAL = """# Settings of the original

Made by `python scripts/settings_page.py original`. A configuration of
[neural-interactive-proofs](howto/paper.md#configurations-of-the-original) is read as it is. These
settings are kept for that alone; a new configuration needs
[the others](settings.md).

## Set otherwise here

They work as they do there.

| setting | default | meaning | here |
|---|---|---|---|
"""

_SCHEDULES = """## `agents.<name>.update_schedule`

An agent is trained on the rollouts of the iterations, counted from 0, for which its schedule says
so; a group whose agents are all left out keeps its model. Agents that alternate must agree on the
period and its first part.

| `_type` | arguments | trains in |
|---|---|---|
"""

_UNUSED = """## Without a meaning here

Known from configurations of tensor agents and other scenarios. They may stand in a configuration
with this value, which changes nothing, and are refused with any other.

| setting | value | why no other |
|---|---|---|
"""


def page_of_settings() -> str:
    """Write the page of settings for users, as Markdown."""
    parts = [_HEAD, _section("", HyperParameters)]
    for name, field in HyperParameters.model_fields.items():
        address = f"{name}.<name>" if get_origin(field.annotation) is dict else name
        parts += [_section(address, kind) for kind in groups_in(field.annotation)]
        parts += [_schedules()] if name == "agents" else []
    return "\n".join(parts)


def page_of_original_settings() -> str:
    """Write the page of settings for configurations of the ancestor, as Markdown."""
    kinds = {
        kind.__name__: kind
        for field in HyperParameters.model_fields.values()
        for kind in groups_in(field.annotation)
    }
    rows = []
    for kind, table in OTHERWISE.items():
        for name, instead in table.items():
            field = kinds[kind].model_fields[name]
            address = f"`{_prefixes()[kind]}{name}`"
            meaning = _cell(describe_setting(kinds[kind], name))
            rows.append(f"| {address} | {_default(field)} | {meaning} | {instead} |")
    return _ORIGINAL + "\n".join(rows) + "\n\n" + _unused()


def _section(address: str, kind: type[Parameters]) -> str:
    title = f"## `{address}`" if address else "## Top level"
    if "is_random" in kind._tags() and kind._tags()["is_random"]:
        title += " (random)"
    lines = [title, "", inspect.getdoc(kind) or "", ""]
    fields = {
        name: field
        for name, field in kind.model_fields.items()
        if not _is_block(field) and not is_for_ancestor(kind.__name__, name)
    }
    if fields:
        lines += ["| setting | default | meaning |", "|---|---|---|"]
    for name, field in fields.items():
        full = f"{address}.{name}" if address else name
        neutral = any(full == n or full.startswith(f"{n}.") for n in DATA_NEUTRAL)
        shared = address == "agents.<name>" and name in GROUP_SETTINGS
        marks = " ◦" * neutral + " †" * shared
        lines.append(
            f"| `{name}`{marks} | {_default(field)} | {_cell(describe_setting(kind, name))} |"
        )
    return "\n".join(lines).rstrip() + "\n"


def describe_setting(kind: type[BaseModel], name: str) -> str:
    """Say what a setting means, in the words below it; "" where there are none.

    It is read from the source on request. Pydantic can do the same while it makes a class, for
    which every command would wait.
    """
    return kind.model_fields[name].description or _read_docstrings(kind).get(name, "")


@cache
def _read_docstrings(kind: type[BaseModel]) -> dict[str, str]:
    """Read the texts below the fields of a class and of its base classes."""
    docstrings: dict[str, str] = {}
    for refined in reversed(kind.__mro__):
        if issubclass(refined, BaseModel) and refined is not BaseModel:
            [of_class] = ast.parse(textwrap.dedent(inspect.getsource(refined))).body
            assert isinstance(of_class, ast.ClassDef)
            for statement, docstring in pairwise(of_class.body):
                field = statement.target if isinstance(statement, ast.AnnAssign) else None
                text = docstring.value if isinstance(docstring, ast.Expr) else None
                if isinstance(field, ast.Name) and isinstance(text, ast.Constant):
                    docstrings[field.id] = inspect.cleandoc(str(text.value))
    return docstrings


def _is_block(field: FieldInfo) -> bool:
    """Return whether the field has a section of its own."""
    is_group = isinstance(field.annotation, type) and issubclass(field.annotation, Parameters)
    return is_group or (get_origin(field.annotation) is dict and bool(groups_in(field.annotation)))


def _default(field: FieldInfo) -> str:
    value = field.get_default(call_default_factory=True, validated_data={})
    return "required" if value is PydanticUndefined else f"`{value!r}`"


def _schedules() -> str:
    rows = []
    for name, kind in SCHEDULES.items():
        arguments = [
            argument.name
            if argument.default is dataclasses.MISSING
            else f"{argument.name} = {argument.default}"
            for argument in dataclasses.fields(kind)  # type: ignore[arg-type]
        ]
        rows.append(f"| `{name}` | {', '.join(arguments)} | {_cell(inspect.getdoc(kind))} |")
    return _SCHEDULES + "\n".join(rows) + "\n"


def _prefixes() -> dict[str, str]:
    """By class of settings: the prefix of the names of its fields."""
    prefixes = {"HyperParameters": ""}
    for name, field in HyperParameters.model_fields.items():
        inner = f"{name}.<name>." if get_origin(field.annotation) is dict else f"{name}."
        for kind in groups_in(field.annotation):
            prefixes[kind.__name__] = inner
    return prefixes


def _unused() -> str:
    rows = [
        f"| `{_prefixes()[kind]}{name}` | {_only_value(unused)} | {_cell(unused.reason)} |"
        for kind, table in NOT_FOR_TEXT.items()
        for name, unused in table.items()
    ]
    rows += [
        f"| `{name}` | not `{value}` | {_cell(reason)} |"
        for name, values in UNAVAILABLE.items()
        for value, reason in values.items()
    ]
    return _UNUSED + "\n".join(rows) + "\n"


def _only_value(unused: UnusedSetting) -> str:
    if isinstance(unused.default, dict):
        return "none, or its defaults" if unused.default else "none"
    return f"`{unused.default!r}`"


def _cell(text: str | None) -> str:
    return " ".join((text or "").split()).replace("|", "\\|")


if __name__ == "__main__":
    sys.stdout.write(
        page_of_original_settings() if sys.argv[1:] == ["original"] else page_of_settings()
    )
