"""The addresses where model groups are asked and trained, and their keys.

find_remote_endpoints  the addresses of every group that is not on the run's own server
find_group_endpoints   those of one group
list_key_variables     the environment variables with the keys that these need

In this order: `use_dummy_api` (the run's own server), `base_url`, the addresses of an lm_server
among the agent's settings, `lm_server.url`, and for SelfHosted the run's own server. Keys come
from the environment only.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from nip_core.errors import SettingsError
from nip_core.parameters import HyperParameters, PureTextAgentParameters
from nip_core.parameters.basis.addresses import check_plain_address
from nip_core.parameters.derived.hosting import uses_own_server
from nip_core.parameters.derived.model_names import speaks_nip
from nip_core.parameters.services.providers import PROVIDERS
from nip_core.redaction import read_key
from nip_core.rollouts.chat_client import Endpoint

SERVER_KEY_VARIABLE = PROVIDERS["SelfHosted"].key_variable


@dataclass(frozen=True)
class Endpoints:
    """The two addresses of a group; most servers have one for both."""

    play: Endpoint
    """Chat completions."""
    control: Endpoint
    """Files, jobs, models and their proofs."""


def find_remote_endpoints(
    parameters: HyperParameters, environment: Mapping[str, str] = os.environ
) -> dict[str, Endpoints]:
    """Return by group the addresses outside of the run's own server.

    Raises SettingsError when a key is not in the environment.
    """
    endpoints = {
        group: find_group_endpoints(parameters, group, environment) for group in parameters.groups
    }
    return {group: at for group, at in endpoints.items() if at is not None}


def find_group_endpoints(
    parameters: HyperParameters, group: str, environment: Mapping[str, str] = os.environ
) -> Endpoints | None:
    """The addresses of one group; None if it is on the run's own server.

    Raises SettingsError when its key is not in the environment, or the address there has more in
    it than a place.
    """
    agent = parameters.group_parameters(group)
    if uses_own_server(parameters, agent):
        return None
    variable = PROVIDERS[agent.model_provider].key_variable
    key = read_key(environment, variable)
    if not key:
        raise SettingsError(
            f"agents.{parameters.groups[group][0]}: model_provider {agent.model_provider} needs "
            f"its key in the environment variable {variable}, which is not set"
        )
    play, control = _addresses(parameters, agent, environment)
    player = Endpoint(play, key, agent.served_as, joins=speaks_nip(agent))
    return Endpoints(player, Endpoint(control, key))


def list_key_variables(parameters: HyperParameters) -> list[str]:
    """List the environment variables with the keys for `find_remote_endpoints`."""
    agents = (parameters.group_parameters(group) for group in parameters.groups)
    needed = {
        PROVIDERS[a.model_provider].key_variable
        for a in agents
        if not uses_own_server(parameters, a)
    }
    return sorted(needed)


def _addresses(
    parameters: HyperParameters, agent: PureTextAgentParameters, environment: Mapping[str, str]
) -> tuple[str, str]:
    """Return where the agent's group plays and where it is trained, both with the API's path."""
    # The nearest setting counts: the agent's own address, then its server's, then the run's.
    if agent.base_url is not None:
        url = _with_path(agent.base_url)
        return url, url
    if agent.model_provider == "SelfHosted":
        if agent.engine_url is not None and agent.control_url is not None:
            return _server(agent.engine_url), _server(agent.control_url)
        assert parameters.lm_server.url is not None  # or it would be the run's own server
        url = _server(parameters.lm_server.url)
        return url, url
    provider = PROVIDERS[agent.model_provider]
    variable = provider.address_variable
    assert variable is not None and provider.address is not None  # all but SelfHosted have both
    url = (environment.get(variable) or provider.address).rstrip("/")
    try:
        check_plain_address(url)
    except ValueError as error:
        raise SettingsError(f"environment variable {variable}: {error}") from None
    return url, url


def _server(url: str) -> str:
    """The API of an lm_server, whose address may be given with or without its path."""
    return f"{url.rstrip('/').removesuffix('/v1')}/v1"


def _with_path(url: str) -> str:
    """Return an address as it is given; a bare host gets the usual path of the API."""
    url = url.rstrip("/")
    return url if urlsplit(url).path else f"{url}/v1"
