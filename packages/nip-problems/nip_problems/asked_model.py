"""A language model that is asked outside of a run: where it answers, and its prices.

    AskedModelOptions        which model, where, at what price
    make_settings            the settings of a run in which that model is the solo verifier
    refuse_unpriced, usd_of  the cost of its calls
    open_model               a client and the address, while its own server runs where it needs one

A run's settings are used for all of it, so that a model is named, sampled, priced and reached here
as in a run.
"""

import contextlib
import os
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass

from nip_base.temporary_folders import held_folder
from nip_core.errors import SettingsError
from nip_core.parameters import HyperParameters, PureTextAgentParameters, load_parameters
from nip_core.parameters.derived.model_names import base_name
from nip_core.parameters.derived.prices import find_missing_prices, price_calls
from nip_core.progress.board import Progress
from nip_core.rollouts.client.chat_client import ChatClient
from nip_core.rollouts.client.completions import Endpoint
from nip_core.servers.endpoints import find_remote_endpoints
from nip_core.servers.own_server import OwnServer, check_server, make_server_spec
from nip_core.session.named_models import check_models
from nip_core.session.opening import make_chat_client
from nip_core.session.server_checks import check_reachable

AGENT = "verifier"


@dataclass(frozen=True)
class AskedModelOptions:
    """A model at a provider."""

    name: str
    provider: str = "OpenAI"
    base_url: str | None = None
    temperature: float | None = None
    max_tokens: int = 1500
    """Of an answer."""
    usd: tuple[float, float] | None = None
    """US dollars for a million prompt tokens, and for a million generated ones."""
    settings: tuple[str, ...] = ()
    """More settings of a run, as A.B=C."""


@dataclass(frozen=True)
class OpenModel:
    """A model that can be asked."""

    client: ChatClient
    endpoint: Endpoint
    name: str
    """By which its server knows it."""


def make_settings(options: AskedModelOptions, run_name: str) -> HyperParameters:
    """Make the settings of a run with a lone verifier, the model. Raises SettingsError."""
    agent: dict[str, object] = {
        "model_provider": options.provider,
        "model_name": options.name,
        "max_tokens_per_message": options.max_tokens,
        "base_url": options.base_url,
        "temperature": options.temperature,
    }
    prices = {}
    if options.usd is not None:
        prompt_usd, completion_usd = options.usd
        prices[options.name] = {
            "prompt_usd": prompt_usd,
            "completion_usd": completion_usd,
            "training_usd": 0.0,  # it is asked, and never trained
        }
    values = {
        "run_name": run_name,
        "dataset": "problems",
        "interaction_protocol": "solo_verifier",
        "agents": {AGENT: agent},
        "prices": prices,
    }
    return load_parameters(values, options.settings)


def find_agent(parameters: HyperParameters) -> PureTextAgentParameters:
    """Return the settings of the model."""
    return parameters.model_agents[AGENT]


def refuse_unpriced(parameters: HyperParameters, option: str) -> None:
    """Raise SettingsError if calls are paid for and a price is missing."""
    if missing_prices := find_missing_prices(parameters):
        raise SettingsError(
            f"{option}: {missing_prices[0]} is paid for, and its price is not known; give US "
            f"dollars for a million prompt and a million generated tokens, as {option} 0.15,0.60"
        )


def price_tokens(
    parameters: HyperParameters, prompt_tokens: float, completion_tokens: float
) -> float:
    """Return US dollars for so many tokens; nothing on hardware of one's own."""
    return price_calls(parameters, {AGENT: (prompt_tokens, completion_tokens)}) or 0.0


@contextlib.asynccontextmanager
async def open_model(
    parameters: HyperParameters, environment: Mapping[str, str] = os.environ
) -> AsyncIterator[OpenModel]:
    """Give the model of the settings, reachable.

    Raises SettingsError for a key that is missing, ServerError for a server that is.
    """
    check_server(parameters, environment)
    check_models(parameters, environment)
    endpoints = find_remote_endpoints(parameters, environment)
    progress = Progress()
    await check_reachable(parameters, endpoints, progress)
    async with contextlib.AsyncExitStack() as stack:
        endpoint = next((endpoint_of_play.play for endpoint_of_play in endpoints.values()), None)
        spec = make_server_spec(parameters)
        if endpoint is None:
            assert spec is not None  # or there would be an address
            place = stack.enter_context(held_folder("nip-model-"))
            timeout_s = parameters.lm_server.start_timeout_s
            server = OwnServer(
                spec, place / "lm_server", timeout_s=timeout_s, environment=environment
            )
            stack.callback(server.stop)
            await server.ensure()
            endpoint = server.endpoint
        client = await stack.enter_async_context(make_chat_client(parameters, progress))
        yield OpenModel(client, endpoint, base_name(parameters, find_agent(parameters)))
