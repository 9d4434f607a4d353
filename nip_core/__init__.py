"""The library beneath nip: protocols, rollouts, datasets, jobs, runs. Never imports prefect."""

__version__ = "0.1.0"

DISTRIBUTION = "nip-loop"
"""What pip installs; the name `nip` on the package index belongs to another tool."""


def how_to_install(extra: str = "") -> str:
    """The command that installs nip, with one of its extras."""
    return f"pip install '{DISTRIBUTION}[{extra}]'" if extra else f"pip install {DISTRIBUTION}"
