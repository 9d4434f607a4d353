"""The way to a server that is proved: directly, or through the proxy that the environment names.

find_proxy   the proxy for an address; None for a direct way, as to this machine itself
"""

from collections.abc import Mapping
from ipaddress import ip_address, ip_network
from urllib.parse import urlsplit

from nip_lm_server.auth import is_loopback
from nip_lm_server.proving.stranger import InputError


def find_proxy(url: str, environment: Mapping[str, str]) -> str | None:
    """Find the proxy by http_proxy, https_proxy, all_proxy and NO_PROXY, in capitals or not.

    Raises InputError for a proxy of a kind that can't be used here. The message doesn't have its
    address, which may have a password.
    """
    address = urlsplit(url)
    host = address.hostname or ""
    if is_loopback(host) or host.endswith(".localhost"):
        return None
    if _is_spared(host, address.port, environment):
        return None
    for kind in (f"{address.scheme}_proxy", "all_proxy"):
        if proxy := _read_proxy(kind, environment):
            if not _is_usable(proxy):
                raise InputError(
                    f"environment variable {kind}: a proxy of a kind that can't be used here; set "
                    f"{address.scheme}_proxy to one like http://host:3128, or name the host in "
                    "NO_PROXY"
                )
            return proxy
    return None


def _read_proxy(kind: str, environment: Mapping[str, str]) -> str:
    lower, upper = environment.get(kind), environment.get(kind.upper(), "")
    # `nip` hides a proxy that other clients would fail at behind an empty variable in lower case.
    hides = lower == "" and not _is_usable(_with_scheme(upper))
    value = (upper if lower is None or hides else lower).strip()
    return _with_scheme(value) if value else ""


def _with_scheme(proxy: str) -> str:
    return proxy if "://" in proxy else f"http://{proxy}"


def _is_usable(proxy: str) -> bool:
    return proxy.partition("://")[0].lower() in ("http", "https")


def _is_spared(host: str, port: int | None, environment: Mapping[str, str]) -> bool:
    """Tell whether NO_PROXY has the host, one of its domains, or a network with its address."""
    listed = environment.get("no_proxy") or environment.get("NO_PROXY") or ""
    names = {part.strip().lower() for part in listed.split(",")} - {""}
    plain = {name.removeprefix("*").lstrip(".") for name in names}
    if "*" in names or {host, f"{host}:{port}"} & plain:
        return True
    return any(host.endswith(f".{name}") or _contains(name, host) for name in plain if name)


def _contains(network: str, host: str) -> bool:
    try:
        return ip_address(host) in ip_network(network.strip("[]"), strict=False)
    except ValueError:
        return False
