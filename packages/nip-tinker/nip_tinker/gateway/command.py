"""The command `nip gateway`: a service of Tinker's API, asked by tokens."""

import asyncio
import os
import socket
from typing import Annotated

import typer

from nip_core.errors import SettingsError

_SHUTDOWN_S = 1.0
"""How long a request in flight is waited for at the end, and once more after it is broken off."""


def gateway(
    address: Annotated[
        str | None, typer.Option(help="Of the service. Default: TINKER_BASE_URL, or Tinker's.")
    ] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="On this machine alone.")] = 8010,
    tokenizer: Annotated[
        str | None, typer.Option(help="The tokenizer's folder. Default: by the base model's name.")
    ] = None,
) -> None:
    """Answer chat completions by samples of a service of Tinker's API, with token ids and
    log-probabilities, which policy gradient needs: a run names this address as base_url."""
    from aiohttp import web

    from nip_cli.printing.terminal import say
    from nip_core.parameters.services.providers import Tinker
    from nip_core.redaction import check_address, read_key
    from nip_tinker.gateway.app import PLAY_PATHS, make_app
    from nip_tinker.gateway.checks import check_service, load_model_text
    from nip_tinker.gateway.gateway import Gateway

    key = read_key(os.environ, str(Tinker.key_variable))
    if not key:
        raise SettingsError(
            f"the key of the service is not in the environment variable {Tinker.key_variable}"
        )
    place = address or os.environ.get(str(Tinker.address_variable)) or str(Tinker.address)
    check_address("--address or TINKER_BASE_URL", place)
    try:
        listener = socket.create_server(("127.0.0.1", port))
    except OSError as error:
        raise SettingsError(
            f"--port {port}: nothing can listen there ({error.strerror}); end the program that "
            "does, or give another port (0: a free one)"
        ) from None
    if tokenizer is not None:
        load_model_text("--tokenizer", tokenizer)
    asyncio.run(check_service(place, key))
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    say(f"base_url: {url}    # of agents with model_provider: Tinker")
    say(f"base_url: {url}{PLAY_PATHS[-1]}    # of other clients of OpenAI's API")
    app = make_app(Gateway(place, key, tokenizer))
    web.run_app(app, sock=listener, print=None, shutdown_timeout=_SHUTDOWN_S)
