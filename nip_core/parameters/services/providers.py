"""Who serves models: one row for each provider, with all that differs between them.

Provider            a row
PROVIDERS           the table, by the names that the setting `model_provider` takes
describe_providers  what that setting means, with all names

A further provider is a row here, with an address and the variable for another one, and its name in
`ProviderName`. Where its API takes something otherwise than OpenAI's, it also has a row in
`nip_core.parameters.services.dialects`, and its name in `ApiDialect` there. Prices are no part of
it: they differ by model and stand in the settings.

Sources, read in November 2026: the providers' pages on addresses and keys.
"""

from dataclasses import dataclass
from typing import Literal

ProviderName = Literal["OpenAI", "SelfHosted", "OpenRouter", "Together"]


@dataclass(frozen=True)
class Provider:
    """A provider of models."""

    key_variable: str
    """The environment variable with its key."""
    dialect: str
    """What its API takes, a name of `DIALECTS`."""
    address: str | None
    """Of its API, with the path; None: a server of one's own, which the settings name."""
    address_variable: str | None
    """The environment variable that gives another address."""
    trains: bool = False
    """It takes fine-tune jobs over OpenAI's protocol; otherwise its models only play."""
    takes_wandb: bool = False
    """It reports its jobs to Weights & Biases."""
    takes_repetition_penalty: bool = True
    sends_bills: bool = True


PROVIDERS: dict[ProviderName, Provider] = {
    "OpenAI": Provider(
        key_variable="OPENAI_API_KEY",
        dialect="openai",
        address="https://api.openai.com/v1",
        address_variable="OPENAI_BASE_URL",
        trains=True,
        takes_wandb=True,
        takes_repetition_penalty=False,
    ),
    "OpenRouter": Provider(
        key_variable="OPENROUTER_API_KEY",
        dialect="openrouter",
        address="https://openrouter.ai/api/v1",
        address_variable="OPENROUTER_BASE_URL",
    ),
    # Its fine-tuning has a protocol of its own, so its models only play here.
    "Together": Provider(
        key_variable="TOGETHER_API_KEY",
        dialect="together",
        address="https://api.together.ai/v1",
        address_variable="TOGETHER_BASE_URL",
    ),
    # An lm_server: the run's own, or the one that the settings name.
    "SelfHosted": Provider(
        key_variable="NIP_API_KEY",
        dialect="self_hosted",
        address=None,
        address_variable=None,
        trains=True,
        sends_bills=False,
    ),
}


def describe_providers() -> str:
    """Say what the setting `model_provider` means, for the page of settings."""
    names = [
        f"{name} (an lm_server)" if row.address is None else name
        for name, row in PROVIDERS.items()
        if row.trains
    ]
    playing = [name for name, row in PROVIDERS.items() if not row.trains]
    return (
        f"Who serves the model: {' or '.join(names)}; or {' or '.join(playing)}, whose models only "
        "play (freeze_agent: true)."
    )
