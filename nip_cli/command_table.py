"""The commands of `nip`: in which order, under which heading, in which file.

A command is a line of `PANELS`: its name, where it is, and what it does in at most 58 characters,
which is what fits beside the name on 80 columns. Its module is imported when somebody runs it or
asks for its `--help`, so `nip --help` and a shell's completion import none of them.
"""

from difflib import get_close_matches
from importlib import import_module
from typing import Any

import typer
import typer.core
import typer.main

Line = tuple[str, str, str]

PANELS: dict[str, tuple[Line, ...]] = {
    "Start": (
        ("quickstart", "commands.quickstart", "Train a tiny bundled model, on a CPU, in minutes."),
        ("init", "commands.init", "Write a short configuration of your own, with comments."),
        ("doctor", "machine.doctor", "Tell what can run here, and what is missing."),
    ),
    "Run": (
        ("train", "commands.train", "Train as CONFIG says, or go on where it stopped."),
        ("evaluate", "commands.evaluate", "Test the newest models of CONFIG's run."),
        ("play", "commands.play", "Play rollouts only, and write their Parquet files."),
        ("prompt", "commands.prompt", "Show the chat that an agent is asked with."),
    ),
    "Look": (
        ("ls", "commands.ls", "List the runs: state, accuracy, cost, age."),
        ("show", "commands.show", "Show a run: accuracy by iteration, models, jobs, costs."),
        ("view", "commands.view", "Look into runs in a browser: every episode, live."),
        ("report", "commands.report", "Tell where a run's report is, and make it if it is not."),
        ("diff", "studies.compare:diff", "Show how two runs differ: settings, data, results."),
        ("compare", "studies.compare", "Put runs side by side: a table, a figure, a page."),
        ("verify", "commands.verify", "Check every file of a run against its digests."),
    ),
    "Study": (
        ("declare", "studies.declare", "Say what a sweep is expected to show, before it runs."),
        ("sweep", "studies.sweep", "Run every combination of some settings, and one table."),
        ("attack", "commands.attack", "Attack the verifier of a run, as a run of its own."),
        ("harden", "studies.harden", "Attack a verifier and train it on, in rounds."),
        ("problems", "commands.problems", "Make datasets of your own."),
    ),
    "Tools": (("grade", "commands.grade", "Grade code of anybody's, by tests, in a sandbox."),),
    "Carry over": (
        ("track", "commands.track", "Send trackers whatever they are missing of a run."),
        ("export", "commands.export", "Write a run in the form of another program."),
        ("push", "commands.hub:push", "Publish a model or the data of a run on the Hub."),
        ("pull", "commands.hub:pull", "Download a model or data from the Hub, and check it."),
        ("clean", "commands.clean", "Delete what nothing in a run refers to."),
    ),
    "Serve": (
        ("models", "serving.models", "Bring a published model here, without a hub; list them."),
        ("serve", "serving.serve", "Run an OpenAI-compatible server of models and jobs."),
        ("prove", "serving.prove", "Say which weights answer under a name, at a server."),
        ("up", "machine.up", "Start PostgreSQL, Prefect and workers; Ctrl-C ends them."),
    ),
}
_WHERE = {name: where for lines in PANELS.values() for name, where, _ in lines}


class _Listed(typer.core.TyperCommand):
    """A command as a list has it; what it does is somewhere else."""


class Commands(typer.core.TyperGroup):
    """The group of all commands, and of those that were added to the app directly."""

    def list_commands(self, ctx: Any) -> list[str]:
        """List names in the order of the table, then all others."""
        return [*_WHERE, *(name for name in super().list_commands(ctx) if name not in _WHERE)]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return the command as a list shows it."""
        for panel, lines in PANELS.items():
            for name, _, summary in lines:
                if name == cmd_name:
                    return _Listed(name, help=summary, rich_help_panel=panel)
        return super().get_command(ctx, cmd_name)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command itself, to run it, to show its help or to complete its words."""
        try:
            name, command, arguments = super().resolve_command(ctx, args)
        except Exception as error:  # typer's, which it has under no name of its own
            # It looks for names that are alike among those that are imported, which are none.
            near = get_close_matches(args[0], self.list_commands(ctx), n=1)
            if near and hasattr(error, "message"):
                error.message += f" Did you mean {near[0]!r}?"
            raise
        if isinstance(command, _Listed):
            command = load_command(str(command.name))
        return name, command, arguments


def load_command(name: str) -> Any:
    """Import the command of this name."""
    module, _, attribute = _WHERE[name].partition(":")
    target = getattr(import_module(f"nip_cli.{module}"), attribute or name)
    if not isinstance(target, typer.Typer):
        function, target = target, typer.Typer(add_completion=False)
        target.command(name)(function)
    command = typer.main.get_command(target)
    command.name = name
    return command


def load_all() -> None:
    """Import every command, so a fork of this process imports none."""
    for name in _WHERE:
        load_command(name)
