"""The most that a run may spend."""

from typing import Annotated

from pydantic import Field

from nip_core.parameters.basis.base import Parameters


class BudgetParameters(Parameters):
    """Caps on what a run spends, over all its iterations and however often it is resumed.

    No call, episode or job begins once a cap is reached; the ones in flight end and count.
    """

    usd: Annotated[float, Field(gt=0)] | None = None
    """Most US dollars, by `prices`, above 0. None: no cap."""
    tokens: Annotated[int, Field(ge=1)] | None = None
    """Most tokens: prompt, generated and trained ones together, at least 1. None: no cap."""

    @property
    def is_set(self) -> bool:
        """Return whether there is any cap."""
        return self.usd is not None or self.tokens is not None
