"""Who serves models: one class for each provider, with all that differs between them.

Provider            what a provider's API is and takes; a user's own is a subclass
TrainingService     how its models are trained, as far as settings know it; a provider has one, or
                    its models only play
PROVIDERS           nip's own, by the names that the setting `model_provider` takes
Scripted            the one that `use_dummy_api` puts in the place of any other
find_provider       by name, or by ``path/to/file.py:Class``
describe_providers  what that setting means, with all names

A further provider is a class here, with an address and the variable for another one. Where its API
takes something otherwise than OpenAI's, it also has a row in
`nip_core.parameters.services.dialects`, and its name in `ApiDialect` there. Where its models are
trained by another protocol than OpenAI's, its training service names the back-end, which
`nip_core.jobs.services` opens. Prices are no part of it: they differ by model and stand in the
settings.

Sources, read in November 2026: the providers' pages on addresses and keys.
"""

import functools
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from nip_base.importing import import_object
from nip_core.nearest import did_you_mean, nearest_first

ProviderName = Literal["OpenAI", "SelfHosted", "OpenRouter", "Together", "Tinker"]

# Without a job's number of passes its cost could not be told, so every service is told it.
_ALWAYS_SENT = "n_epochs"


@dataclass(frozen=True, kw_only=True)
class TrainingService:
    """Where and how a provider's models are trained: fields are refused or sent by this."""

    backend: str | type[object] = "openai"
    """The calls to it: "openai", the protocol of OpenAI's fine-tuning API; "nip", the same with the
    additions of an lm_server; a class of your own, a subclass of `nip_core.jobs.job.Backend`; or,
    of another distribution of nip, its address."""
    methods: Collection[str] = ("supervised", "dpo")
    """How it trains: "supervised", on chats; "dpo", on pairs of a better and a worse answer;
    "trajectories", on sampled tokens with their advantages."""
    settings: Collection[str] | None = (_ALWAYS_SENT, "beta")
    """The settings of a job that are sent to it, by the names in `JobSpec.hyper_parameters` and in
    `NipSettings`; None: all. n_epochs is always sent."""
    takes_thoughts: bool = False
    """A training conversation may have thoughts before its answers."""
    takes_wandb: bool = False
    """It reports its jobs to Weights & Biases."""

    def takes(self, method: str) -> bool:
        """Tell whether it trains by a method."""
        return method in self.methods

    def takes_setting(self, name: str) -> bool:
        """Tell whether a setting of a job is sent to it."""
        return name == _ALWAYS_SENT or self.settings is None or name in self.settings


class Provider:
    """A provider of models that speaks OpenAI's protocol where they play."""

    key_variable: ClassVar[str | None] = None
    """The environment variable with its key; None: it takes none."""
    address: ClassVar[str | None] = None
    """Of its API, with the path; None: the settings name it."""
    address_variable: ClassVar[str | None] = None
    """The environment variable that gives another address."""
    play_path: ClassVar[str] = ""
    """Of OpenAI's protocol below the address, where the training has another one."""
    dialect: ClassVar[str] = "openai"
    """The dialect of its API, a name of `DIALECTS`."""
    training: ClassVar[TrainingService | None] = None
    """Where its models are trained; None: they only play."""
    takes_repetition_penalty: ClassVar[bool] = True
    sends_bills: ClassVar[bool] = True
    is_lm_server: ClassVar[bool] = False
    """Its servers are `nip serve`'s: they have a version that must fit, lay out prompts, describe
    their engines, and join a call that is sent again."""
    starts_server: ClassVar[bool] = False
    """A run starts a server for it, unless the settings have the address of one."""
    names_weights: ClassVar[bool] = False
    """A model's name says which weights a server loads: bundled ones, a folder, or the Hub's."""


class OpenAI(Provider):
    """OpenAI's API, and by `base_url` what has copied it."""

    key_variable = "OPENAI_API_KEY"
    address = "https://api.openai.com/v1"
    address_variable = "OPENAI_BASE_URL"
    training = TrainingService(takes_wandb=True)
    takes_repetition_penalty = False


