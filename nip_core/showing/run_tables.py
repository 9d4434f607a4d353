"""A run as Arrow tables, for notebooks: pandas, Polars and DuckDB take them as they are.

from nip_core import run

episodes = run("quickstart").where(split="test").episodes
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from nip_core.attack_figures.metrics_document import AnyMetrics
from nip_core.errors import NipError, SettingsError
from nip_core.game.render import Game
from nip_core.records.iterations import IterationRecord, Records
from nip_core.records.jobs_shown import DatasetShown, JobShown
from nip_core.records.named_run import find_run, open_runs
from nip_core.rollouts.plan import EVERY_SPLIT, TEST, TRAIN, VALIDATION
from nip_core.rollouts.storage.schema import EPISODES, GENERATIONS, TIMINGS
from nip_core.rollouts.storage.tables import StoredRollouts
from nip_core.run_store.manifest import is_committed
from nip_core.run_store.run import RunStore
from nip_core.showing.episodes.episode_filters import EpisodeFilters
from nip_core.showing.episodes.episode_rows import ReadableEpisode
from nip_core.showing.episodes.found_episodes import FoundEpisodes
from nip_core.showing.episodes.notes import RunNotes
from nip_core.showing.listing import list_summaries
from nip_core.showing.summary import find_report, summarise_run
from nip_core.showing.transcripts import rebuild_game
from nip_core.trainers.dataset import open_dataset

_SPLITS = (TRAIN, VALIDATION, TEST, *EVERY_SPLIT[3:])
_RATES = ("accuracy", "completeness", "soundness")
_COUNTS = ("episodes", "distinct_problems", "questions")
_PLACE = [pa.field("iteration", pa.int32()), pa.field("split", pa.string())]
_METRICS = pa.schema(
    [
        *_PLACE,
        *(pa.field(name, pa.int64()) for name in _COUNTS),
        *(
            pa.field(f"{rate}{end}", pa.float64())
            for rate in _RATES
            for end in ("", "_low", "_high")
        ),
    ]
)
_ITERATIONS = pa.schema(
    [
        _PLACE[0],
        pa.field("finished", pa.bool_()),
        pa.field("accuracy", pa.float64()),
        pa.field("calls", pa.int64()),
        pa.field("prompt_tokens", pa.int64()),
        pa.field("completion_tokens", pa.int64()),
        pa.field("training_tokens", pa.int64()),
        pa.field("seconds", pa.float64()),
    ]
)
_MODELS = pa.schema(
    [
        _PLACE[0],
        pa.field("group", pa.string()),
        pa.field("model", pa.string()),
        pa.field("next_model", pa.string()),
        pa.field("job", pa.string()),
        pa.field("status", pa.string()),
        pa.field("examples", pa.int64()),
        pa.field("loss", pa.float64()),
    ]
)


def run(name: str | None = None, store: str = "runs") -> "RunTables":
    """The run of this name, or the newest, in a directory or an address like ``s3://bucket/runs``.

    Nothing is read yet but that it is there. Raises SettingsError, which lists the runs that
    there are.
    """
    return RunTables(find_run(name, store, lambda reason: None, "store"))


def runs(store: str = "runs") -> list[dict[str, Any]]:
    """A summary of each run of a store, the newest first, as ``nip ls --json`` has it."""
    return list_summaries(open_runs(store, "store"), lambda reason: None)


class RunTables:
    """The records of a run, as `pyarrow.Table`s.

    A run that goes on has in a table the rows that were committed when the table was first asked
    for. Damaged files raise CorruptionError, which names the file.
    """

    def __init__(self, tree: RunStore, filters: EpisodeFilters | None = None) -> None:
        """Reads nothing. Without `filters` it is all of the run."""
        self._tree, self._filters = tree, filters or EpisodeFilters()
        self._records, self._notes = Records(tree), RunNotes(tree)

    def where(
        self,
        iteration: int | None = None,
        split: str | None = None,
        *,
        verdict: str | None = None,
        decision: str | None = None,
        label: int | None = None,
        p_from: float | None = None,
        p_to: float | None = None,
        outcome: str | None = None,
        invalid: bool | None = None,
        difficulty: str | None = None,
        mutation: str | None = None,
        model: str | None = None,
        problem: str | None = None,
        text: str | None = None,
        agent: str | None = None,
        round: int | None = None,
        noted: str | None = None,
        note: str | None = None,
        order: str | None = None,
    ) -> "RunTables":
        """The same run with some of its rows: of an iteration, of a split, of some episodes.

        The filters are the same as for the list in ``nip view``, which shows this call beside its
        rows. `verdict` is right, wrong, failed or not-right; `decision` accept, reject, neither or
        "no decision"; `label` 1, 0 or -1 (none); `p_from` and `p_to` bound P(accept); `invalid`
        whether an answer was. `problem` is a part of the name, or all of it in quotation marks.
        `text` stands in a message or a thought, written by `agent` in `round`. `noted` is starred,
        note or any; `note` a part of one. `order` is the order of the list: failures, played,
        problem, tokens, invalid, reward, rounds, confident (and wrong first), unsure.

        Raises SettingsError for an iteration, a split or an agent that is not on record, and for a
        value that a filter does not have.
        """
        arguments = locals()
        values = {n: v for n, v in arguments.items() if n != "self" and v is not None}
        filters = replace(self._filters, **values)
        iterations = self._records.iterations()
        if iteration is not None and iteration not in iterations:
            raise SettingsError(
                f"run {self.name!r}: iteration {iteration} is not on record; there are "
                f"{', '.join(map(str, iterations)) or 'none'}"
            )
        if split is not None and split not in _SPLITS:
            raise SettingsError(f"split {split!r}: use one of {', '.join(_SPLITS)}")
        if agent is not None and agent not in (agents := self.parameters.get("agents", {})):
            raise SettingsError(f"agent {agent!r}: there are {', '.join(agents)}")
        return RunTables(self._tree, filters)

    @property
    def name(self) -> str:
        """The run's name."""
        return self._tree.name

    @cached_property
    def parameters(self) -> dict[str, Any]:
        """Its settings, as they were when it was last opened."""
        return dict(self._records.shown.record.parameters)

    @cached_property
    def summary(self) -> dict[str, Any]:
        """As ``nip show --json`` has it: status, iterations, costs."""
        return summarise_run(self._tree, self._records)

    @property
    def report(self) -> str | None:
        """The place of its report, None if there is none yet."""
        return find_report(self._tree)

    @cached_property
    def episodes(self) -> pa.Table:
        """One row per episode: problem, label, verdict, outcome, rewards."""
        if self._found is not None:
            return self._found.episodes()
        directories = [directory for _, _, directory in self._committed()]
        return StoredRollouts(self._tree.store, directories).episodes(EPISODES.names)

    @cached_property
    def generations(self) -> pa.Table:
        """One row per model call, with its iteration and split."""
        return self._with_place("generations", GENERATIONS)

    @cached_property
    def timings(self) -> pa.Table:
        """One row per model call: start and duration, with iteration and split."""
        return self._with_place("timings", TIMINGS)

    @cached_property
    def examples(self) -> pa.Table:
        """One row per training example, with its ``group`` and ``method``.

        Where an iteration learns in another way than the next, columns that one of them lacks are
        null in its rows.
        """
        tables = []
        for record in self._chosen():
            for group in record.datasets:
                directory = self._tree.dataset(record.iteration, group)
                if is_committed(self._tree.store, directory):
                    dataset = open_dataset(self._tree.store, directory)
                    columns = {"group": group, "method": dataset.method}
                    table = _with_columns(dataset.table(), columns)
                    if self._found is not None:
                        table = table.filter(pc.is_in(table["episode"], value_set=self._found.keys))
                    tables.append(table)
        return pa.concat_tables(tables, promote_options="default") if tables else pa.table({})

    @cached_property
    def metrics(self) -> pa.Table:
        """One row per iteration and split: rates with 95 % intervals, and counts."""
        self._refuse_filters("metrics")
        rows = []
        for record in self._chosen():
            for split in self._splits:
                if (figures := record.figures(split)) is not None:
                    rows.append({"iteration": record.iteration, "split": split, **_rates(figures)})
        return pa.Table.from_pylist(rows, _METRICS)

    @cached_property
    def iterations(self) -> pa.Table:
        """One row per iteration: its test, its spending, how long it took."""
        self._refuse_filters("iterations")
        return pa.Table.from_pylist([self._iteration(r) for r in self._chosen()], _ITERATIONS)

    @cached_property
    def models(self) -> pa.Table:
        """One row per iteration and group: its model, and the end of its training."""
        self._refuse_filters("models")
        rows = [row for record in self._chosen() for row in _models(record)]
        return pa.Table.from_pylist(rows, _MODELS)

    @property
    def rows(self) -> list[ReadableEpisode]:
        """The episodes with all of their texts and notes, as *Download these rows* has them.

        ``pandas.DataFrame`` and ``polars.DataFrame`` take the list as it is.
        """
        episodes = self._found or self._find(self._filters)
        return episodes.readable(self._game)

    @cached_property
    def _game(self) -> Game | None:
        try:
            return rebuild_game(self._records.shown.record)
        except NipError:
            return None  # its settings name a module or file that is not here

    @property
    def notes(self) -> pa.Table:
        """One row per episode with a star or a note, whether it is there by now or not."""
        return self._notes.table()

    def __repr__(self) -> str:
        only = [f"{name} {value}" for name, value in self._filters.given.items()]
        part = f" ({', '.join(only)})" if only else ""
        return (
            f"<run {self.name!r} in {self._tree.store.url}{part}: episodes, generations, timings, "
            "examples, metrics, iterations, models, rows, notes>"
        )

    @property
    def _splits(self) -> tuple[str, ...]:
        return _SPLITS if self._filters.split is None else (self._filters.split,)

    @cached_property
    def _found(self) -> FoundEpisodes | None:
        """The episodes of the filters; None where these ask for whole splits."""
        return None if self._filters.is_of_places else self._find(self._filters)

    def _find(self, filters: EpisodeFilters) -> FoundEpisodes:
        # In the order of `nip view`: by iteration, then by the split's name.
        directories = sorted(directory for _, _, directory in self._committed())
        return FoundEpisodes(self._tree.store, directories, filters, self._notes)

    def _refuse_filters(self, table: str) -> None:
        if not self._filters.is_of_places:
            names = sorted(self._filters.given.keys() - {"iteration", "split"})
            raise SettingsError(
                f"{table} are of whole iterations and splits, and know no {', '.join(names)}; "
                "ask for them without"
            )

    def _chosen(self) -> list[IterationRecord]:
        number = self._filters.iteration
        return [r for r in self._records.all() if number is None or r.iteration == number]

    def _iteration(self, record: IterationRecord) -> dict[str, Any]:
        is_last = record.iteration == self._records.shown.last  # which is nothing but a test
        spending, test = record.all_spent, record.metrics(TEST)
        return {
            "iteration": record.iteration,
            "finished": record.is_over or (is_last and test is not None),
            "accuracy": test and test.accuracy,
            "calls": spending.calls,
            "prompt_tokens": spending.prompt_tokens,
            "completion_tokens": spending.generated_tokens,
            "training_tokens": spending.trained_tokens,
            "seconds": sum(record.stage_s.values()) or None,
        }

    def _committed(self) -> Iterator[tuple[int, str, str]]:
        """Iteration, split and directory of each committed split that is asked for."""
        for iteration in self._records.iterations():
            if self._filters.iteration not in (None, iteration):
                continue
            for split in self._splits:
                directory = self._tree.rollouts(iteration, split)
                if is_committed(self._tree.store, directory):
                    yield iteration, split, directory

    def _with_place(self, kind: str, schema: pa.Schema) -> pa.Table:
        """A table of all chosen splits, each row with its iteration and split."""
        tables = [_with_columns(schema.empty_table(), {"iteration": 0, "split": ""})]
        for iteration, split, directory in self._committed():
            rollouts = StoredRollouts(self._tree.store, [directory])
            table = rollouts.timings() if kind == "timings" else rollouts.generations(schema.names)
            if self._found is not None:
                mine = pc.is_in(table["key"], value_set=self._found.generation_keys)
                table = table.filter(mine)
            tables.append(_with_columns(table, {"iteration": iteration, "split": split}))
        return pa.concat_tables(tables)


def _with_columns(table: pa.Table, values: dict[str, Any]) -> pa.Table:
    """The table with a constant column for each value, before its own."""
    for place, (name, value) in enumerate(values.items()):
        kind = pa.int32() if isinstance(value, int) else pa.string()
        column = pa.array([value] * table.num_rows, kind)
        table = table.add_column(place, pa.field(name, kind), column)
    return table


def _rates(metrics: AnyMetrics) -> dict[str, Any]:
    figures = metrics.as_json()
    row = {name: figures.get(name) for name in (*_COUNTS, *_RATES)}
    for rate in _RATES:
        low, high = figures.get(f"{rate}_ci95") or (None, None)
        row |= {f"{rate}_low": low, f"{rate}_high": high}
    return row


def _models(record: IterationRecord) -> Iterator[dict[str, Any]]:
    next_models = {} if record.swap is None else record.swap.names
    for group, model in record.served.items():
        job = record.jobs.get(group, JobShown())
        yield {
            "iteration": record.iteration,
            "group": group,
            "model": model,
            "next_model": next_models.get(group),
            "job": job.id,
            "status": job.state,
            "examples": record.datasets.get(group, DatasetShown()).examples,
            "loss": job.loss[-1][1] if job.loss else None,
        }
