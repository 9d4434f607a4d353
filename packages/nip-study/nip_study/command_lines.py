"""The lines of this distribution in the table of commands, see `nip_cli.command_table`."""

PANELS: dict[str, tuple[tuple[str, str, str], ...]] = {
    "Look": (
        (
            "diff",
            "nip_study.commands.compare:diff",
            "Show how two runs differ: settings, data, results.",
        ),
        (
            "compare",
            "nip_study.commands.compare",
            "Put runs side by side: a table, a figure, a page.",
        ),
    ),
    "Study": (
        (
            "declare",
            "nip_study.commands.declare",
            "Say what a sweep is expected to show, before it runs.",
        ),
        (
            "sweep",
            "nip_study.commands.sweep",
            "Run every combination of some settings, and one table.",
        ),
        (
            "attack",
            "nip_study.commands.attack",
            "Attack the verifier of a run, as a run of its own.",
        ),
        ("harden", "nip_study.commands.harden", "Attack a verifier and train it on, in rounds."),
    ),
}
