"""The command `nip clean`: delete what nothing in a run refers to, or show it."""

from typing import Annotated

import typer

from nip_cli.printing.options import RunName
from nip_cli.printing.terminal import say
from nip_core.errors import RunConflictError


def clean(
    run: RunName,
    run_store: Annotated[str, typer.Option(help="Where runs are kept.")] = "runs",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show it, delete nothing.")] = False,
) -> None:
    """Delete what nothing in a run refers to: leftovers of kills, journals of committed shards,
    models and uploads of its own server that no job or models.json names."""
    from nip_core.evaluation.figures_in_words import file_size
    from nip_core.records.named_run import find_run
    from nip_core.records.rewinds import finish_rewinds, list_unfinished_rewinds
    from nip_core.run_store.lease import acquire, refuse_if_held
    from nip_core.run_store.run import RunStore
    from nip_core.run_store.store import open_store
    from nip_core.servers.own_server import find_server_directory
    from nip_verify.unused import find_unused, remove_unused

    tree = find_run(run, run_store)
    refuse_if_held(tree.store, tree.root)
    if dry_run:
        if halves := list_unfinished_rewinds(tree):
            raise RunConflictError(
                f"{halves[0]}: a rewind was killed half-way, and what it is still to set aside "
                "would be on the list; run nip train once, or nip clean without --dry-run, which "
                "complete it first"
            )
        unused = find_unused(tree, find_server_directory(tree))
    else:
        tree = RunStore(open_store(tree.store.url), tree.name)
        with acquire(tree.store, tree.root) as lease:
            finish_rewinds(tree, lease)
            unused = find_unused(tree, find_server_directory(tree))
            remove_unused(tree, find_server_directory(tree), unused)
    for one in unused:
        say(f"{file_size(one.bytes):>9}  {one.kind:<10}  {one.where}  ({one.why})")
    total = file_size(sum(one.bytes for one in unused))
    would = "would be deleted" if dry_run else "deleted"
    say(f"{len(unused)} {'thing' if len(unused) == 1 else 'things'}, {total}, {would}")
