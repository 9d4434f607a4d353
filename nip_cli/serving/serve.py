"""`nip serve`: an lm_server, whose models may have the names of the bundled ones."""

import typer

from nip_core.errors import ServerError, SettingsError
from nip_core.models import resolve_model
from nip_lm_server.client import find_capabilities, serve_command


def find_served(model: str, engine: str) -> str:
    """Return where the model of an engine lies, before anything is loaded.

    Raises NipError for a name that means none. Without weights any name will do.
    """
    from nip_core.session.named_model import find_model

    try:
        has_weights = find_capabilities(engine).has_weights
    except ValueError as error:
        raise SettingsError(f"--engine: {error}") from None
    try:
        return find_model(model) if has_weights else resolve_model(model)
    except (SettingsError, ServerError) as error:
        raise type(error)(f"--model: {error}") from None


serve = typer.Typer(add_completion=False)
serve.command("serve", context_settings={"obj": find_served})(serve_command())
