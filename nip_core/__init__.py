"""The library beneath nip: protocols, rollouts, datasets, jobs, runs. Never imports prefect.

``from nip_core import run`` reads the results of a run as Arrow tables (docs/data.md).
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from nip_core.distribution import DISTRIBUTION, __version__, how_to_install

if TYPE_CHECKING:
    from nip_core.showing.run_tables import run, runs

__all__ = ["DISTRIBUTION", "__version__", "how_to_install", "run", "runs"]


def __getattr__(name: str) -> Any:
    """Import the reader of runs when it is asked for: it takes longer than all else here."""
    if name in ("run", "runs"):
        return getattr(import_module("nip_core.showing.run_tables"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
