"""The line of this distribution in the table of commands, see `nip_cli.command_table`."""

PANELS: dict[str, tuple[tuple[str, str, str], ...]] = {
    "Serve": (("up", "nip_up.up", "Start PostgreSQL, Prefect and workers; Ctrl-C ends them."),)
}
