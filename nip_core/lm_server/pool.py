"""The engines of a server, and which of them answers for a model.

A server has one engine or several, each for one base model and the adapters over it. Routes ask
`engine_for`; nothing else needs to know how many there are.
"""

from nip_core.lm_server.engines.base import Engine
from nip_core.lm_server.errors import model_not_found
from nip_core.lm_server.models import ModelStore


class EnginePool:
    """The running engines of one server."""

    def __init__(self, engine: Engine, models: ModelStore):
        self._engine = engine
        self._models = models

    def engines(self) -> tuple[Engine, ...]:
        """Every engine, in the order of the configuration."""
        return (self._engine,)

    def engine_for(self, model: str) -> Engine:
        """The engine that answers for `model` now.

        Raises ApiError 404 if there is no such model, 503 if it can't answer at the moment.
        """
        if not self._models.is_served(model):
            raise model_not_found(model)
        return self._engine
