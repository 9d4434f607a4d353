"""How a provider's jobs are trained: the size of their blocks, and the service's habits.

Options        the options, with their defaults
read_options   those of a provider, a class over Tinker perhaps
"""

from dataclasses import dataclass, fields

from nip_core.errors import SettingsError
from nip_core.parameters import Provider
from nip_core.parameters.services.providers import Tinker

SETTLE_S = 10.0
"""How long the service's lists may lag behind."""


@dataclass(frozen=True)
class Options:
    """How a provider's jobs are trained."""

    block_minutes: float = 2.0
    block_usd: float | None = None
    train_usd: float = 0.0
    first_steps: int = 10
    """Of a job's first block, before the time of a step is known."""
    most_steps: int | None = None
    tokenizer: str | None = None
    settle_s: float = SETTLE_S
    takes_level_2: bool = True


def read_options(provider: type[Provider]) -> Options:
    """Read how a provider's jobs are trained. Raises SettingsError for unknown options."""
    options = dict(provider.options) if issubclass(provider, Tinker) else {}
    names = [field.name for field in fields(Options)]
    unknown = [name for name in options if name not in names]
    if unknown:
        raise SettingsError(
            f"{provider.__name__}.options: there is no {unknown[0]!r}; there are {', '.join(names)}"
        )
    chosen = Options(**options)
    if chosen.block_usd is not None and chosen.train_usd <= 0:
        raise SettingsError(
            f"{provider.__name__}.options: block_usd takes train_usd, the US dollars for a million "
            "trained tokens, above 0"
        )
    return chosen
