"""The addresses where model groups are asked and trained, and their keys.

In this order: `use_dummy_api` (the run's own server), `base_url`, the addresses of an lm_server
among the agent's settings, `lm_server.url`, and for SelfHosted the run's own server. Keys come
from the environment only.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from nip_core.errors import SettingsError
from nip_core.jobs.server_calls import LmServer
from nip_core.parameters import HyperParameters, PureTextAgentParameters
from nip_core.parameters.basis.addresses import check_plain_address
from nip_core.parameters.derived.hosting import find_host
from nip_core.parameters.services.providers import SelfHosted
from nip_core.redaction import read_key
from nip_core.rollouts.client.completions import Endpoint

_LOOK_S = 60.0  # for answers that take a server no work
_NO_KEY = "-"
SERVER_KEY_VARIABLE = SelfHosted.key_variable


@dataclass(frozen=True)
class Endpoints:
    """The two addresses of a group; most servers have one for both."""

    play: Endpoint
    """Chat completions."""
    control: Endpoint
    """Files, jobs, models and their proofs."""

    @property
    def lm_server(self) -> LmServer | None:
        """The calls that a server of nip alone answers; None where it is another's."""
        return LmServer(self.control, timeout_s=_LOOK_S) if self.play.joins else None


def find_remote_endpoints(
    parameters: HyperParameters, environment: Mapping[str, str] = os.environ
) -> dict[str, Endpoints]:
    """Return by group the addresses outside of the run's own server.

    Raises SettingsError when a key is not in the environment.
    """
    endpoints = {
        group: find_group_endpoints(parameters, group, environment) for group in parameters.groups
    }
    return {group: address for group, address in endpoints.items() if address is not None}


def find_group_endpoints(
    parameters: HyperParameters, group: str, environment: Mapping[str, str] = os.environ
) -> Endpoints | None:
    """The addresses of one group; None if it is on the run's own server.

    Raises SettingsError when its key is not in the environment, or the address there has more in
    it than a place.
    """
    agent = parameters.group_parameters(group)
    if find_host(parameters, agent).is_launched:
        return None
    variable = agent.provider.key_variable
    key = _NO_KEY if variable is None else read_key(environment, variable)
    if not key:
        raise SettingsError(
            f"agents.{parameters.groups[group][0]}: model_provider {agent.model_provider} needs "
            f"its key in the environment variable {variable}, which is not set"
        )
    play, control = _addresses(parameters, agent, environment)
    player = Endpoint(play, key, agent.served_as, joins=agent.provider.is_lm_server)
    return Endpoints(player, Endpoint(control, key))


def list_key_variables(parameters: HyperParameters) -> list[str]:
    """List the environment variables with the keys for `find_remote_endpoints`."""
    agents = (parameters.group_parameters(group) for group in parameters.groups)
    variables = {
        agent.provider.key_variable
        for agent in agents
        if not find_host(parameters, agent).is_launched
    }
    return sorted(variable for variable in variables if variable is not None)


def _addresses(
    parameters: HyperParameters, agent: PureTextAgentParameters, environment: Mapping[str, str]
) -> tuple[str, str]:
    """Return where the agent's group plays and where it is trained, both with the API's path."""
    # The nearest setting counts: the agent's own address, then its server's, then the run's.
    path = agent.provider.play_path
    if agent.base_url is not None:
        url = agent.base_url.rstrip("/") if path else _with_path(agent.base_url)
        return url + path, url
    if agent.provider.is_lm_server:
        if agent.engine_url is not None and agent.control_url is not None:
            return _server(agent.engine_url), _server(agent.control_url)
        assert parameters.lm_server.url is not None  # or it would be the run's own server
        url = _server(parameters.lm_server.url)
        return url, url
    provider = agent.provider
    variable = provider.address_variable
    elsewhere = environment.get(variable) if variable is not None else None
    assert provider.address is not None  # the settings were checked
    url = (elsewhere or provider.address).rstrip("/")
    try:
        check_plain_address(url)
    except ValueError as error:
        place = f"environment variable {variable}" if elsewhere else agent.model_provider
        raise SettingsError(f"{place}: {error}") from None
    return url + path, url


def _server(url: str) -> str:
    """The API of an lm_server; its address may be given with or without its path."""
    return f"{url.rstrip('/').removesuffix('/v1')}/v1"


def _with_path(url: str) -> str:
    """Return an address as it is given; a bare host gets the usual path of the API."""
    url = url.rstrip("/")
    return url if urlsplit(url).path else f"{url}/v1"
