"""The command `nip serve`: run an lm_server, or stop the one of a state directory."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

import typer

from nip_core.errors import ServerError, SettingsError


def serve(
    context: typer.Context,
    state: Annotated[Path, typer.Option(help="Directory for everything the server keeps.")],
    engine: Annotated[
        Literal["deterministic", "embedded", "vllm"] | None,
        typer.Option(help="What generates and trains."),
    ] = None,
    model: Annotated[str | None, typer.Option(help='Path or name of the model, or "tiny".')] = None,
    served_model_name: Annotated[
        str | None, typer.Option(help="The name clients use; default: from --model.")
    ] = None,
    replies: Annotated[
        Path | None, typer.Option(help="Replies file of the deterministic engine (YAML).")
    ] = None,
    option: Annotated[
        list[str] | None, typer.Option(metavar="KEY=JSON", help="Argument of the engine.")
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen at.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: the system chooses.")] = 8000,
    api_keys_file: Annotated[Path | None, typer.Option(help="One key per line.")] = None,
    no_auth: Annotated[
        bool, typer.Option("--no-auth", help="Let all of this machine in, but no web pages.")
    ] = False,
    max_upload_bytes: Annotated[
        int | None, typer.Option(min=1, help="Largest file that is taken.")
    ] = None,
    add_engine: Annotated[
        list[str] | None,
        typer.Option(
            metavar="JSON",
            help='Another engine, for example \'{"engine": "embedded", "model": "PATH"}\'.',
        ),
    ] = None,
    training_device: Annotated[
        str, typer.Option(help="Where jobs train: auto, cpu, cuda, cuda:0,1.")
    ] = "auto",
    share_device: Annotated[
        Literal["auto", "yes", "no"],
        typer.Option(help="Whether the engine leaves the device while a job trains."),
    ] = "auto",
    loaded_adapters: Annotated[
        int | None, typer.Option(min=1, help="Adapters kept loaded; others load when asked for.")
    ] = None,
    bases_at_once: Annotated[
        int | None,
        typer.Option(min=1, help="Base models beside each other, if training makes more."),
    ] = None,
    stop: Annotated[bool, typer.Option("--stop", help="Stop the server of that state.")] = False,
) -> None:
    """Run an lm_server, the OpenAI fine-tuning and chat API over a local engine.

    API keys come from NIP_API_KEYS (comma-separated) or from --api-keys-file.
    """
    if stop:
        _stop_server(state)
        return
    if engine is None or model is None:
        missing = "--engine" if engine is None else "--model"
        raise typer.BadParameter("it is needed to start a server", context, param_hint=missing)
    from nip_core.models import resolve_model
    from nip_lm_server.client import serve as serve_main

    place = resolve_model(model)
    if place != model and served_model_name is None:
        served_model_name = model
    given = {
        "engine": engine,
        "model": place,
        "served-model-name": served_model_name,
        "replies": replies,
        "host": host,
        "port": port,
        "state": state,
        "api-keys-file": api_keys_file,
        "max-upload-bytes": max_upload_bytes,
        "training-device": training_device,
        "share-device": share_device,
        "loaded-adapters": loaded_adapters,
        "bases-at-once": bases_at_once,
    }
    # Joined by "=", so that no value can be taken for an option.
    arguments = [f"--{name}={value}" for name, value in given.items() if value is not None]
    arguments += [f"--option={one}" for one in option or []] + ["--no-auth"] * no_auth
    arguments += [f"--add-engine={_with_path(one)}" for one in add_engine or []]
    raise typer.Exit(serve_main(arguments))


def _with_path(text: str) -> str:
    """An engine's JSON with the path of a bundled model that it calls by name."""
    from nip_core.models import resolve_model
    from nip_lm_server.client import EngineSpec

    try:
        spec = EngineSpec.from_json(text)
    except ValueError as error:
        raise SettingsError(f"--add-engine: {error}") from None
    place = resolve_model(spec.model)
    name = spec.served_model_name or (spec.model if place != spec.model else None)
    return replace(spec, model=place, served_model_name=name).to_json()


def _stop_server(state: Path) -> None:
    from nip_lm_server.client import OwnerError, stop_state_dir

    try:
        stopped = stop_state_dir(state)
    except OwnerError as error:
        raise ServerError(str(error)) from None
    print("stopped" if stopped else f"no server runs in {state}")
