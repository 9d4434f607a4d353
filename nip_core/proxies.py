"""The environment's proxy for a server; for one of this machine, none.

is_on_this_machine  whether an address is of this machine alone
proxy_for           the proxy for an address, for clients that are told which
http_client         the same as the HTTP client of an OpenAI client
plain_http_client   the same as a client for other servers
spare_this_machine  for clients that read the environment by themselves, children among them
prepare_proxies     the same before one such client is made
hide_unusable       the same where a proxy is of a kind that ends such a client
restore_proxies     the environment of a child with the hidden ones

A proxy would be sent the keys of the run's own server, and could not reach it. A proxy of a kind
that a client can't use ends calls that would have to go through it, and nothing else.

Not covered: clients of other programs, such as `prefect worker start` in a terminal, which read
NO_PROXY of their own environment.
"""

import importlib.util
import os
from collections.abc import Mapping, MutableMapping
from ipaddress import IPv6Address, ip_address, ip_network
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from nip_core.errors import SettingsError
from nip_core.redaction import is_address, show_address

if TYPE_CHECKING:
    import httpx
    from openai import DefaultAsyncHttpxClient, DefaultHttpxClient

_KINDS = ("http_proxy", "https_proxy", "all_proxy")
_SPARED = ("localhost", "127.0.0.1", "127.0.0.0/8", "::1")
"""Names for NO_PROXY; not every client knows networks, and httpx fails at ``[::1]``."""


def is_on_this_machine(url: str) -> bool:
    """Tell whether this machine alone answers at an address: localhost, 127.x.y.z, [::1]."""
    try:
        host = (urlsplit(url).hostname or "").rstrip(".")
        if host == "localhost" or host.endswith(".localhost"):
            return True
        address = ip_address(host)
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return (mapped or address).is_loopback or address.is_unspecified


def proxy_for(
    url: str, environment: Mapping[str, str] = os.environ, *, socks: bool = False
) -> str | None:
    """Find the proxy for an address; None: it is asked directly.

    Names and networks of NO_PROXY are asked directly. `socks`: the client may use a SOCKS proxy
    if the package socksio is there. Raises SettingsError for a proxy that the client can't use.
    """
    scheme = url.partition(":")[0].lower()
    setting = _read_proxy(f"{scheme}_proxy", environment) or _read_proxy("all_proxy", environment)
    if setting is None or is_on_this_machine(url) or _is_spared(url, environment):
        return None
    variable, proxy = setting
    if not _is_usable(proxy, socks):
        raise SettingsError(
            f"environment variable {variable}: {show_address(url)} is to be asked through "
            f"{show_address(proxy)}, a kind of proxy that can't be used here; set {scheme}_proxy "
            "to one like http://host:3128, or name the host in NO_PROXY"
        )
    return proxy


def http_client(
    url: str, environment: Mapping[str, str] = os.environ
) -> "DefaultAsyncHttpxClient | None":
    """Make the `http_client` of an `AsyncOpenAI` for an address; None where its own will do.

    Raises SettingsError, see `proxy_for`.
    """
    from openai import DefaultAsyncHttpxClient

    if (settings := _choose_client_settings(url, environment)) is None:
        return None
    return DefaultAsyncHttpxClient(**settings)


def blocking_http_client(
    url: str, environment: Mapping[str, str] = os.environ
) -> "DefaultHttpxClient | None":
    """Make the same for an `OpenAI`."""
    from openai import DefaultHttpxClient

    if (settings := _choose_client_settings(url, environment)) is None:
        return None
    return DefaultHttpxClient(**settings)


def spare_this_machine(environment: MutableMapping[str, str]) -> None:
    """Complete NO_PROXY, so all readers of the environment ask this machine directly.

    Nothing is changed where no proxy is named.
    """
    if not any(_read_proxy(kind, environment) for kind in _KINDS):
        return
    mine = [*_SPARED, *sorted(_hosts_here(environment) - {*_SPARED})]
    lower, upper = environment.get("no_proxy"), environment.get("NO_PROXY")
    for name, value in (("no_proxy", lower or upper), ("NO_PROXY", upper or lower)):
        names = [part.strip() for part in (value or "").split(",") if part.strip()]
        if "*" not in names:
            environment[name] = ",".join([*names, *(own for own in mine if own not in names)])


