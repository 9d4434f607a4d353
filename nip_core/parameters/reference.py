"""The page docs/settings.md, made from the models: ``python -m nip_core.parameters.reference``."""

import sys
from typing import Any, get_args

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from nip_core.parameters.hyper_parameters import DATA_NEUTRAL, HyperParameters

_HEAD = """# Settings

Made by `python -m nip_core.parameters.reference`. Settings come from a YAML file and from
`--set a.b=c`; an unknown one is an error. Those marked ◦ may change when a run is resumed.
"""


def reference() -> str:
    """The page as Markdown."""
    parts = [_HEAD, _section("", HyperParameters)]
    parts += [_section(address, model) for address, model in _children("", HyperParameters)]
    return "\n".join(parts)


def _children(prefix: str, model: type[BaseModel]) -> list[tuple[str, type[BaseModel]]]:
    found = []
    for name, field in model.model_fields.items():
        inner = _model_in(field.annotation)
        if inner is not None:
            is_mapping = not isinstance(field.annotation, type)
            address = f"{prefix}{name}" + (".<name>" if is_mapping else "")
            found.append((address, inner))
    return found


def _model_in(annotation: Any) -> type[BaseModel] | None:
    for candidate in (annotation, *get_args(annotation)):
        if isinstance(candidate, type) and issubclass(candidate, BaseModel):
            return candidate
    return None


def _section(address: str, model: type[BaseModel]) -> str:
    title = f"## {address}" if address else "## Top level"
    lines = [title, "", (model.__doc__ or "").strip(), ""]
    lines += ["| setting | default | meaning |", "|---|---|---|"]
    for name, field in model.model_fields.items():
        if _model_in(field.annotation) is not None:
            continue
        full = f"{address}.{name}" if address else name
        neutral = any(full == n or full.startswith(f"{n}.") for n in DATA_NEUTRAL)
        value = field.get_default(call_default_factory=True, validated_data={})
        default = "required" if value is PydanticUndefined else f"`{value!r}`"
        meaning = " ".join((field.description or "").split()).replace("|", "\\|")
        lines.append(f"| `{name}`{' ◦' if neutral else ''} | {default} | {meaning} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(reference())
