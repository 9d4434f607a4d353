"""The page of all commands and options of `nip`, from what they say of themselves."""

import re
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from nip_cli.command_table import load_command, read_panels


def reference_of_commands() -> str:
    """The page as Markdown."""
    text = (
        "# Commands\n\nWhat `nip COMMAND --help` prints, for all commands. "
        "[The guide](guide.md) says what they are for, and what exit codes mean.\n"
    )
    for panel, lines in read_panels().items():
        text += f"\n**{panel}**\n\n"
        text += "".join(f"- [`nip {name}`](#nip-{name}): {what}\n" for name, _, what in lines)
    names = [name for lines in read_panels().values() for name, _, _ in lines]
    return text + "".join(_command(f"nip {name}", load_command(name)) for name in names)


def _inner(command: Any) -> dict[str, Any]:
    return {n: c for n, c in getattr(command, "commands", {}).items() if not c.hidden}


def _command(name: str, command: Any) -> str:
    if _inner(command):
        inner = (_command(f"{name} {word}", c) for word, c in _inner(command).items())
        return f"\n## `{name}`\n\n{_prose(command.help or '')}\n" + "".join(inner)
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    options = [p for p in command.params if p.param_type_name == "option" and not p.hidden]
    usage = " ".join([name, *(f"[{_name(a)}]" if not a.required else _name(a) for a in arguments)])
    about = _prose(command.help or "")
    text = f"\n## `{name}`\n\n```text\n{usage} [OPTIONS]\n```\n\n{about}\n\n"
    rows = [f"| `{_name(a)}` | | {_cell(a.help)} |" for a in arguments]
    rows += [f"| {_flags(o)} | {_default(o)} | {_cell(o.help)} |" for o in options]
    return text + "| | default | |\n|---|---|---|\n" + "\n".join(rows) + "\n"


def _name(argument: Any) -> str:
    return str(argument.metavar or argument.name.upper()) + ("…" if argument.nargs == -1 else "")


def _flags(option: Any) -> str:
    flags = ", ".join(f"`{flag}`" for flag in option.opts)
    if option.is_flag:
        return flags
    return f"{flags} `{_cell(option.metavar or _kind(option))}`"


def _kind(option: Any) -> str:
    """What follows the flag: choices, or a word for the type."""
    annotation = option.type_descriptor.annotation
    if get_origin(annotation) is Literal:
        return "|".join(get_args(annotation))
    (annotation,) = get_args(annotation) or (annotation,)
    return {int: "NUMBER", float: "NUMBER", Path: "PATH"}.get(annotation, "TEXT")


def _default(option: Any) -> str:
    if option.required:
        return "required"
    default = option.default
    if default is None or default is False or callable(default) or default in ((), [], ""):
        return ""
    return "" if "Sentinel" in type(default).__name__ else f"`{default}`"


def _cell(text: str | None) -> str:
    return _prose(text or "").replace("|", "\\|").replace("\n", " ")


def _prose(text: str) -> str:
    return re.sub(r"\x08\n?", "", text).strip()
