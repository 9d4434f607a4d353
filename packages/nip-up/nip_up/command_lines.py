"""The lines of this distribution in the table of commands, see `nip_cli.command_table`."""

PANELS: dict[str, tuple[tuple[str, str, str], ...]] = {
    "Start": (("doctor", "nip_up.doctor", "Tell what can run here, and what is missing."),),
    "Serve": (("up", "nip_up.up", "Start PostgreSQL, Prefect and workers; Ctrl-C ends them."),),
}
