"""`nip serve`: an lm_server, whose models may have the names of the bundled ones."""

import typer

from nip_core.errors import ServerError, SettingsError
from nip_core.models import resolve_model
from nip_lm_server.client import serve_command


def find_served(model: str, engine: str) -> str:
    """Return where the model of an engine lies, before anything is loaded.

    Raises NipError for a name that means none. Without weights any name will do.
    """
    from nip_core.hub.named_model import find_model

    try:
        return resolve_model(model) if engine == "deterministic" else find_model(model)
    except (SettingsError, ServerError) as error:
        raise type(error)(f"--model: {error}") from None


serve = typer.Typer(add_completion=False)
serve.command("serve", context_settings={"obj": find_served})(serve_command())
