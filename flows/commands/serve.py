"""`nip serve`: an lm_server, whose models may have the names of the bundled ones."""

import typer

from nip_core.models import resolve_model
from nip_lm_server.client import serve_command

serve = typer.Typer(add_completion=False)
serve.command("serve", context_settings={"obj": resolve_model})(serve_command())
