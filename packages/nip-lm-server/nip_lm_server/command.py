"""The command to run a server: `nip-lm-server`, ``python -m nip_lm_server``, `nip serve`.

serve   the command's options -> `spec.Start` -> the server

The context's `obj` is the `bundled.NamedModels` of a program that has names of models of its own;
`prove_command` and `models_command` ask it, too.
"""

import json
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import typer

from nip_base.spec import ENGINES, EngineSpec, ServerSpec, Start, check_engine_name
from nip_lm_server.bundled import NamedModels, ServerModels
from nip_lm_server.terminal import say

_Spec = TypeVar("_Spec", bound=EngineSpec)


def _refuse(reason: str) -> Callable[[str | None], None]:
    def refuse(value: str | None) -> None:
        if value is not None:
            raise typer.BadParameter(reason)

    return refuse


def _check_engine(engine: str | None) -> str | None:
    try:
        return engine and check_engine_name(engine)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def serve(
    context: typer.Context,
    state: Annotated[Path, typer.Option(help="Directory for everything the server keeps.")],
    engine: Annotated[
        str | None,
        typer.Option(
            callback=_check_engine,
            help=f"What generates and trains: {', '.join(ENGINES)}, or path/to/file.py:Class.",
        ),
    ] = None,
    model: Annotated[str | None, typer.Option(help='Path or name of the model, or "tiny".')] = None,
    served_model_name: Annotated[
        str | None, typer.Option(help="The name clients use; default: from --model.")
    ] = None,
    replies: Annotated[
        str | None, typer.Option(help="Replies file of the deterministic engine (YAML).")
    ] = None,
    option: Annotated[
        list[str] | None, typer.Option(metavar="KEY=JSON", help="Argument of the engine.")
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen at.")] = Start.host,
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="0: the system chooses.")
    ] = Start.port,
    api_keys_file: Annotated[Path | None, typer.Option(help="One key per line.")] = None,
    no_auth: Annotated[
        bool, typer.Option("--no-auth", help="Let all of this machine in, but no web pages.")
    ] = False,
    max_upload_bytes: Annotated[
        int, typer.Option(min=1, help="Largest file that is taken.")
    ] = ServerSpec.max_upload_bytes,
    add_engine: Annotated[
        list[str] | None,
        typer.Option(
            metavar="JSON",
            help='Another engine, for example \'{"engine": "vllm", "model": "PATH"}\'.',
        ),
    ] = None,
    training_device: Annotated[
        str, typer.Option(help="Where jobs train: auto, cpu, cuda, cuda:0,1.")
    ] = ServerSpec.training_device,
    share_device: Annotated[
        Literal["auto", "yes", "no"],
        typer.Option(help="Whether the engine leaves the device while a job trains."),
    ] = "auto",
    loaded_adapters: Annotated[
        int, typer.Option(min=1, help="Adapters kept loaded; others load when asked for.")
    ] = ServerSpec.loaded_adapters,
    bases_at_once: Annotated[
        int, typer.Option(min=1, help="Base models beside each other, if training makes more.")
    ] = ServerSpec.bases_at_once,
    die_with_parent: Annotated[
        bool, typer.Option("--die-with-parent", help="Stop when the process that starts it ends.")
    ] = False,
    stop: Annotated[bool, typer.Option("--stop", help="Stop the server of that state.")] = False,
    idempotency_ttl_s: Annotated[
        str | None,
        typer.Option(
            hidden=True,
            callback=_refuse("answers to chats are not kept any more: leave the option out"),
        ),
    ] = None,
) -> None:
    """Run an lm_server, the OpenAI fine-tuning and chat API over a local engine.

    API keys come from NIP_API_KEYS (comma-separated) or from --api-keys-file.
    """
    if stop:
        raise typer.Exit(_stop(state))
    if engine is None or model is None:
        name = "--engine" if engine is None else "--model"
        raise typer.BadParameter("it is needed to start a server", context, param_hint=name)
    # 1. The specification, as it was written.
    try:
        spec = ServerSpec(
            engine=engine,
            model=model,
            replies=replies,
            served_model_name=served_model_name,
            options=dict(map(_engine_option, option or [])),
            training_device=training_device,
            share_device=share_device,
            loaded_adapters=loaded_adapters,
            bases_at_once=bases_at_once,
            max_upload_bytes=max_upload_bytes,
        )
        more = [EngineSpec.from_json(text) for text in add_engine or []]
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    # 2. The places of the models.
    names: NamedModels = context.obj or ServerModels()
    more = [_with_path(another, names) for another in more]
    start = Start(
        spec=replace(_with_path(spec, names), more_engines=tuple(more)),
        state=state,
        host=host,
        port=port,
        api_keys_file=api_keys_file,
        no_auth=no_auth,
        parent=os.getppid() if die_with_parent else None,
    )
    # 3. The server; its code is loaded now, and not for a mistake above.
    from nip_lm_server.server import run

    raise typer.Exit(run(start))


def _engine_option(text: str) -> tuple[str, Any]:
    name, separator, value = text.partition("=")
    if not separator or not name.isidentifier():
        raise ValueError(f"--option {text!r}: expected KEY=JSON")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def _with_path(spec: _Spec, names: NamedModels) -> _Spec:
    """A bundled model by its path; clients still call it by its name."""
    path = names.find(spec.model, spec.engine)
    name = spec.served_model_name or (spec.model if path != spec.model else None)
    return replace(spec, model=path, served_model_name=name)


def _stop(state: Path) -> int:
    from nip_lm_server.launch import OwnerError, stop_state_dir

    try:
        stopped = stop_state_dir(state)
    except OwnerError as error:
        say(f"lm_server: {error}", file=sys.stderr)
        return 3
    say("stopped" if stopped else f"no server runs in {state}")
    return 0
