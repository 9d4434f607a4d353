"""The command `nip gateway`: a service of Tinker's API, asked by tokens."""

import os
from typing import Annotated

import typer

from nip_core.errors import SettingsError


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
    from nip_core.redaction import read_key
    from nip_tinker.gateway import Gateway, make_app

    key = read_key(os.environ, str(Tinker.key_variable))
    if not key:
        raise SettingsError(
            f"the key of the service is not in the environment variable {Tinker.key_variable}"
        )
    place = address or os.environ.get(str(Tinker.address_variable)) or str(Tinker.address)
    say(f"base_url: http://127.0.0.1:{port}    # of agents with model_provider: Tinker")
    app = make_app(Gateway(place, key, tokenizer))
    web.run_app(app, host="127.0.0.1", port=port, print=None)
