"""The server's version, and which versions of it fit a client.

Who attaches to a run's own server asks for this same version, see `launch`.
"""

SERVER_VERSION = "0.1.0"

INSTALL_LOCAL = "pip install 'nip-loop[local]'"
"""What adds serving and training on one's own machine."""


def compatible(theirs: str) -> bool:
    """Whether a server of that version fits: the major version, below 1.0 the minor one too."""
    return _release(theirs) == _release(SERVER_VERSION)


def _release(version: str) -> tuple[str, ...]:
    major, *rest = version.split(".")
    return (major, *rest[:1]) if major == "0" else (major,)


STATE_FORMAT = 2
"""Layout of the state directory and of its database. Older ones are migrated, newer refused."""
