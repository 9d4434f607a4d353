"""The server's version, and the versions of it fit for a client.

Who attaches to a run's own server asks for this same version, see `launch`.
"""

SERVER_VERSION = "0.1.0"


def compatible(version: str) -> bool:
    """Say whether a server of this version fits: the same major one, below 1.0 minor one too."""
    return _release(version) == _release(SERVER_VERSION)


def _release(version: str) -> tuple[str, ...]:
    parts = version.split(".")
    return tuple(parts[:2] if parts[0] == "0" else parts[:1])


STATE_FORMAT = 2
"""Layout of the state directory and of its database. Older ones are migrated, newer refused."""