def prepare_proxies(url: str, environment: Mapping[str, str] = os.environ) -> None:
    """Prepare the environment before a client for an address is made.

    For clients that read the environment by themselves, and can't be told of a proxy. Raises
    SettingsError for a proxy that such a client can't use.
    """
    proxy_for(url, environment, socks=True)
    if is_on_this_machine(url):
        spare_this_machine(os.environ)


def hide_unusable(environment: MutableMapping[str, str]) -> None:
    """Hide proxies of kinds unknown to httpx: with one it makes no client, in spite of NO_PROXY.

    Such a one stays under its name in upper case, behind an empty one in lower case, which those
    who know both look at first. `proxy_for` finds it.
    """
    for kind in _KINDS:
        setting = _read_proxy(kind, environment)
        if setting is not None and not _is_usable(setting[1], socks=True):
            environment[kind.upper()] = setting[1]
            environment[kind] = ""


def restore_proxies(environment: Mapping[str, str]) -> dict[str, str]:
    """Undo `hide_unusable` in a copy of the environment, for a child with servers elsewhere."""
    child = dict(environment)
    for kind in _KINDS:
        if child.get(kind) == "" and child.get(kind.upper()):
            child[kind] = child[kind.upper()]
    return child


def plain_http_client(url: str, environment: Mapping[str, str] = os.environ) -> "httpx.Client":
    """Make an HTTP client for an address where no model answers."""
    import httpx

    return httpx.Client(**(_choose_client_settings(url, environment) or {}))


def _choose_client_settings(url: str, environment: Mapping[str, str]) -> dict[str, Any] | None:
    """Choose the settings of an httpx client; None, for its defaults, where no proxy is named."""
    if (proxy := proxy_for(url, environment, socks=True)) is not None:
        return {"proxy": proxy}
    if any(_read_proxy(kind, environment) for kind in _KINDS):
        return {"trust_env": False}
    return None


def _read_proxy(kind: str, environment: Mapping[str, str]) -> tuple[str, str] | None:
    """Read a kind of proxy: the variable in force, and its value as a URL."""
    lower, upper = environment.get(kind), environment.get(kind.upper())
    variable, value = (kind, lower) if lower is not None else (kind.upper(), upper)
    if lower == "" and upper and not _is_usable(_with_scheme(upper), socks=True):
        variable, value = kind.upper(), upper  # see `hide_unusable`
    value = (value or "").strip()
    return (variable, _with_scheme(value)) if value else None


def _with_scheme(proxy: str) -> str:
    return proxy if "://" in proxy else f"http://{proxy}"


def _is_usable(proxy: str, socks: bool) -> bool:
    scheme = proxy.partition("://")[0].lower()
    if scheme in ("socks5", "socks5h"):
        has_socks = importlib.util.find_spec("socksio") is not None
        return socks and has_socks and is_address(proxy, (scheme,))
    return is_address(proxy)


def _is_spared(url: str, environment: Mapping[str, str]) -> bool:
    """Tell whether NO_PROXY has the host, one of its domains, or a network with its address."""
    listed = environment.get("no_proxy") or environment.get("NO_PROXY") or ""
    parts = urlsplit(url)
    host = parts.hostname or ""
    names = {part.strip().lower().removeprefix("*").lstrip(".") for part in listed.split(",")}
    if "*" in listed.replace(" ", "").split(",") or {host, f"{host}:{parts.port}"} & names:
        return True
    return any(name and (host.endswith(f".{name}") or _contains(name, host)) for name in names)


def _contains(network: str, host: str) -> bool:
    try:
        return ip_address(host) in ip_network(network.strip("[]"), strict=False)
    except ValueError:
        return False


def _hosts_here(environment: Mapping[str, str]) -> set[str]:
    """Collect hosts of this machine in other variables, like 127.0.0.2 of PREFECT_API_URL."""
    urls = (v for v in environment.values() if v.startswith(("http://", "https://")))
    local_urls = (url for url in urls if is_on_this_machine(url))
    return {host for url in local_urls if (host := urlsplit(url).hostname)}
