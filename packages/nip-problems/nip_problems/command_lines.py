"""The line of this distribution in the table of commands, see `nip_cli.command_table`."""

PANELS: dict[str, tuple[tuple[str, str, str], ...]] = {
    "Study": (("problems", "nip_problems.commands.problems", "Make datasets of your own."),),
}
