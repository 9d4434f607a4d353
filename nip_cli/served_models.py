"""The names of models that nip has, for the commands of its server."""

from collections.abc import Mapping
from pathlib import Path


class ServedModels:
    """Names of models as the server's commands ask for them, see `nip_lm_server.command`."""

    @property
    def bundled(self) -> Mapping[str, Path]:
        """The directories of those that come with nip, by name."""
        from nip_core.models import BUNDLED

        return BUNDLED

    def find(self, model: str, engine: str | None = None) -> str:
        """Return where a model lies, for an engine to load it, or to be computed with.

        Nothing is loaded. Raises NipError for a name that means none; without weights any will do.
        """
        from nip_core.errors import ServerError, SettingsError
        from nip_core.models import resolve_model
        from nip_core.session.named_model import find_model
        from nip_lm_server.client import find_capabilities

        if engine is None:
            return resolve_model(model)
        try:
            has_weights = find_capabilities(engine).has_weights
        except ValueError as error:
            raise SettingsError(f"--engine: {error}") from None
        try:
            return find_model(model) if has_weights else resolve_model(model)
        except (SettingsError, ServerError) as error:
            raise type(error)(f"--model: {error}") from None
