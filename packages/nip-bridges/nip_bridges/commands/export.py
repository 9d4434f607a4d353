"""`nip export`: a run's content, in the form of another program."""

from pathlib import Path
from typing import Annotated

import typer

from nip_cli.printing.options import RunName, say_left_out
from nip_cli.printing.plans_and_runs import print_json
from nip_cli.printing.terminal import say
from nip_core import how_to_install
from nip_core.errors import SettingsError
from nip_core.records.named_run import find_run
from nip_core.run_store.run import RunStore

INSPECT, PEFT = "inspect", "peft"
_FORMS = (INSPECT, PEFT)


def export(
    run: RunName,
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="Where to write.", show_default=False)
    ],
    form: Annotated[
        str,
        typer.Option(
            "--to",
            help="inspect: logs of inspect_ai, one per iteration and split. peft: a trained "
            "model as a plain LoRA adapter.",
        ),
    ],
    split: Annotated[
        list[str] | None,
        typer.Option(
            help="inspect: test, train, validation, candidate or attack; default: all played."
        ),
    ] = None,
    iteration: Annotated[
        list[int] | None,
        typer.Option(
            min=0, help="inspect: which ones, default: all. peft: whose models, default: newest."
        ),
    ] = None,
    group: Annotated[
        str | None, typer.Option(help="peft: which model group, where several are trained.")
    ] = None,
    base_model: Annotated[
        str | None,
        typer.Option(help="peft: where others find the base model, where it is a directory."),
    ] = None,
    run_store: Annotated[str, typer.Option(help="Where runs are kept.")] = "runs",
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Write what RUN has to DIR, in the form of another program. The run stays as it is."""
    if form not in _FORMS:
        raise SettingsError(f"--to {form!r}: use {' or '.join(_FORMS)}")
    tree = find_run(run, run_store, say_left_out)
    if form == PEFT:
        files = _to_peft(tree, directory, split, iteration, group, base_model)
    elif group is not None or base_model is not None:
        raise SettingsError("--group and --base-model are for --to peft; leave them out")
    else:
        files = _to_inspect(tree, directory, split, iteration)
    if as_json:
        print_json({"run": tree.name, "files": files})
        return
    for file in files:
        say(file)


def _to_peft(
    tree: RunStore,
    directory: Path,
    split: list[str] | None,
    iteration: list[int] | None,
    group: str | None,
    base_model: str | None,
) -> list[str]:
    from nip_bridges.hub.adapter_of_run import choose_model, write_adapter
    from nip_bridges.hub.repository import list_files

    if split or len(iteration or ()) > 1:
        raise SettingsError("--to peft: takes one --iteration, and no --split")
    model_choice = choose_model(tree, iteration[0] if iteration else None, group)
    write_adapter(model_choice, directory, place=directory.name, base=base_model)
    return [str(directory / name) for name in list_files(directory)]


def _to_inspect(
    tree: RunStore, directory: Path, split: list[str] | None, iteration: list[int] | None
) -> list[str]:
    try:
        from nip_inspect.export import export_run
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "inspect_ai":
            raise
        needed = how_to_install("inspect")
        raise SettingsError(f"--to inspect: needs the package inspect_ai: {needed}") from None
    return [str(path) for path in export_run(tree, directory, split or (), iteration or ())]
