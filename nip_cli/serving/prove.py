"""`nip prove`: which model answers under a name, at any server of OpenAI's protocol.

Its exit codes are for programs that deploy adapters: 0 each name is what its files say; 8 something
else answers, or replicas disagree; 9 it can't be told; 2 wrong arguments, 3 nobody answers.
"""

import asyncio
import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlsplit

import typer

from nip_cli.printing.options import AsJson
from nip_cli.printing.terminal import say

if TYPE_CHECKING:
    from nip_lm_server.client import ProofRequest, Verdict

_DTYPES = ("float32", "float16", "bfloat16")
_QUANTIZATIONS = ("none", "8bit", "4bit", "other")
_OPENAI = "api.openai.com"

Url = Annotated[str, typer.Argument(help="Address of the server.", show_default=False)]
Model = Annotated[str | None, typer.Argument(help="The name to be proved, as clients ask for it.")]
Directory = Annotated[
    Path | None,
    typer.Argument(
        metavar="[ADAPTER_DIR]",
        help="The adapter that should answer; default: where the server says that it lies.",
    ),
]
AllIn = Annotated[
    Path | None,
    typer.Option("--all", metavar="DIR", help="Prove each adapter in DIR, by its folder's name."),
]
Among = Annotated[
    list[Path] | None,
    typer.Option(metavar="DIR", help="An adapter from which it is told, and named; repeatable."),
]
Base = Annotated[
    str | None,
    typer.Option(help="The base model, for a probe to be computed; default: as PEFT wrote it."),
]
BaseName = Annotated[
    str | None, typer.Option(help="Name of the base model at the server; default: as listed.")
]
Dtype = Annotated[
    str | None,
    typer.Option(help=f"Precision of the server: {', '.join(_DTYPES)}; default: by its base."),
]
Quantization = Annotated[
    str,
    typer.Option(help=f"How the server's base is quantized: {', '.join(_QUANTIZATIONS)}."),
]
Repeats = Annotated[int, typer.Option(min=1, max=1000, help="Answers that are asked for.")]
Compute = Annotated[
    bool, typer.Option("--compute", help="Compute probes from the weights, whatever is there.")
]
SaveProbe = Annotated[
    bool, typer.Option("--save-probe", help="Write computed probes into the directories.")
]
KeyVariable = Annotated[
    str | None,
    typer.Option(help="Environment variable with the server's key; default: NIP_API_KEY."),
]
TimeoutS = Annotated[float, typer.Option(min=0.1, help="Seconds to wait for an answer.")]


def prove(
    url: Url,
    model: Model = None,
    adapter_dir: Directory = None,
    all_in: AllIn = None,
    among: Among = None,
    base: Base = None,
    base_name: BaseName = None,
    dtype: Dtype = None,
    quantization: Quantization = "none",
    repeats: Repeats = 12,
    compute: Compute = False,
    save_probe: SaveProbe = False,
    key_variable: KeyVariable = None,
    timeout_s: TimeoutS = 120.0,
    as_json: AsJson = False,
) -> None:
    """Say which model answers under a name: this adapter, its base, or another one.

    Exit code 0 if the adapter answers, 8 if something else does, 9 if it can't be told.
    """
    from nip_core.errors import SettingsError
    from nip_core.models import resolve_model
    from nip_core.proxies import proxy_for
    from nip_lm_server.client import ProofRequest

    if (model is None) == (all_in is None) or (all_in and adapter_dir):
        raise SettingsError(
            "nip prove needs MODEL, or --all DIR and no MODEL: nip prove URL MODEL [ADAPTER_DIR], "
            "nip prove URL --all DIR"
        )
    if dtype is not None and dtype not in _DTYPES:
        raise SettingsError(f"--dtype {dtype!r}: expected one of {', '.join(_DTYPES)}")
    if quantization not in _QUANTIZATIONS:
        raise SettingsError(
            f"--quantization {quantization!r}: expected one of {', '.join(_QUANTIZATIONS)}"
        )
    key = _read_key(url, key_variable)
    request = ProofRequest(
        address=url,
        model=model,
        directory=adapter_dir,
        all_in=all_in,
        among=tuple(among or ()),
        key=key,
        proxy=proxy_for(url),
        base_model=base,
        resolve_base=resolve_model,
        base_name=base_name,
        dtype=dtype,
        quantization=quantization,
        repeats=repeats,
        computes_again=compute,
        saves_probes=save_probe,
        timeout_s=timeout_s,
    )
    verdicts = asyncio.run(_prove_all(request, as_json))
    _finish(request, verdicts, as_json)


def _read_key(url: str, variable: str | None) -> str:
    """Read the server's key in the environment, "" if there is none. Raises SettingsError."""
    from nip_core.errors import SettingsError
    from nip_core.parameters.basis.addresses import check_plain_address
    from nip_core.redaction import read_key

    try:
        check_plain_address(url)
    except ValueError as error:
        raise SettingsError(f"URL: {error}") from None
    if variable is None:
        is_openai = urlsplit(url).hostname == _OPENAI
        return read_key(os.environ, "OPENAI_API_KEY" if is_openai else "NIP_API_KEY")
    key = read_key(os.environ, variable)
    if not key:
        raise SettingsError(f"--key-variable {variable}: the environment variable is not set")
    return key


async def _prove_all(request: "ProofRequest", as_json: bool) -> "list[Verdict]":
    """Prove each name, and print what came out as soon as it is known."""
    from nip_core import how_to_install
    from nip_core.errors import ServerError, SettingsError
    from nip_core.redaction import redact
    from nip_lm_server.client import InputError, NoAnswerError, prove_served

    verdicts = []
    try:
        async for verdict in prove_served(request):
            verdicts.append(verdict)
            if not as_json:
                _print(verdict, request.key)
    except InputError as error:
        raise SettingsError(redact(f"{request.address}: {error}", request.key)) from None
    except NoAnswerError as error:
        raise ServerError(redact(f"{request.address}: {error}", request.key)) from None
    except ModuleNotFoundError as error:
        raise SettingsError(
            "a directory has no probe.json, and one is computed with the package "
            f"{error.name}: {how_to_install('local')}; or compute it elsewhere, with --save-probe"
        ) from None
    return verdicts


def _print(verdict: "Verdict", key: str) -> None:
    from nip_core.redaction import redact

    mark = {"adapter": "ok", "cannot_tell": "??"}.get(verdict.kind, "NO")
    say(redact(f"{mark}  {verdict.name}: {verdict.says}", key), flush=True)
    for note in verdict.notes:
        say(redact(f"    {note}", key))


def _finish(request: "ProofRequest", verdicts: "list[Verdict]", as_json: bool) -> None:
    """Print all of it as JSON, or the sum of many, and exit."""
    from nip_cli.printing.plans_and_runs import print_json
    from nip_core.redaction import redact_all
    from nip_lm_server.client import exit_status

    status = exit_status(verdicts)
    if as_json:
        document: dict[str, Any] = {
            "address": request.address,
            "exit_status": status,
            "verdicts": [asdict(verdict) for verdict in verdicts],
        }
        print_json(redact_all(document, request.key))
    elif len(verdicts) > 1:
        proved = sum(verdict.kind == "adapter" for verdict in verdicts)
        say(f"{proved} of {len(verdicts)} names are what their files say")
    if status:
        raise typer.Exit(status)
