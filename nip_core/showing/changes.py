"""The differences between two splits that were played, from their tables."""

from collections.abc import Sequence

from nip_core.evaluation.change_words import describe_changes, describe_pairs
from nip_core.evaluation.verdict_changes import (
    EPISODE_COLUMNS,
    GENERATION_COLUMNS,
    JudgedEpisodes,
    VerdictChanges,
    join_judged,
    measure_changes,
    read_judged,
)
from nip_core.game.render import Game
from nip_core.records.iterations import Records
from nip_core.rollouts.plan import TEST
from nip_core.rollouts.storage.tables import StoredRollouts
from nip_core.run_store.manifest import is_committed
from nip_core.showing.transcripts import rebuild_game


def read_split_verdicts(
    parts: Sequence[StoredRollouts], game: Game | None, with_arguments: bool = True
) -> JudgedEpisodes:
    """Read the verdicts of rollouts, one part in memory at a time. Raises CorruptionError.

    Without arguments, and without the game, no agent counts as having argued for anything.
    """
    claims = {} if game is None else game.scenario.claims
    split_by = () if game is None else game.scenario.split_by
    protocol = game.protocol if game is not None and with_arguments else None
    return join_judged(
        [
            read_judged(
                part.episodes(EPISODE_COLUMNS),
                None if protocol is None else part.generations(GENERATION_COLUMNS),
                protocol,
                claims,
                split_by,
            )
            for part in parts
        ]
    )


def describe_test_changes(records: Records) -> list[str]:
    """List the differences between the first test and the last; [] where there are not both."""
    run, record = records.run, records.shown.record
    iterations = [
        entry.iteration for entry in records.all() if entry.stored_metrics(TEST) is not None
    ]
    places = [run.rollouts(i, TEST) for i in (*iterations[:1], *iterations[1:][-1:])]
    if len(places) < 2 or not all(is_committed(run.store, place) for place in places):
        return []
    game = rebuild_game(record)
    sides = [
        read_split_verdicts(StoredRollouts(run.store, [place]).parts(), game) for place in places
    ]
    changes = measure_changes(sides[0], sides[1])
    if changes is None:
        return []
    return say_changes(changes, iterations[0], iterations[-1])


def say_changes(changes: VerdictChanges, first: int, last: int) -> list[str]:
    """List the differences between the tests of two iterations, the episodes first."""
    sides = f"Iteration {last} beside iteration {first}"
    heading = f"{sides}, on the {describe_pairs(changes)} of both tests:"
    return [heading, *describe_changes(changes, with_accuracy=False)]
