"""When OpenAI shuts models down, as far as it is announced: a table of data.

Source: https://developers.openai.com/api/docs/deprecations, read in November 2026. The API itself
says it in a model's ``shutdown_date``, which `nip_core.servers.shutdown_dates` asks for.
"""

from collections.abc import Iterator, Mapping
from datetime import date

from nip_core.parameters.blocks.agents import PureTextAgentParameters
from nip_core.parameters.hyper_parameters import HyperParameters
from nip_core.parameters.services.dialects import dialect_name
from nip_core.parameters.services.providers import OpenAI

_DECEMBER, _JANUARY, _APRIL = date(2026, 12, 11), date(2027, 1, 14), date(2027, 4, 1)
SHUTDOWNS: dict[str, date] = {
    **dict.fromkeys(("gpt-5", "gpt-5-2025-08-07"), _DECEMBER),
    **dict.fromkeys(("gpt-5-mini", "gpt-5-mini-2025-08-07"), _DECEMBER),
    **dict.fromkeys(("gpt-5-nano", "gpt-5-pro", "o3", "o3-pro"), _DECEMBER),
    **dict.fromkeys(("gpt-4o", "gpt-4o-2024-08-06", "gpt-4o-2024-11-20"), _JANUARY),
    **dict.fromkeys(("gpt-4o-mini", "gpt-4o-mini-2024-07-18"), _JANUARY),
    **dict.fromkeys(("gpt-4.1", "gpt-4.1-2025-04-14"), _JANUARY),
    **dict.fromkeys(("gpt-4.1-mini", "gpt-4.1-mini-2025-04-14"), _JANUARY),
    "gpt-5.1": _APRIL,
}
"""The last day of a model and of all fine-tunes of it."""
LAST_JOBS = date(2027, 1, 6)
"""From then on OpenAI takes no new fine-tune job."""


def list_shutdown_warnings(
    parameters: HyperParameters, today: date, days: Mapping[str, date] | None = None
) -> list[str]:
    """Say when models at OpenAI end, or have ended; one line each.

    `days`: by model, the day that OpenAI says itself, which counts more than the table.
    """
    lines = dict.fromkeys(
        line
        for name, agent in parameters.model_agents.items()
        if is_at_openai(agent)
        for line in _warnings(name, agent, today, (days or {}).get(agent.model_name))
    )
    return list(lines)


def is_at_openai(agent: PureTextAgentParameters) -> bool:
    """Return whether OpenAI itself serves the agent's model."""
    is_there = agent.base_url is None and agent.provider.address == OpenAI.address
    return is_there and dialect_name(agent) == "openai"


def _warnings(
    name: str, agent: PureTextAgentParameters, today: date, announced_day: date | None
) -> Iterator[str]:
    base = (
        agent.model_name.split(":")[1] if agent.model_name.startswith("ft:") else agent.model_name
    )
    day = announced_day or SHUTDOWNS.get(base)
    if day is not None:
        models = f"{base} and all fine-tunes of it"
        if today < day:
            days = (day - today).days
            yield f"agents.{name}: OpenAI shuts {models} down in {days} days, on {day}"
        else:
            yield f"agents.{name}: OpenAI has shut {models} down on {day}"
    if not agent.freeze_agent:
        ends = "takes" if today < LAST_JOBS else "has taken"
        yield f"OpenAI {ends} no new fine-tune jobs from {LAST_JOBS} on; an lm_server does"
