"""The lines of this distribution in the table of nip's commands, see `nip_cli.command_table`."""

PANELS: dict[str, tuple[tuple[str, str, str], ...]] = {
    "Serve": (
        (
            "serve",
            "nip_lm_server.command",
            "Run an OpenAI-compatible server of models and jobs.",
        ),
        (
            "prove",
            "nip_lm_server.prove_command",
            "Say which weights answer under a name, at a server.",
        ),
        (
            "models",
            "nip_lm_server.models_command",
            "Bring a published model here, without a hub; list them.",
        ),
    ),
}
