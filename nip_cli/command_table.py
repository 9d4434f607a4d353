"""The commands of `nip`: in which order, under which heading, in which module.

A command is a line of `PANELS`: its name, its place, and a summary of at most 58 characters, which
fit beside the name on 80 columns. A distribution adds lines by an entry point of the group
`nip.commands`, which names a module with `PANELS` of its own and nothing else in it. A command's
module is imported when it is run or asked for `--help`: `nip --help` and a shell's completion
import none of them.
"""

import functools
import sys
from difflib import get_close_matches
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any

import typer
import typer.core
import typer.main

from nip_cli.printing.terminal import say

Line = tuple[str, str, str]

PANELS: dict[str, tuple[Line, ...]] = {
    "Start": (
        (
            "quickstart",
            "nip_cli.commands.quickstart",
            "Train a tiny bundled model, on a CPU, in minutes.",
        ),
        (
            "init",
            "nip_cli.commands.init",
            "Write a short configuration of your own, with comments.",
        ),
    ),
    "Run": (
        ("train", "nip_cli.commands.train", "Train as CONFIG says, or go on where it stopped."),
        ("evaluate", "nip_cli.commands.evaluate", "Test the newest models of CONFIG's run."),
        ("play", "nip_cli.commands.play", "Play rollouts only, and write their Parquet files."),
        ("prompt", "nip_cli.commands.prompt", "Show the chat that an agent is asked with."),
    ),
    "Look": (
        ("ls", "nip_cli.commands.ls", "List the runs: state, accuracy, cost, age."),
        (
            "show",
            "nip_cli.commands.show",
            "Show a run: accuracy by iteration, models, jobs, costs.",
        ),
        (
            "report",
            "nip_cli.commands.report",
            "Tell where a run's report is, and make it if it is not.",
        ),
    ),
    "Study": (),
    "Carry over": (),
}
GROUP = "nip.commands"
"""Of entry points."""
PARTS = {
    "nip-bridges": ("track", "export", "push", "pull"),
    "nip-lm-server": ("serve", "prove", "models"),
    "nip-problems": ("problems",),
    "nip-sandbox": ("grade",),
    "nip-study": ("diff", "compare", "declare", "sweep", "attack", "harden"),
    "nip-tinker": ("states", "gateway"),
    "nip-up": ("doctor", "up"),
    "nip-verify": ("verify", "clean"),
    "nip-view": ("view",),
}
"""The commands of nip's other distributions, to name the one that is not installed."""


@functools.cache
def read_panels() -> dict[str, tuple[Line, ...]]:
    """Read the lines of all distributions by panel: nip's own first, then by their names.

    The first line with a name holds. A distribution whose lines can't be read is named on standard
    error and left out: nip's other commands need none of it.
    """
    panels = dict(PANELS)
    names = {name for lines in PANELS.values() for name, _, _ in lines}
    for point in sorted(entry_points(group=GROUP), key=lambda point: point.name):
        try:
            additions = [
                (panel, (name, place, summary))
                for panel, lines in point.load().PANELS.items()
                for name, place, summary in lines
            ]
        except Exception as error:  # whatever a module of others raises
            reason = f"{type(error).__name__}: {error}"
            say(f"nip: no commands of {point.name} ({point.value}): {reason}", file=sys.stderr)
            continue
        for panel, line in additions:
            if line[0] not in names:
                names.add(line[0])
                panels[panel] = (*panels.get(panel, ()), line)
    return panels


@functools.cache
def _find_places() -> dict[str, str]:
    return {name: place for lines in read_panels().values() for name, place, _ in lines}


class _Listed(typer.core.TyperCommand):
    """A command as a list has it; its code is somewhere else."""


class Commands(typer.core.TyperGroup):
    """All commands: those of the table, and those that were added to the app directly."""

    def list_commands(self, ctx: Any) -> list[str]:
        """List names in the order of the table, then all others."""
        places = _find_places()
        return [*places, *(name for name in super().list_commands(ctx) if name not in places)]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return the command as a list shows it."""
        for panel, lines in read_panels().items():
            for name, _, summary in lines:
                if name == cmd_name:
                    return _Listed(name, help=summary, rich_help_panel=panel)
        return super().get_command(ctx, cmd_name)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command itself, to run it, to show its help or to complete its words."""
        try:
            name, command, arguments = super().resolve_command(ctx, args)
        except Exception as error:  # typer's, which it has under no name of its own
            if hasattr(error, "message"):
                error.message += _advise(args[0], self.list_commands(ctx))
            raise
        if isinstance(command, _Listed):
            command = load_command(str(command.name))
        return name, command, arguments


def _advise(name: str, names: list[str]) -> str:
    """Say what helps where there is no command of this name."""
    if part := next((part for part, commands in PARTS.items() if name in commands), None):
        from nip_core.distribution import how_to_install

        return f" It is a part of {part}: {how_to_install(name=part)}"
    # typer looks for names that are alike among those that are imported, which are none.
    similar_names = get_close_matches(name, names, n=1)
    return f" Did you mean {similar_names[0]!r}?" if similar_names else ""


def load_command(name: str) -> Any:
    """Import the command of this name."""
    module, _, attribute = _find_places()[name].partition(":")
    target = getattr(import_module(module), attribute or name)
    if not isinstance(target, typer.Typer):
        function, target = target, typer.Typer(add_completion=False)
        target.command(name)(function)
    command = typer.main.get_command(target)
    command.name = name
    return command


def load_all() -> None:
    """Import every command, so a fork of this process imports none."""
    for name in _find_places():
        load_command(name)
