"""The server's version, and the versions of it fit for a client."""

SERVER_VERSION = "0.1.0"

OWN_VERSION = f"{SERVER_VERSION}+fields.2"
"""Who attaches to a run's own server asks for this same version, see `launch`. Its last number goes
up where a run comes to send a field that a server of earlier code refuses; 1: `top_logprobs_at`,
2: `logprobs_at`."""


def compatible(version: str) -> bool:
    """Say whether a server of this version fits: the same major one, below 1.0 minor one too."""
    return _release(version) == _release(SERVER_VERSION)


def _release(version: str) -> tuple[str, ...]:
    parts = version.split(".")
    return tuple(parts[:2] if parts[0] == "0" else parts[:1])


STATE_FORMAT = 2
"""Layout of the state directory and of its database. Older ones are migrated, newer refused."""
