"""The spending of a whole run, with the parts set aside, and without those a fork has copied.

The parts that a fork has copied were paid by the run that they came from.
"""

from collections.abc import Iterator

from nip_core.attack_figures.metrics_document import find_metrics_type
from nip_core.jobs.document import count_billed_tokens, read_job
from nip_core.records.iterations import Records
from nip_core.records.spending import (
    STAGE_BY_SPLIT,
    PlayedTables,
    Spent,
    add_up,
    count_expected_tokens,
    find_tree_splits,
    list_folders,
)
from nip_core.rollouts.plan import TEST, TRAIN
from nip_core.run_store.run import RunStore, read_document


def add_up_spending(records: Records) -> Spent:
    """Add up everything the run has spent. Raises CorruptionError for a file that can't be read."""
    is_fork = records.shown.record.forked_from is not None
    copied = _copied(records)
    stages: list[Spent] = []
    for record in records.all():
        # Around the place from which a fork goes on, an iteration may be its own in part.
        if is_fork and record.iteration in (copied - 1, copied):
            stages += _own_stages(records, record.iteration)
        elif record.iteration >= copied:
            stages.append(record.all_spent)
    return add_up([*stages, add_up_set_aside(records)])


def _own_stages(records: Records, iteration: int) -> Iterator[Spent]:
    """Give the spending of a fork on an iteration, without the part it has copied."""
    run, record = records.run, records.of(iteration)
    tables = PlayedTables(run.store, run.root, f"{iteration:04d}", frozenset())
    players = {stage: tables.player(split) for split, stage in STAGE_BY_SPLIT.items()}
    # A split that is not committed has no player yet and is its own: a fork copies committed ones.
    stages = [stage for stage, player in players.items() if player in (None, run.name)]
    for group in record.jobs:
        job = read_job(run, run.job(iteration, group))
        stages += [f"train {group}"] if job is not None and job.run == run.name else []
    yield from (spending for stage, spending in record.spent.items() if stage in stages)


def add_up_set_aside(records: Records) -> Spent:
    """Add up the spending on parts that were done again since, see `nip_core.records.rewinds`."""
    # Most runs: nothing is to be read for it.
    if records.rewinds == 0:
        return Spent()
    # Files set aside never change, but for a further rewind. With that the memory goes; and a sum
    # that was taken while a rewind moved files goes at the next look.
    if "set aside" not in records.memory:
        run, trees = records.run, find_tree_splits(records.shown.record.parameters)
        place = f"{run.root}/superseded"
        roots = [f"{place}/{name}" for name in list_folders(run.store, place)]
        parts = (part for root in roots for part in _below(run, root, trees))
        records.memory["set aside"] = add_up(parts)
    spending: Spent = records.memory["set aside"]
    return spending


def _below(run: RunStore, root: str, trees: frozenset[str]) -> Iterator[Spent]:
    """Give the run's spending on the files below `root`; of a fork's some may be copies."""
    kinds = ("iterations", "journals")
    for name in sorted({n for kind in kinds for n in list_folders(run.store, f"{root}/{kind}")}):
        tables = PlayedTables(run.store, root, name, trees)
        for split in tables.splits:
            if tables.player(split) in (None, run.name):
                path = f"{root}/iterations/{name}/metrics-{split}.json"
                kind = find_metrics_type(split)
                yield tables.spent(split, read_document(run, path, kind))
        for file in run.store.list(f"{root}/iterations/{name}/jobs"):
            path = f"{root}/iterations/{name}/jobs/{file}"
            job = read_job(run, path)
            if job is not None and job.run == run.name:
                # The dataset may have stayed where it was, if the job alone was done again.
                places = (root, run.root)
                dataset = (f"{place}/iterations/{name}/datasets/{job.group}" for place in places)
                estimates = (
                    count_expected_tokens(run.store, directory, job) for directory in dataset
                )
                expected = next((tokens for tokens in estimates if tokens is not None), None)
                yield Spent(trained={job.group: count_billed_tokens(job, expected)})


def _copied(records: Records) -> int:
    """Count the iterations, from the first on, that a fork has from another run."""
    if records.shown.record.forked_from is None:
        return 0
    # Where its own begin does not change any more, but for a rewind, with which the memory goes.
    if "copied" not in records.memory:
        own = (i for i in records.iterations() if not _is_copied(records.run, i))
        first = next(own, None)
        if first is None:  # of its own it has nothing yet, so the next look may say otherwise
            return records.shown.last + 1
        records.memory["copied"] = first
    return int(records.memory["copied"])


def _is_copied(run: RunStore, iteration: int) -> bool:
    tables = PlayedTables(run.store, run.root, f"{iteration:04d}", frozenset())
    players = (tables.player(split) for split in (TRAIN, TEST))
    return next((player != run.name for player in players if player is not None), False)
