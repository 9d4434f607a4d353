"""The transcripts of a run's committed splits.

RunTranscripts    those in the report: wrong verdicts first, then a sample; of an attack, those
                  that count with the most messages to choose from
ShownTranscripts  these, and the numbers left out
committed_rollouts the tables of a split; game_of, the game of settings on record
choose_shown_iterations  of a long run, the iterations that the report has any of
choose_newest_sample     a few of those that were played last

Of a long run the report has transcripts of a bounded number of iterations, and all of them
together take a bounded part of it. An iteration that is shown was shown ever since it was played,
so only the tables of the newest one are read for the next report.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from nip_core.attack_figures.figures import plain_rollouts
from nip_core.evaluation.episode_transcripts import (
    SAMPLE,
    Transcript,
    reasons,
    transcripts_from_tables,
)
from nip_core.game.render import Game
from nip_core.parameters.stored import read_settings
from nip_core.records.iterations import Records
from nip_core.report.embedding import Embedded, embed_transcript, fair_share
from nip_core.rollouts.plan import (
    CANDIDATE,
    EVERY_SPLIT,
    TEST,
    TRAIN,
    VALIDATION,
    may_choose,
)
from nip_core.rollouts.storage.row_tables import RolloutTables
from nip_core.rollouts.storage.tables import StoredRollouts, read_rollouts
from nip_core.run_store.manifest import is_committed
from nip_core.run_store.run import RunRecord, RunStore
from nip_core.session.contents import digest_templates

_SAMPLED = 40  # of each iteration and split
_MOST = 300  # of each, of those that are worth reading
_ROOM = 4_000_000  # characters of all in the report
_NEWEST, _EVENLY = 3, 12  # iterations of a long run that are shown: the last, and some before
_SPECIAL_TO_A_SAMPLE = 3
_SPLITS = tuple(split for split in EVERY_SPLIT if split not in (VALIDATION, CANDIDATE))

_Verdicts = dict[tuple[str, int], int]


@dataclass(frozen=True)
class ShownTranscripts:
    """The transcripts of a report."""

    shown: list[Embedded] = field(default_factory=list)
    left_out: list[tuple[int, str, dict[str, int]]] = field(default_factory=list)
    """Iteration, split, and how many episodes are not shown, by reason."""
    passed_over: tuple[int, int] = (0, 0)
    """How many iterations have none shown, and how many episodes these have."""


@dataclass(frozen=True)
class _Choice:
    """The episodes of a split that could be shown, in the order of the page, and the reasons."""

    transcripts: tuple[Embedded, ...]
    ranks: tuple[int, ...]  # which of them go first where there is no room for all
    reasons: Counter[str]  # of all episodes

    @property
    def size(self) -> int:
        return sum(len(transcript.text) for transcript in self.transcripts)

    def within(self, room: int) -> list[Embedded]:
        """Take the first of them by rank as far as `room` reaches, in the order of the page."""
        places, size = set(), 0
        for place in sorted(range(len(self.ranks)), key=self.ranks.__getitem__):
            size += len(self.transcripts[place].text)
            if size > room:
                break
            places.add(place)
        return [transcript for k, transcript in enumerate(self.transcripts) if k in places]


def choose_shown_iterations(newest: int) -> set[int]:
    """Choose the iterations up to `newest` with transcripts in the report.

    The last ones, and such before them as are multiples of the smallest power of two that leaves
    few enough. So each is in the set of the iteration before, but for the newest.
    """
    stride = 1
    while newest // stride > _EVENLY:
        stride *= 2
    last = range(max(0, newest - _NEWEST + 1), newest + 1)
    return {*range(0, newest + 1, stride), *last}


class RunTranscripts:
    """Episodes of a run that are shown, and those that are not."""

    def __init__(self, records: Records) -> None:
        """Reads nothing yet; transcripts of a committed split stay in `records.memory`."""
        self._records, self._run = records, records.run
        self._choices: dict[tuple[int, str], _Choice] = records.memory.setdefault("transcripts", {})
        self._verdicts: dict[tuple[int, str], _Verdicts] = records.memory.setdefault("verdicts", {})

    def chosen(self) -> ShownTranscripts:
        """Choose from the committed splits."""
        iterations = self._records.iterations()
        iterations_shown = choose_shown_iterations(max(iterations, default=0))
        # 1. Of each split that has a part: the episodes that could be shown.
        choices = {
            (i, split): choice
            for i in iterations
            if i in iterations_shown
            for split in _SPLITS
            if (choice := self._choice(i, split)) is not None
        }
        self._choices.clear()
        self._choices.update(choices)
        newest = {
            split: max((i for i, s in self._verdicts if s == split), default=-1)
            for split in _SPLITS
        }
        for i, split in [*self._verdicts]:
            if newest.get(split) != i:
                del self._verdicts[i, split]
        # 2. As many as there is room for.
        share = fair_share([choice.size for choice in choices.values()], _ROOM)
        result = ShownTranscripts(passed_over=self._passed_over({*iterations} - iterations_shown))
        for (i, split), choice in choices.items():
            selection = choice.within(share)
            hidden = choice.reasons - Counter(transcript.chosen for transcript in selection)
            result.shown.extend(selection)
            result.left_out.append((i, split, dict(hidden)))
        return result

    def _passed_over(self, iterations: set[int]) -> tuple[int, int]:
        metrics = (
            self._records.of(i).metrics(split) for i in iterations for split in (TEST, TRAIN)
        )
        return len(iterations), sum(figures.episodes or 0 for figures in metrics if figures)

    def _choice(self, iteration: int, split: str) -> _Choice | None:
        """Choose from a split, if it is committed."""
        if (iteration, split) in self._choices:
            return self._choices[iteration, split]
        rollouts = read_committed_rollouts(self._run, iteration, split)
        if rollouts is None:
            return None
        reasons_by_row = reasons(
            rollouts.episodes, rollouts.generations, self._before(iteration, split)
        )
        self._verdicts[iteration, split] = _verdicts(rollouts.episodes)
        transcripts = _chosen(rollouts, reasons_by_row, _SAMPLED, _MOST, self._game())
        choice = _Choice(
            tuple(embed_transcript(transcript) for transcript in transcripts),
            _ranks(transcripts),
            Counter(reasons_by_row),
        )
        # Not even alone it takes more than half of the room, nor of the memory of this process.
        selection = {id(transcript) for transcript in choice.within(_ROOM // 2)}
        places = [k for k, t in enumerate(choice.transcripts) if id(t) in selection]
        return _Choice(
            tuple(choice.transcripts[k] for k in places),
            tuple(choice.ranks[k] for k in places),
            choice.reasons,
        )

    def _before(self, iteration: int, split: str) -> _Verdicts:
        """Return the verdicts of the split in the newest iteration before."""
        for earlier in range(iteration - 1, -1, -1):
            if (earlier, split) in self._verdicts:
                return self._verdicts[earlier, split]
            directory = self._run.rollouts(earlier, split)
            if is_committed(self._run.store, directory):
                rollouts = StoredRollouts(self._run.store, [directory])
                return _verdicts(rollouts.episodes(["problem", "sample", "decision"]))
        return {}

    def _game(self) -> Game | None:
        memory = self._records.memory
        if "game" not in memory:
            memory["game"] = rebuild_game(self._records.shown.record)
        game: Game | None = memory["game"]
        return game


def choose_newest_sample(
    run: RunStore, limit: int, records: Records | None = None
) -> list[Transcript]:
    """Choose at most `limit` transcripts of the newest split, wrong verdicts first."""
    records = records or Records(run)
    for iteration in reversed(records.iterations()):
        for split in sorted(_SPLITS, key=TRAIN.__eq__):
            rollouts = read_committed_rollouts(run, iteration, split)
            if rollouts is not None:
                reasons_by_row = reasons(rollouts.episodes, rollouts.generations, {})
                return _chosen(
                    rollouts, reasons_by_row, limit, limit, rebuild_game(records.shown.record)
                )
    return []


def _ranks(transcripts: Sequence[Transcript]) -> tuple[int, ...]:
    """Rank the episodes for a page without room for all: some worth reading, then a sample, …"""
    special = [k for k, transcript in enumerate(transcripts) if transcript.chosen != SAMPLE]
    sample = [k for k, transcript in enumerate(transcripts) if transcript.chosen == SAMPLE]
    order = []
    while special or sample:
        order += special[:_SPECIAL_TO_A_SAMPLE] + sample[:1]
        del special[:_SPECIAL_TO_A_SAMPLE], sample[:1]
    places = {k: rank for rank, k in enumerate(order)}
    return tuple(places[k] for k in range(len(transcripts)))


def _verdicts(episodes: pa.Table) -> _Verdicts:
    columns = (episodes[name].to_pylist() for name in ("problem", "sample", "decision"))
    return {(problem, sample): decision for problem, sample, decision in zip(*columns, strict=True)}


def _chosen(
    rollouts: RolloutTables, worth_reading: Sequence[str], limit: int, most: int, game: Game | None
) -> list[Transcript]:
    tables = rollouts.episodes, rollouts.generations
    return transcripts_from_tables(
        *tables, limit, 0, worth_reading=worth_reading, max_special=most, game=game
    )


def read_committed_rollouts(run: RunStore, iteration: int, split: str) -> RolloutTables | None:
    """Read the tables of a split, None where it is not committed.

    Of an attack by choice these are the episodes that count with the most messages.
    """
    directory = run.rollouts(iteration, split)
    if not is_committed(run.store, directory):
        return None
    rollouts = read_rollouts(run.store, directory)
    tables = StoredRollouts(run.store, [directory])
    if not may_choose(split) or not tables.has_choices:
        return rollouts
    choices = tables.choices()
    return plain_rollouts(rollouts, choices, pc.max(choices["n"]).as_py())


def rebuild_game(record: RunRecord) -> Game | None:
    """The game of settings on record; None where its protocol or its templates are not here, or
    are others by now, and then neither channels nor prompts are shown."""
    try:
        game = Game(read_settings(record.parameters))
        digests = record.contents.get("templates", {})
        return game if digest_templates(game) == digests else None
    except (OSError, ValueError):
        return None
