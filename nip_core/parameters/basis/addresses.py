"""Addresses of servers as settings: a place and nothing else, as the rest may be a secret."""

from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import BeforeValidator

from nip_core.redaction import is_host


def check_plain_address(value: Any) -> Any:
    """Refuse an address with more than a place. Raises ValueError without showing it."""
    if value is None:
        return None
    try:
        parts = urlsplit(value if isinstance(value, str) else "")
        well_formed = parts.scheme in ("http", "https") and is_host(parts.hostname or "")
        well_formed = well_formed and not any(c.isspace() for c in value) and parts.port != 0
    except ValueError:
        well_formed = False
    if isinstance(value, str) and any(c in value for c in "@?#"):
        raise ValueError(
            "an address without user name, password, query and fragment is needed, like "
            "http://host:8000; keys belong into the environment, like NIP_API_KEY"
        )
    if not well_formed:
        raise ValueError("an address like http://host:8000 is needed")
    return value


def _scheme_and_host(value: Any) -> Any:
    """Refuse an address with a port or a path. Raises ValueError without showing it."""
    if value is None:
        raise ValueError("an address like http://host is needed")
    parts = urlsplit(check_plain_address(value))
    if parts.port is not None or parts.path.strip("/"):
        raise ValueError("a scheme and a host like http://host is needed, without port and path")
    return value.rstrip("/")


Address = Annotated[str | None, BeforeValidator(check_plain_address)]
"""Like http://host:8000 or https://host/v1; None where there is none."""
SchemeAndHost = Annotated[str, BeforeValidator(_scheme_and_host)]
"""Like http://host."""
