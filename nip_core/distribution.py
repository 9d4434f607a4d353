"""The distribution for pip: its name, its version, and the command to install it.

A module of its own, since the package `nip_core` also names what reads runs, which lies above
everything that asks for a version here.
"""

__version__ = "0.1.0"

DISTRIBUTION = "nip-loop"
"""What pip installs; the name `nip` on the package index belongs to another tool."""


def how_to_install(extra: str = "") -> str:
    """Give the command to install nip, with one of its extras."""
    return f"pip install '{DISTRIBUTION}[{extra}]'" if extra else f"pip install {DISTRIBUTION}"
