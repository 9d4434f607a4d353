"""The configuration of the ART trainer adapter's model. Needs the package `art`.

model_config   ART's configuration of a model, from the adapter's; checked for a back-end
"""

import inspect
import logging

import art
from pydantic import BaseModel, ConfigDict, ValidationError

from nip_by_hand.fine_tuning.art.art_adapter_config import ARTBackendConfig, ARTTrainerAdapterConfig
from nip_by_hand.fine_tuning.art.art_backend import LmServerBackend
from nip_by_hand.fine_tuning.art.art_options import model_options
from nip_by_hand.fine_tuning.first_problem import first_problem
from nip_core.errors import SettingsError

_log = logging.getLogger(__name__)


class _ServerArguments(BaseModel):
    model_config = ConfigDict(extra="forbid")

    engine_args: art.dev.EngineArgs | None = None
    server_config: art.dev.OpenAIServerConfig | None = None


def model_config(
    config: ARTTrainerAdapterConfig, backend: "art.Backend"
) -> "art.dev.InternalModelConfig":
    """ART's configuration of the model. Raises SettingsError for a setting that `backend` lacks.

    An lm_server runs already: it is not told the arguments of an inference server, which a warning
    names.
    """
    server = config.backend
    server_arguments = _server_arguments(server)
    parts = {"init_args": server.init_args, "trainer_args": config.trainer_args()}
    if isinstance(backend, LmServerBackend):
        model_options(parts)
        if server_arguments:
            _log.warning(
                "backend: %s not sent, as the server at %s runs already; what it needs of them is "
                "given where it is started (nip serve --option)",
                ", ".join(server_arguments),
                server.url,
            )
    else:
        parts["engine_args"] = server.engine_args
        _refuse_untaken(config, backend)
    return art.dev.InternalModelConfig(**{name: part for name, part in parts.items() if part})


def _server_arguments(backend: ARTBackendConfig) -> list[str]:
    """List the arguments of an inference server, like ``engine_args.max_logprobs``. Raises
    SettingsError for a name or a type unknown to ART.
    """
    parts = {"engine_args": backend.engine_args, "server_config": backend.server_config}
    try:
        _ServerArguments.model_validate(parts)
    except ValidationError as error:
        first = first_problem(error)
        place = ".".join(map(str, first.place))
        raise SettingsError(f"backend.{place}: {first.message}") from None
    return sorted(f"{part}.{name}" for part, values in parts.items() for name in values or {})


def _refuse_untaken(config: ARTTrainerAdapterConfig, backend: "art.Backend") -> None:
    """Raise SettingsError for an option unknown to the back-end's `train`."""
    takes = inspect.signature(backend.train).parameters
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in takes.values()):
        return
    for name in config.options():
        if name not in takes:
            raise SettingsError(f"training: {type(backend).__name__}.train takes no {name!r}")
