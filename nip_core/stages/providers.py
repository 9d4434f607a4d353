"""Where each model provider answers, and with which key. Keys come from the environment only."""

import os
from collections.abc import Mapping
from pathlib import Path

from nip_core.agents.chat_client import Endpoint
from nip_core.errors import SettingsError
from nip_core.parameters import HyperParameters

_DEFAULTS = {
    "OpenAI": ("OPENAI_BASE_URL", "https://api.openai.com/v1", "OPENAI_API_KEY"),
    "OpenRouter": ("OPENROUTER_BASE_URL", "https://openrouter.ai/api/v1", "OPENROUTER_API_KEY"),
}
SERVER_KEY_VARIABLE = "NIP_API_KEY"


def remote_endpoints(
    parameters: HyperParameters, environment: Mapping[str, str] = os.environ
) -> dict[str, Endpoint]:
    """Endpoints of every provider in use but the run's own server.

    Raises SettingsError when a key is not in the environment.
    """
    endpoints: dict[str, Endpoint] = {}
    for provider in sorted({agent.model_provider for agent in parameters.model_agents.values()}):
        if provider == "SelfHosted":
            if parameters.lm_server.url is None:
                continue
            url, variable = parameters.lm_server.url.rstrip("/"), SERVER_KEY_VARIABLE
            url = url if url.endswith("/v1") else f"{url}/v1"
        else:
            url_variable, default, variable = _DEFAULTS[provider]
            url = environment.get(url_variable, default).rstrip("/")
        key = environment.get(variable, "")
        if not key:
            raise SettingsError(
                f"agents: model_provider {provider} needs its key in the environment variable "
                f"{variable}, which is not set"
            )
        endpoints[provider] = Endpoint(url, key)
    return endpoints


def served_name(model_name: str) -> str:
    """The name under which the run's own server serves a base model: a path's last part."""
    path = Path(model_name)
    return path.resolve().name if path.is_dir() else model_name
