"""The lines of this distribution in the table of commands, see `nip_cli.command_table`."""

PANELS: dict[str, tuple[tuple[str, str, str], ...]] = {
    "Look": (("verify", "nip_verify.verify", "Check every file of a run against its digests."),),
    "Carry over": (("clean", "nip_verify.clean", "Delete what nothing in a run refers to."),),
}