class OpenRouter(Provider):
    """Passes calls on to many; it trains nothing."""

    key_variable = "OPENROUTER_API_KEY"
    address = "https://openrouter.ai/api/v1"
    address_variable = "OPENROUTER_BASE_URL"
    dialect = "openrouter"


class Together(Provider):
    """Its fine-tuning has a protocol of its own, so its models only play here."""

    key_variable = "TOGETHER_API_KEY"
    address = "https://api.together.ai/v1"
    address_variable = "TOGETHER_BASE_URL"
    dialect = "together"


class Tinker(Provider):
    """Thinking Machines' service, or whoever speaks its API; `nip_tinker` trains there."""

    key_variable = "TINKER_API_KEY"
    address = "https://tinker.thinkingmachines.dev/services/tinker-prod"
    address_variable = "TINKER_BASE_URL"
    play_path = "/oai/api/v1"
    training = TrainingService(
        backend="nip_tinker.backend:TinkerBackend",
        methods=("supervised", "dpo", "trajectories"),
        settings=(
            *("n_epochs", "batch_size", "beta", "advantage", "clip_low", "clip_high"),
            *("learning_rate", "lr_scheduler", "warmup_ratio", "weight_decay", "max_grad_norm"),
            *("lora_rank", "max_length", "start_from"),
        ),
        takes_thoughts=True,
    )
    options: ClassVar[Mapping[str, Any]] = {}
    """Of `nip_tinker.options.Options`, such as block_minutes or tokenizer, in a class over this."""


class SelfHosted(Provider):
    """An lm_server: the run's own, or the one that the settings name."""

    key_variable = "NIP_API_KEY"
    dialect = "self_hosted"
    training = TrainingService(
        backend="nip",
        methods=("supervised", "dpo", "trajectories"),
        settings=None,
        takes_thoughts=True,
    )
    sends_bills = False
    is_lm_server = True
    starts_server = True
    names_weights = True


class Scripted(SelfHosted):
    """The run's own server with scripted answers in the place of a model's (`use_dummy_api`)."""

    names_weights = False


PROVIDERS: dict[str, type[Provider]] = {
    "OpenAI": OpenAI,
    "OpenRouter": OpenRouter,
    "Together": Together,
    "Tinker": Tinker,
    "SelfHosted": SelfHosted,
}


def find_provider(name: str) -> type[Provider]:
    """The provider of this name, or at ``package.module:Class`` or ``path/to/file.py:Class``.

    Raises ValueError if there is none.
    """
    if ":" in name:
        return _import_provider(name)
    provider = PROVIDERS.get(name)
    if provider is None:
        raise ValueError(
            f"there is no provider {name!r}{did_you_mean(name, PROVIDERS)}; there are "
            f"{', '.join(nearest_first(name, PROVIDERS))}, and one of your own is named like "
            '"package.module:Class" or "path/to/file.py:Class"'
        )
    return provider


@functools.cache
def _import_provider(address: str) -> type[Provider]:
    provider = import_object(address)
    if not (isinstance(provider, type) and issubclass(provider, Provider)):
        raise ValueError(f"{address!r} is not a subclass of nip_core.parameters.Provider")
    if not (provider.training is None or isinstance(provider.training, TrainingService)):
        raise ValueError(
            f"{address!r}: its training is no nip_core.parameters.TrainingService "
            f"(got {provider.training!r})"
        )
    return provider


def describe_providers() -> str:
    """Say what the setting `model_provider` means, for the page of settings."""
    names = [
        f"{name} (an lm_server)" if provider.is_lm_server else name
        for name, provider in PROVIDERS.items()
        if provider.training is not None
    ]
    playing = [name for name, provider in PROVIDERS.items() if provider.training is None]
    return (
        f"Who serves the model: {' or '.join(names)}; or {' or '.join(playing)}, whose models only "
        "play (freeze_agent: true); or one of your own, path/to/file.py:Class (docs/services.md)."
    )
