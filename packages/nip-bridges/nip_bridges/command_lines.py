"""The lines of this distribution in the table of commands, see `nip_cli.command_table`."""

PANELS: dict[str, tuple[tuple[str, str, str], ...]] = {
    "Carry over": (
        (
            "track",
            "nip_bridges.commands.track",
            "Send trackers the points that they lack of a run.",
        ),
        ("export", "nip_bridges.commands.export", "Write a run in the form of another program."),
        (
            "push",
            "nip_bridges.commands.hub:push",
            "Publish a model or the data of a run on the Hub.",
        ),
        (
            "pull",
            "nip_bridges.commands.hub:pull",
            "Download a model or data from the Hub, and check it.",
        ),
    ),
}
