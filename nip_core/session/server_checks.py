"""Checks that need a server.

check_reachable  whether the servers that the settings name can be reached at all
check_served     whether those that are lm_servers have the models of the settings
check_trainable  whether other servers have fine-tuning jobs, where models are trained there
check_version    whether those that are lm_servers have a version that fits
check_engines    whether the engines serve the agents' adapters, and alike on every day, and
                 whether their templates can write the thoughts that are trained on
"""

import asyncio
import json
import logging
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from nip_core.concurrency import gather_or_cancel
from nip_core.errors import ServerError, SettingsError
from nip_core.jobs.job import BackendTrouble, Refused
from nip_core.jobs.server_calls import TemplateFacts, version_problem
from nip_core.jobs.services import open_backend
from nip_core.nearest import did_you_mean, nearest_first
from nip_core.parameters import HyperParameters
from nip_core.parameters.derived.model_names import base_name
from nip_core.progress.board import Progress
from nip_core.proxies import proxy_for
from nip_core.redaction import show_address
from nip_core.servers.endpoints import Endpoints
from nip_core.session.session import Session

_log = logging.getLogger(__name__)

_CONNECT_S = 10.0
_LOOK_S = 30.0  # for a list of jobs
_NO_SUCH_API = (404, 405, 501)
_MOST_NAMES = 8
_PAUSES_S = (1.0, 2.0)  # a few seconds: a server may be starting, a wrong address stays wrong


async def check_reachable(
    parameters: HyperParameters, endpoints: Mapping[str, Endpoints], progress: Progress
) -> None:
    """Connect to every server of the settings, a few times; `progress` says why again.

    No request is sent. Raises ServerError if one can't be reached, or the proxy before it, and
    SettingsError for a proxy that can't be used.
    """
    agents = {
        endpoint.base_url: parameters.groups[group][0]
        for group, both in endpoints.items()
        for endpoint in (both.control, both.play)
    }

    async def reach(url: str) -> None:
        proxy = proxy_for(url)
        through = f" through the proxy {show_address(proxy)}" if proxy is not None else ""
        for pause_s in (*_PAUSES_S, None):
            try:
                return await asyncio.wait_for(_connect(proxy or url), _CONNECT_S)
            except (OSError, TimeoutError) as error:
                reason = str(error) or f"no connection within {_CONNECT_S:.0f} s"
            if pause_s is not None:
                trouble = f"{url} can't be reached{through} ({reason})"
                progress.count_retry(trouble)
                progress.tell("retry", f"{trouble}; trying again")
                await asyncio.sleep(pause_s)
        raise ServerError(
            f"{url}: can't be reached{through} ({reason}), and agents.{agents[url]} plays or is "
            "trained there: check the address and the network, then run again"
        )

    with progress.doing("looking for the models' servers"):
        await gather_or_cancel(map(reach, agents))


async def _connect(url: str) -> None:
    address = urlsplit(url)
    is_https = address.scheme == "https"
    _, writer = await asyncio.open_connection(
        address.hostname, address.port or (443 if is_https else 80), ssl=is_https or None
    )
    writer.close()


async def check_served(
    parameters: HyperParameters, endpoints: Mapping[str, Endpoints], progress: Progress
) -> None:
    """Ask the lm_servers of the settings for their models' names.

    Raises SettingsError for a base model that one does not have, ServerError where one does not
    answer. Servers of others may answer to more names than they list.
    """

    async def check(group: str) -> None:
        agent, place = parameters.group_parameters(group), parameters.groups[group][0]
        server = endpoints[group].lm_server
        if server is None:
            return
        name, listed = base_name(parameters, agent), await server.list_models()
        if listed and name not in listed and not name.startswith("tinker://"):
            raise SettingsError(
                f"agents.{place}.model_name: the server at {show_address(server.root)} has no "
                f"model {name!r}{did_you_mean(name, listed)}; it has "
                f"{', '.join(nearest_first(name, listed)[:_MOST_NAMES])}; use one of these names, "
                f"or start it with --served-model-name {name}"
            )

    with progress.doing("looking for the models at their servers"):
        await gather_or_cancel(map(check, endpoints))


