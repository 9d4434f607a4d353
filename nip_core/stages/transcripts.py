"""The transcripts of a run's committed splits.

RunTranscripts    those in the report: what went wrong first, then a sample; of an attack, those
                  that count with the most messages to choose from
newest_sample     a few of what was played last
save_transcripts  all of a split, as one file for reading
"""

from collections import Counter
from collections.abc import Sequence

import pyarrow.compute as pc

from nip_core.evaluation.attack import counted
from nip_core.evaluation.transcripts import Transcript, reasons, transcripts_from_tables
from nip_core.game.render import Game
from nip_core.parameters.stored import from_stored
from nip_core.rollouts.plan import ATTACK, TEST, TRAIN
from nip_core.rollouts.tables import RolloutTables, StoredRollouts, read_rollouts
from nip_core.run_store.manifest import is_committed
from nip_core.run_store.run import RunRecord, RunStore
from nip_core.stages.prepare import template_digests

_SAMPLED = 40  # of each iteration and split
_MOST = 300  # of each, of those that are worth reading


class RunTranscripts:
    """Episodes of a run that are shown, and those that are not; `add` splits in order of play."""

    def __init__(self, run: RunStore, record: RunRecord) -> None:
        """Reads nothing yet."""
        self.chosen: list[Transcript] = []
        self.left_out: list[tuple[int, str, dict[str, int]]] = []
        """Iteration, split, and how many episodes are not shown, by reason."""
        self._run, self._game = run, _game_of(record)
        self._verdicts: dict[str, dict[tuple[str, int], int]] = {}

    def add(self, iteration: int, split: str) -> None:
        """Choose from a split, if it is committed."""
        rollouts = _committed(self._run, iteration, split)
        if rollouts is None:
            return
        episodes, before = rollouts.episodes, self._verdicts.get(split, {})
        worth_reading = reasons(episodes, rollouts.generations, before)
        problems, samples = episodes["problem"].to_pylist(), episodes["sample"].to_pylist()
        verdicts = episodes["decision"].to_pylist()
        self._verdicts[split] = dict(
            zip(zip(problems, samples, strict=True), verdicts, strict=True)
        )
        chosen = _chosen(rollouts, worth_reading, _SAMPLED, _MOST, self._game)
        self.chosen += chosen
        hidden = Counter(worth_reading) - Counter(transcript.chosen for transcript in chosen)
        self.left_out.append((iteration, split, dict(hidden)))


def newest_sample(run: RunStore, limit: int) -> list[Transcript]:
    """At most `limit` transcripts of the split that was played last, what went wrong first."""
    for iteration in range(run.finished_iterations() + 1, -1, -1):
        for split in (TEST, ATTACK, TRAIN):
            rollouts = _committed(run, iteration, split)
            if rollouts is not None:
                why = reasons(rollouts.episodes, rollouts.generations, {})
                return _chosen(rollouts, why, limit, limit, _game_of(run.open()))
    return []


def _chosen(
    rollouts: RolloutTables, worth_reading: Sequence[str], limit: int, most: int, game: Game | None
) -> list[Transcript]:
    tables = rollouts.episodes, rollouts.generations
    return transcripts_from_tables(
        *tables, limit, 0, worth_reading=worth_reading, most=most, game=game
    )


def _committed(run: RunStore, iteration: int, split: str) -> RolloutTables | None:
    directory = run.rollouts(iteration, split)
    if not is_committed(run.store, directory):
        return None
    rollouts = read_rollouts(run.store, directory)
    if split != ATTACK:
        return rollouts
    choices = StoredRollouts(run.store, [directory]).choices()
    return counted(rollouts, choices, pc.max(choices["n"]).as_py())


def _game_of(record: RunRecord) -> Game | None:
    """The game of settings on record; None where its protocol or its templates are not here, or
    are others by now, and then neither channels nor prompts are shown."""
    try:
        game = Game(from_stored(record.parameters))
        recorded = record.contents.get("templates", {})
        return game if template_digests(game) == recorded else None
    except (OSError, ValueError):
        return None
