"""`nip prove`, `nip-lm-server prove`: which model answers under a name, at any server of OpenAI's.

Its exit codes are for programs that deploy adapters: 0 each name answers with its files' weights; 8
something else answers, or replicas disagree; 9 it can't be told; 2 wrong arguments, 3 no answer.
"""

import asyncio
import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlsplit

import typer

from nip_lm_server.bundled import NamedModels, ServerModels
from nip_lm_server.terminal import hide_users, say

if TYPE_CHECKING:
    from nip_lm_server.proving.request import ProofRequest
    from nip_lm_server.proving.verdict import Verdict

_DTYPES = ("float32", "float16", "bfloat16")
_QUANTIZATIONS = ("none", "8bit", "4bit", "other")
_OPENAI = "api.openai.com"
_WRONG, _SILENT = 2, 3

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
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
TimeoutS = Annotated[float, typer.Option(min=0.1, help="Seconds to wait for an answer.")]


def prove(
    context: typer.Context,
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
    from nip_lm_server.proving.proxies import find_proxy
    from nip_lm_server.proving.request import ProofRequest
    from nip_lm_server.proving.stranger import InputError, NoAnswerError

    names: NamedModels = context.obj or ServerModels()
    program, key = context.find_root().info_name, ""
    try:
        _check_words(program, model, adapter_dir, all_in, dtype, quantization)
        _check_address(url)
        key = _read_key(url, key_variable)
        request = ProofRequest(
            address=url,
            model=model,
            directory=adapter_dir,
            all_in=all_in,
            among=tuple(among or ()),
            key=key,
            proxy=find_proxy(url, os.environ),
            base_model=base,
            resolve_base=names.find,
            base_name=base_name,
            dtype=dtype,
            quantization=quantization,
            repeats=repeats,
            computes_again=compute,
            saves_probes=save_probe,
            timeout_s=timeout_s,
        )
        verdicts = asyncio.run(_prove_all(request, as_json))
    except (InputError, NoAnswerError) as error:
        say(_hide(f"{program}: {error}", key), file=sys.stderr)
        status = _WRONG if isinstance(error, InputError) else _SILENT
        raise typer.Exit(status) from None
    _finish(request, verdicts, as_json)


def _check_words(
    program: str | None,
    model: str | None,
    adapter_dir: Path | None,
    all_in: Path | None,
    dtype: str | None,
    quantization: str,
) -> None:
    """Raise InputError for arguments that contradict each other, and for unknown words."""
    from nip_lm_server.proving.stranger import InputError

    if (model is None) == (all_in is None) or (all_in and adapter_dir):
        raise InputError(
            f"{program} prove needs MODEL, or --all DIR and no MODEL: {program} prove URL MODEL "
            f"[ADAPTER_DIR], {program} prove URL --all DIR"
        )
    if dtype is not None and dtype not in _DTYPES:
        raise InputError(f"--dtype {dtype!r}: expected one of {', '.join(_DTYPES)}")
    if quantization not in _QUANTIZATIONS:
        raise InputError(
            f"--quantization {quantization!r}: expected one of {', '.join(_QUANTIZATIONS)}"
        )


def _check_address(url: str) -> None:
    """Raise InputError for an address with secrets or a query; the error does not show it."""
    from nip_lm_server.proving.stranger import InputError

    if any(character in url for character in "@?#"):
        raise InputError(
            "URL: an address without user name, password, query and fragment is needed, like "
            "http://host:8000; keys belong into the environment, like NIP_API_KEY"
        )
    try:
        parts = urlsplit(url)
        is_one = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_one = False
    if not is_one or not url.isprintable() or " " in url:
        raise InputError("URL: an address like http://host:8000 is needed")


def _read_key(url: str, variable: str | None) -> str:
    """Read the server's key in the environment, "" if there is none. Raises InputError."""
    from nip_lm_server.proving.stranger import InputError

    is_openai = urlsplit(url).hostname == _OPENAI
    name = variable or ("OPENAI_API_KEY" if is_openai else "NIP_API_KEY")
    # Spaces and line ends around it, as files of other systems have them, are no part of it.
    key = os.environ.get(name, "").strip()
    if not (key.isascii() and key.isprintable()):
        raise InputError(
            f"environment variable {name}: the key in it has a control character or is no ASCII; "
            "set it anew"
        )
    if not key and variable is not None:
        raise InputError(f"--key-variable {variable}: the environment variable is not set")
    return key


async def _prove_all(request: "ProofRequest", as_json: bool) -> "list[Verdict]":
    """Prove each name, and print each verdict as soon as it is known."""
    from nip_lm_server.proving.request import prove_served
    from nip_lm_server.proving.stranger import InputError, ProvingError

    verdicts = []
    try:
        async for verdict in prove_served(request):
            verdicts.append(verdict)
            if not as_json:
                _print(verdict, request.key)
    except ProvingError as error:
        raise type(error)(f"{request.address}: {error}") from None
    except ModuleNotFoundError as error:
        raise InputError(
            "a directory has no probe.json, and one is computed with the package "
            f"{error.name}: pip install 'nip-lm-server[local]'; or compute it elsewhere, with "
            "--save-probe"
        ) from None
    return verdicts


def _print(verdict: "Verdict", key: str) -> None:
    mark = {"adapter": "ok", "cannot_tell": "??"}.get(verdict.kind, "NO")
    say(_hide(f"{mark}  {verdict.name}: {verdict.says}", key), flush=True)
    for note in verdict.notes:
        say(_hide(f"    {note}", key))


def _finish(request: "ProofRequest", verdicts: "list[Verdict]", as_json: bool) -> None:
    """Print all verdicts as JSON, or the count of several, and exit."""
    from nip_lm_server.proving.verdict import exit_status

    status = exit_status(verdicts)
    if as_json:
        document: dict[str, Any] = {
            "address": request.address,
            "exit_status": status,
            "verdicts": [asdict(verdict) for verdict in verdicts],
        }
        say(json.dumps(_hide_all(document, request.key), indent=2, ensure_ascii=False))
    elif len(verdicts) > 1:
        count = sum(verdict.kind == "adapter" for verdict in verdicts)
        say(f"{count} of {len(verdicts)} names are what their files say")
    if status:
        raise typer.Exit(status)


def _hide(text: str, key: str) -> str:
    """Take the key, and users in addresses, out of a text: a server may quote its request."""
    from nip_lm_server.proving.stranger import without_key

    return hide_users(without_key(text, key))


def _hide_all(value: Any, key: str) -> Any:
    """Do the same to every text in a JSON value, names included."""
    if isinstance(value, str):
        return _hide(value, key)
    if isinstance(value, list | tuple):
        return [_hide_all(item, key) for item in value]
    if isinstance(value, dict):
        return {_hide(str(name), key): _hide_all(item, key) for name, item in value.items()}
    return value