async def check_trainable(
    parameters: HyperParameters, endpoints: Mapping[str, Endpoints], progress: Progress
) -> None:
    """Ask the servers at a `base_url` for their list of jobs, where models are trained there.

    Raises SettingsError for one without such a list: after play nothing could be trained. Other
    errors are left to the jobs.
    """

    async def check(group: str) -> None:
        agent, place = parameters.group_parameters(group), parameters.groups[group][0]
        service, endpoints_of_group = agent.provider.training, endpoints.get(group)
        has_door = service is not None and ":" in str(service.backend)  # which it can be asked at
        if (
            (agent.base_url is None and not has_door)
            or endpoints_of_group is None
            or endpoints_of_group.lm_server is not None
        ):
            return
        if service is None or not isinstance(service.backend, str):
            return
        try:
            async with open_backend(
                agent.provider, endpoints_of_group.control, timeout_s=_LOOK_S
            ) as backend:
                await backend.check_jobs()
                await backend.check_model(base_name(parameters, agent))
        except Refused as error:
            if error.status in _NO_SUCH_API:
                raise SettingsError(
                    f"agents.{place}.base_url: the server has no fine-tuning jobs ({error}), so "
                    f"{place} can play there and can't be trained; set agents.{place}.freeze_agent:"
                    " true, or train at OpenAI, at an lm_server (docs/lm-server.md), or by a "
                    "service of your own (docs/services.md)"
                ) from None
        except BackendTrouble as error:
            _log.debug("%s: the list of jobs can't be had: %s", place, error)

    if parameters.rl.num_iterations:
        with progress.doing("looking for the jobs at servers of others"):
            await gather_or_cancel(map(check, parameters.trainable_groups))


async def check_version(session: Session) -> None:
    """Compare versions with every lm_server of the settings.

    Raises SettingsError if a major version (below 1.0: a minor one) differs. A server that
    has no /version isn't ours and is not checked.
    """
    parameters = session.parameters
    agents = {
        addresses.control: parameters.groups[group][0]
        for group, addresses in session.endpoints.items()
    }
    servers = {addresses.control: addresses.lm_server for addresses in session.endpoints.values()}
    for endpoint, server in servers.items():
        if server is None:
            continue
        _, version = await server.version()
        if version is not None and (problem := version_problem(version)):
            raise SettingsError(
                f"agents.{agents[endpoint]}: the server at {server.root}/version has {problem}"
            )


async def check_engines(session: Session) -> None:
    """Compare the agents with the facts that engines tell of themselves; other servers tell none.

    Raises SettingsError for an adapter in the place of a base model, where that is trained; for
    adapters of a higher rank than an engine takes; for a chat template that writes today's date,
    and for one that can't write the thoughts that are trained on.
    """
    for group, agents in session.parameters.groups.items():
        agent = session.parameters.group_parameters(group)
        model, server = session.base_model(group), session.at(group).lm_server
        if server is None:
            continue
        # Jobs begin with the base model: such an adapter would play, and another would be trained.
        under = await server.find_base(model) if model.startswith("ft:") else None
        if under is not None and not agent.freeze_agent:
            raise SettingsError(
                f"agents.{agents[0]}.model_name: {model!r} is an adapter over {under!r}, and a run "
                f"begins to train with a base model; name {under!r}, and let the run begin with "
                f"what another has trained (base_run), or set agents.{agents[0]}.freeze_agent: true"
            )
        status = await server.engine_status(model)
        limit = None if status is None else status.max_lora_rank
        is_trained = not agent.freeze_agent and agent.use_lora
        if is_trained and limit is not None and agent.lora_rank > limit:
            raise SettingsError(
                f"agents.{agents[0]}.lora_rank is {agent.lora_rank}, but the engine of {model!r} "
                f"takes {limit} at most; lower it, or start the engine with a higher max_lora_rank"
            )
        template = (status and status.template_facts) or TemplateFacts()
        if template.writes_date:
            dates = [name for name in template.unset if "date" in name]
            raise SettingsError(
                f"agents.{agents[0]}.model_name: the chat template of {model!r} writes today's "
                "date, so that the model would be trained on other prompts than it was asked; "
                + (_pinned(dates[0], "26 Jul 2024") if dates else "take strftime_now out of it")
            )
        _check_thoughts(session.parameters, agents, model, template)
        if "enable_thinking" in template.unset:
            _log.warning(
                "agents.%s: %s thinks before it answers, within the tokens of a message; %s",
                agents[0], model, _pinned("enable_thinking", False),
            )  # fmt: skip


def _check_thoughts(
    parameters: HyperParameters, agents: Sequence[str], model: str, template: TemplateFacts
) -> None:
    """Refuse training on thoughts where the template leaves them out; older servers say nothing
    of it.
    """
    if template.thoughts is not None:
        return
    for name in agents:
        agent = parameters.model_agents[name]
        if agent.train_reasoning == "keep" and not agent.freeze_agent:
            raise SettingsError(
                f"agents.{name}.train_reasoning is keep, but the chat template of {model!r} can't "
                "write thoughts: it leaves out reasoning_content and what stands between <think> "
                "and </think>, or ends them in the prompt (enable_thinking: false); set drop, "
                "another chat_template_kwargs, or use another model"
            )


def _pinned(name: str, value: Any) -> str:
    """Say in words how a variable of the chat template is set."""
    return (
        f"set lm_server.options.chat_template_kwargs: {{{name}: {json.dumps(value)}}} (for `nip "
        f"serve`: --option 'chat_template_kwargs={json.dumps({name: value})}')"
    )
