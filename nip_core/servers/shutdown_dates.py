"""When providers shut down the models of a run, as they say it themselves."""

import logging
from collections.abc import Mapping
from datetime import date
from urllib.parse import quote

import aiohttp

from nip_base.formats.bounds import parse_json
from nip_core.concurrency import gather_or_cancel
from nip_core.parameters import HyperParameters
from nip_core.parameters.shutdowns import is_at_openai, list_shutdown_warnings
from nip_core.proxies import proxy_for
from nip_core.rollouts.client.completions import Endpoint
from nip_core.servers.endpoints import Endpoints

_log = logging.getLogger(__name__)

_TIMEOUT_S = 10.0  # a run's start waits for it, and all are asked at once


async def warn_of_shutdowns(
    parameters: HyperParameters, endpoints: Mapping[str, Endpoints], today: date
) -> None:
    """Log when the models of the run end, by their provider's word or else by the table."""
    dates = await ask_shutdown_dates(parameters, endpoints)
    for line in list_shutdown_warnings(parameters, today, dates):
        _log.warning("run %r: %s", parameters.run_name, line)


async def ask_shutdown_dates(
    parameters: HyperParameters, endpoints: Mapping[str, Endpoints]
) -> dict[str, date]:
    """Ask OpenAI by model for its ``shutdown_date``; one request for each model.

    A model of which nothing is said, or not in time, is left out: it is no reason to stop.
    """
    endpoint_by_model: dict[str, Endpoint] = {}
    for group, group_endpoints in endpoints.items():
        agent = parameters.group_parameters(group)
        if is_at_openai(agent):
            endpoint_by_model[agent.model_name] = group_endpoints.control
    if not endpoint_by_model:
        return {}
    timeout = aiohttp.ClientTimeout(total=_TIMEOUT_S)
    async with aiohttp.ClientSession(timeout=timeout) as http:
        days = await gather_or_cancel(
            _ask(http, group_endpoints, model)
            for model, group_endpoints in endpoint_by_model.items()
        )
    return {
        model: day for model, day in zip(endpoint_by_model, days, strict=True) if day is not None
    }


async def _ask(http: aiohttp.ClientSession, endpoint: Endpoint, model: str) -> date | None:
    headers = {"Authorization": f"Bearer {endpoint.api_key}"}
    try:
        async with http.get(
            f"{endpoint.base_url}/models/{quote(model, safe=':')}",
            headers=headers,
            proxy=proxy_for(endpoint.base_url),
        ) as response:
            body = parse_json(await response.read()) if response.status == 200 else None
        day = body.get("shutdown_date") if isinstance(body, dict) else None
        return date.fromisoformat(day) if isinstance(day, str) else None
    # A warning that does not come is no reason to stop; the table has dates as well.
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError):
        return None
