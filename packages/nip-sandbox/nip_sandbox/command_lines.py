"""The lines of this distribution in the table of commands, see `nip_cli.command_table`."""

PANELS: dict[str, tuple[tuple[str, str, str], ...]] = {
    "Tools": (
        (
            "grade",
            "nip_sandbox.grading.grading_command",
            "Grade untrusted code by its tests, in a sandbox.",
        ),
    ),
}
