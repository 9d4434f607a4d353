"""The lines of this distribution in the table of commands, see `nip_cli.command_table`."""

PANELS: dict[str, tuple[tuple[str, str, str], ...]] = {
    "Carry over": (
        (
            "states",
            "nip_tinker.states_command",
            "List a run's states at Tinker; delete those not needed.",
        ),
    ),
    "Serve": (
        (
            "gateway",
            "nip_tinker.gateway.command",
            "Play by token ids at a service of Tinker's API.",
        ),
    ),
}
