"""The line of this distribution in the table of commands, see `nip_cli.command_table`."""

PANELS: dict[str, tuple[tuple[str, str, str], ...]] = {
    "Look": (
        ("view", "nip_view.commands.view", "Look into runs in a browser: every episode, live."),
    ),
}
