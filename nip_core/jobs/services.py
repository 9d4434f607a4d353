"""The back-ends of providers: who is called where their models are trained and described."""

import inspect
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

from nip_base.importing import import_object
from nip_base.wire import NipSettings
from nip_core.errors import SettingsError
from nip_core.jobs.job import Backend, PlannedTraining
from nip_core.jobs.openai_backend import NipBackend, OpenAIBackend
from nip_core.jobs.own_backend import OwnBackend
from nip_core.parameters import HyperParameters
from nip_core.parameters.services.providers import Provider, TrainingService
from nip_core.rollouts.client.completions import Endpoint

_OURS: dict[str, type[OpenAIBackend]] = {"openai": OpenAIBackend, "nip": NipBackend}
_WORDS = ("n_epochs", "batch_size", "beta", "advantage", "clip_low", "clip_high", "kl_penalty")
"""The settings that stand in `JobSpec.hyper_parameters`; all others are in `NipSettings`."""


@asynccontextmanager
async def open_backend(
    provider: type[Provider], endpoint: Endpoint, *, timeout_s: float = 120.0
) -> AsyncIterator[Backend]:
    """Open the back-end of a provider at an address; its connections are closed at the end.

    One that trains nothing describes its models, by OpenAI's protocol.
    """
    service = provider.training or TrainingService()
    backend: Backend
    if isinstance(service.backend, str) and ":" in service.backend:
        kind = import_object(service.backend)
        backend = kind(endpoint.base_url, endpoint.api_key, provider, timeout_s=timeout_s)
    elif isinstance(service.backend, str):
        backend = _OURS[service.backend](endpoint.base_url, endpoint.api_key, timeout_s=timeout_s)
    else:
        backend = OwnBackend(_find_own(service), endpoint.base_url, endpoint.api_key)
    try:
        yield backend
    finally:
        await backend.aclose()


def check_services(parameters: HyperParameters) -> None:
    """Raise SettingsError for a training service without its calls, or with unknown words."""
    for name, agent in parameters.model_agents.items():
        service, place = agent.provider.training, f"agents.{name}.model_provider"
        if service is None:
            continue
        known_words = {*_WORDS, *NipSettings.model_fields}
        unknown = sorted({*(service.settings or ())} - known_words)
        if unknown:
            raise SettingsError(
                f"{place}: {agent.model_provider} takes settings that no job has "
                f"({', '.join(unknown)}); there are {', '.join(sorted(known_words))}"
            )
        if isinstance(service.backend, str):
            if ":" in service.backend:
                if not agent.freeze_agent:
                    _import_kind(service.backend, place).check_agent(parameters, name)
            elif service.backend not in _OURS:
                raise SettingsError(
                    f"{place}: the backend of {agent.model_provider} is {' or '.join(_OURS)}, or a "
                    f"subclass of nip_core.jobs.job.Backend (got {service.backend!r})"
                )
            continue
        try:
            _find_own(service)
        except TypeError as error:
            raise SettingsError(f"{place}: {agent.model_provider} can't train: {error}") from None
        if agent.provider.starts_server:
            raise SettingsError(
                f"{place}: the run starts a server for {agent.model_provider}, which trains its "
                "models, too; for a backend of your own derive from Provider, with an address"
            )


def plan_trainings(
    parameters: HyperParameters,
    examples: Mapping[str, Sequence[int | None]],
    tokens: Mapping[str, float],
) -> dict[str, PlannedTraining]:
    """Plan the trainings of groups by `Backend.plan_training`, where it has a plan."""
    plans = {}
    for group, by_job in examples.items():
        service = parameters.group_parameters(group).provider.training
        kind = service.backend if service is not None else None
        if isinstance(kind, str) and ":" in kind:
            kind = _import_kind(kind, f"group {group!r}")
        if isinstance(kind, type) and issubclass(kind, Backend):
            plan = kind.plan_training(parameters, group, by_job, tokens.get(group, 0.0))
            if plan is not None:
                plans[group] = plan
    return plans


def _import_kind(address: str, place: str) -> type[Backend]:
    """Import a back-end of another distribution of nip. Raises SettingsError if it is not here."""
    try:
        kind: type[Backend] = import_object(address)
    except ValueError as error:
        part = address.partition(".")[0].replace("_", "-")
        raise SettingsError(f"{place} is trained by {part}: pip install {part} ({error})") from None
    return kind


def _find_own(service: TrainingService) -> type[Backend]:
    """Return a user's class. Raises TypeError for one that misses a call, or can't be made."""
    kind = service.backend
    if not (isinstance(kind, type) and issubclass(kind, Backend)):
        raise TypeError(f"its backend is no subclass of nip_core.jobs.job.Backend (got {kind!r})")
    methods = sorted(kind.__abstractmethods__)
    if methods:
        raise TypeError(f"{kind.__name__} has no method {' and no method '.join(methods)}")
    for call, function in vars(Backend).items():
        is_awaited = inspect.iscoroutinefunction(function)
        if is_awaited and not inspect.iscoroutinefunction(getattr(kind, call)):
            raise TypeError(f"{kind.__name__}.{call} is no async function")
    try:
        inspect.signature(kind).bind("", "")
    except TypeError as error:
        raise TypeError(f"{kind.__name__} is made of an address and a key ({error})") from None
    return kind
