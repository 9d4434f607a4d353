"""`nip push` and `nip pull`: adapters and data of runs on the Hugging Face Hub.

The token is that of HF_TOKEN, or of ``hf auth login``; it is no argument, and is never printed.
"""

import os
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nip_base.temporary_folders import held_folder
from nip_cli.printing.options import RunName, say_left_out
from nip_cli.printing.plans_and_runs import print_json
from nip_cli.printing.terminal import say
from nip_core.errors import SettingsError
from nip_core.parameters.services.published import Kind, Reference
from nip_core.records.named_run import find_run

if TYPE_CHECKING:
    from nip_bridges.hub.client import Hub
    from nip_bridges.hub.nip_json import Facts
    from nip_bridges.hub.transfer import Published
    from nip_core.run_store.run import RunStore

_KINDS = ("adapter", "dataset")
_A = {"adapter": "an adapter", "dataset": "a dataset"}
_MOST_NAMED = 10


def push(
    run: RunName,
    address: Annotated[
        str, typer.Option("--to", metavar="OWNER/NAME", help="The repository on the Hub.")
    ],
    kind: Annotated[
        str,
        typer.Option(
            "--what", help="adapter: a trained model. dataset: rollouts and training examples."
        ),
    ] = "adapter",
    iteration: Annotated[
        int | None,
        typer.Option(
            min=0, help="The models that play it, or the data of it. Default: the newest, all."
        ),
    ] = None,
    group: Annotated[
        str | None, typer.Option(help="Which model group; needed where several are trained.")
    ] = None,
    public: Annotated[
        bool, typer.Option("--public/--private", help="Whether anybody may see it.")
    ] = False,
    license_id: Annotated[
        str | None,
        typer.Option("--license", metavar="ID", help="As the Hub names it, like apache-2.0."),
    ] = None,
    base_model: Annotated[
        str | None,
        typer.Option(help="Where others find the base model; needed where it is a directory."),
    ] = None,
    run_store: Annotated[str, typer.Option(help="Where runs are kept.")] = "runs",
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Publish what RUN has trained, or played, on the Hugging Face Hub; private unless told
    otherwise. The same again makes no new commit, and one that was stopped goes on."""
    from nip_bridges.hub.client import connect
    from nip_bridges.hub.privacy import find_secrets

    reference = _reference(address, kind)
    if reference.revision is not None:
        raise SettingsError(f"--to {address}: a push makes the revision itself; give OWNER/NAME")
    _check_licence(license_id)
    tree = find_run(run, run_store, say_left_out)
    hub = connect()
    user = hub.user(reference)
    with held_folder("nip-push-") as folder:
        directory = folder / "repository"
        secrets = find_secrets(os.environ, hub.token)
        facts = _write(
            tree, directory, reference, iteration, group, license_id, base_model, secrets
        )
        result = _publish(hub, reference, directory, facts, tree, public, secrets)
    if as_json:
        print_json(
            {
                "run": tree.name,
                "kind": reference.kind,
                "repository": reference.repository,
                "commit": result.reference.revision,
                "url": result.url,
                "is_new": result.is_new,
            }
        )
        return
    say(f"{'pushed by ' + user if result.is_new else 'has all of it already'}: {result.url}")
    say(f"{result.reference}")


def pull(
    name: Annotated[
        str, typer.Argument(metavar="OWNER/NAME[@REVISION]", help="On the Hub.", show_default=False)
    ],
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="A new directory.", show_default=False)
    ],
    kind: Annotated[str, typer.Option("--what", help="adapter or dataset.")] = "adapter",
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Download an adapter, or data, of the Hugging Face Hub to DIR, and check it against its
    digests. Files that neither has are left out, and named."""
    from nip_bridges.hub.client import connect
    from nip_bridges.hub.transfer import receive

    received = receive(connect(), _reference(name, kind), directory)
    pinned, facts, left_out = received.reference, received.facts, received.left_out
    if as_json:
        print_json(
            {
                "kind": pinned.kind,
                "repository": pinned.repository,
                "commit": pinned.revision,
                "directory": str(directory),
                "checked": facts is not None,
                "lineage": None if facts is None else facts.lineage.model_dump(exclude_unset=True),
                "left_out": None if left_out is None else list(left_out),
            }
        )
        return
    say(f"{pinned}")
    if facts is None:
        say("not published by nip: it has no nip.json to check its files against")
    else:
        say(f"{len(facts.files)} files are what was published, of run {facts.lineage.run}")
    if left_out:
        some = ", ".join(left_out[:_MOST_NAMED]).replace("\n", "\\n")
        more = ", …" if len(left_out) > _MOST_NAMED else ""
        say(f"left out, as it is no part of {_A[pinned.kind]}: {len(left_out)} ({some}{more})")


def _reference(text: str, purpose: str) -> Reference:
    if purpose not in _KINDS:
        raise SettingsError(f"--what {purpose!r}: use {' or '.join(_KINDS)}")
    kind: Kind = "dataset" if purpose == "dataset" else "adapter"
    try:
        reference = Reference.parse(text, kind)
    except ValueError as error:
        raise SettingsError(str(error)) from None
    if reference.kind != kind:
        raise SettingsError(f"{text}: is a repository of the kind {reference.kind}; give --what")
    return reference


def _check_licence(license_id: str | None) -> None:
    if license_id is not None and not all(c.isalnum() or c in ".-_" for c in license_id):
        raise SettingsError(
            f"--license {license_id!r}: use an identifier of the Hub, like apache-2.0, mit or other"
        )


def _write(
    tree: "RunStore",
    directory: Path,
    reference: Reference,
    iteration: int | None,
    group: str | None,
    license_id: str | None,
    base_model: str | None,
    secrets: Mapping[str, str],
) -> "Facts":
    """Write what is to be published."""
    if reference.kind == "dataset":
        from nip_bridges.hub.dataset_of_run import write_run_tables

        if base_model is not None:
            raise SettingsError("--base-model: data has none; leave it out")
        return write_run_tables(
            tree,
            directory,
            place=reference.repository,
            iterations=[] if iteration is None else [iteration],
            group=group,
            license_id=license_id,
            secrets=secrets,
        )
    from nip_bridges.hub.adapter_of_run import choose_model, write_adapter

    return write_adapter(
        choose_model(tree, iteration, group),
        directory,
        place=reference.repository,
        base=base_model,
        license_id=license_id,
        probe=True,
    )


def _publish(
    hub: "Hub",
    reference: Reference,
    directory: Path,
    facts: "Facts",
    tree: "RunStore",
    public: bool,
    secrets: Mapping[str, str],
) -> "Published":
    """Send it, once everything is known to be right."""
    from nip_bridges.hub.privacy import check_nothing_leaks
    from nip_bridges.hub.transfer import check_public, push_directory

    local = tree.store.local_path(tree.root)
    places = [directory.parent, Path.cwd(), *([local.parent.absolute()] if local else [])]
    check_nothing_leaks(directory, secrets, places, socket.gethostname())
    check_public(hub, reference, facts, public=public)
    message = f"{reference.kind} of the run {tree.name}, by nip"
    return push_directory(hub, reference, directory, facts, message, public=public, say=_say)


def _say(line: str) -> None:
    say(f"nip: {line}", file=sys.stderr)
