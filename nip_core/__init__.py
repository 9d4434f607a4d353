"""The library beneath nip: protocols, rollouts, datasets, jobs, runs. Never imports prefect.

``from nip_core import run`` reads what a run has left behind as Arrow tables (docs/data.md).
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nip_core.showing.run_tables import run, runs

__all__ = ["DISTRIBUTION", "__version__", "how_to_install", "run", "runs"]

__version__ = "0.1.0"

DISTRIBUTION = "nip-loop"
"""What pip installs; the name `nip` on the package index belongs to another tool."""


def how_to_install(extra: str = "") -> str:
    """The command that installs nip, with one of its extras."""
    return f"pip install '{DISTRIBUTION}[{extra}]'" if extra else f"pip install {DISTRIBUTION}"


def __getattr__(name: str) -> Any:
    """Import what reads runs when it is asked for: it takes longer than all else here."""
    if name in ("run", "runs"):
        # By name: whoever imports __version__ from here does not depend on the floors above.
        return getattr(import_module("nip_core.showing.run_tables"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
