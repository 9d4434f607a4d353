"""Models by name: the one that comes with the server, and published ones that were added.

TINY           small enough for every wheel and every machine; its README.md says how it was made,
               and for which game
NamedModels    names of models, as a program gives them to the server's commands
ServerModels   those of the server alone
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

TINY = Path(__file__).parent / "tiny"


class NamedModels(Protocol):
    """Names of models that a program has."""

    @property
    def bundled(self) -> Mapping[str, Path]:
        """The directories of those that come with the program, by name."""
        ...

    def find(self, model: str, engine: str | None = None) -> str:
        """Return the directory of a model by its name, and any other name or path as it is.

        A program may find a model by the engine that loads it. Raises NipError for a model that is
        not here, or not whole.
        """
        ...


class ServerModels:
    """The names that the server's own commands take."""

    bundled: Mapping[str, Path] = {"tiny": TINY}

    def find(self, model: str, engine: str | None = None) -> str:
        """Return the directory of a bundled or an added model, and any other name as it is."""
        from nip_base.published.added_models import look_at
        from nip_base.published.known_models import KNOWN

        del engine
        if model in self.bundled:
            return str(self.bundled[model])
        return str(look_at(KNOWN[model]).require()) if model in KNOWN else model
