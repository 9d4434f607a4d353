"""Arguments and options that several commands share, and how a shell completes them.

A completion runs each time that the user presses Tab: it imports little, writes nothing,
and says nothing where it finds nothing.
"""

import sys
from collections.abc import Iterable
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from nip_cli.printing.terminal import say


def say_left_out(reason: str) -> None:
    """Say on standard error why a run is left out."""
    say(f"nip: left out: {reason}", file=sys.stderr)


def complete_config(incomplete: str) -> list[str]:
    """Bundled configurations by name, and YAML files and directories by path."""
    from nip_core.configurations import bundled_configs

    names = [] if "/" in incomplete else _that_begin(bundled_configs(), incomplete)
    return [*names, *_paths(incomplete)]


def complete_run(context: typer.Context, incomplete: str) -> list[str]:
    """List the names of runs in the command's store, or in STORE for STORE/NAME."""
    place, slash, _ = incomplete.rpartition("/")
    store = place + slash or context.params.get("run_store") or "runs"
    try:
        names = sorted(path.parent.name for path in Path(store).expanduser().glob("*/run.json"))
    except (OSError, ValueError, RuntimeError):  # no name of a directory, or of a user
        names = []
    return _that_begin((f"{place}{slash}{name}" for name in names), incomplete)


def complete_setting(incomplete: str) -> list[str]:
    """Addresses of settings: ``rl.``, then ``rl.lr=``, with the default beside it.

    An incomplete setting comes as two words or more, since a shell adds a space to one.
    """
    if "=" in incomplete:
        return []
    from nip_core.parameters.load import list_settings_below

    section = incomplete.rpartition(".")[0]
    keys = tuple(section.split(".")) if section else ()
    while True:
        settings = {
            ".".join((*keys, n)): default for n, default in list_settings_below(keys).items()
        }
        words = _that_begin(settings, incomplete)
        if len(words) != 1:
            return [f"{word}{'.' if settings[word] is None else '='}" for word in words]
        [word] = words
        if settings[word] is not None:
            return [f"{word}=", f"{word}={settings[word]}"]
        keys, incomplete = tuple(word.split(".")), f"{word}."


def _that_begin(words: Iterable[str], incomplete: str) -> list[str]:
    # A shell prints what completes a word: a name that can't be typed is left out.
    return [word for word in words if word.startswith(incomplete) and word.isprintable()]


def _paths(incomplete: str) -> list[str]:
    folder, slash, beginning = incomplete.rpartition("/")
    try:
        entries = sorted(Path(folder + slash or ".").iterdir())
    except OSError:
        return []
    return [
        f"{folder}{slash}{entry.name}{'/' if entry.is_dir() else ''}"
        for entry in entries
        if entry.name.startswith(beginning)
        and entry.name.isprintable()
        and (entry.is_dir() or entry.suffix in (".yaml", ".yml"))
        and (beginning or not entry.name.startswith("."))
    ]


_CONFIG: Any = typer.Argument(
    help="A YAML file, or the name of a bundled configuration.",
    show_default=False,
    autocompletion=complete_config,
)
Config = Annotated[str, _CONFIG]
ConfigOrNone = Annotated[str | None, _CONFIG]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="A.B=C",
        help="A setting on top of the configuration.",
        autocompletion=complete_setting,
    ),
]
RunName = Annotated[
    str,
    typer.Argument(
        help="Name of the run, or STORE/NAME.", show_default=False, autocompletion=complete_run
    ),
]
RunNameOrNone = Annotated[
    str | None,
    typer.Argument(
        help="Name of the run, or STORE/NAME; default: newest.",
        show_default=False,
        autocompletion=complete_run,
    ),
]
RunStoreUrl = Annotated[str, typer.Option("--run-store", help="Where runs are kept.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]


class Shown(StrEnum):
    """How a command shows what it is doing."""

    auto = "auto"
    """Live in a terminal, lines elsewhere."""
    live = "live"
    lines = "lines"
    json = "json"
    none = "none"


ShownAs = Annotated[
    Shown,
    typer.Option(
        "--progress", help="Show what goes on: live or in lines (auto: as fits), as JSON, or not."
    ),
]
Verbose = Annotated[bool, typer.Option("--verbose", help="Show Prefect's logs.")]
