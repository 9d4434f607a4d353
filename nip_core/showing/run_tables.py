"""A run as Arrow tables, for notebooks: pandas, Polars and DuckDB take them as they are.

run        a run by its name; runs: all of a store
RunTables  its tables, each read when it is first asked for, and checked while it is read

    from nip_core import run

    episodes = run("quickstart").where(split="test").episodes
"""

from collections.abc import Iterator
from functools import cached_property
from typing import Any

import pyarrow as pa

from nip_core.errors import SettingsError
from nip_core.evaluation.attack_metrics import AttackMetrics
from nip_core.evaluation.split_metrics import SplitMetrics
from nip_core.records.iterations import IterationRecord, Records
from nip_core.records.jobs_shown import DatasetShown, JobShown
from nip_core.records.named_run import find_run, open_runs
from nip_core.rollouts.plan import ATTACK, CANDIDATE, TEST, TRAIN, VALIDATION
from nip_core.rollouts.schema import EPISODES, GENERATIONS, TIMINGS
from nip_core.rollouts.tables import StoredRollouts
from nip_core.run_store.manifest import is_committed
from nip_core.run_store.run import RunStore
from nip_core.showing.listing import list_summaries
from nip_core.showing.summary import find_report, summarise_run
from nip_core.trainers.dataset import open_dataset

_SPLITS = (TRAIN, VALIDATION, TEST, CANDIDATE, ATTACK)
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
    """What a run has on record, as `pyarrow.Table`s.

    Of a run that goes on it is what was committed when a table was first asked for. Damaged files
    raise CorruptionError, which names the file.
    """

    def __init__(
        self, tree: RunStore, iterations: frozenset[int] | None = None, split: str | None = None
    ) -> None:
        """Reads nothing. Of `iterations` and of a `split` alone, None: of all."""
        self._tree, self._iterations, self._split = tree, iterations, split
        self._records = Records(tree)

    def where(self, iteration: int | None = None, split: str | None = None) -> "RunTables":
        """The same run with the rows of one iteration, or of one split, alone.

        Raises SettingsError for an iteration or a split of which nothing is on record.
        """
        there = self._records.iterations()
        if iteration is not None and iteration not in there:
            raise SettingsError(
                f"run {self.name!r}: iteration {iteration} is not on record; there are "
                f"{', '.join(map(str, there)) or 'none'}"
            )
        if split is not None and split not in _SPLITS:
            raise SettingsError(f"split {split!r}: use one of {', '.join(_SPLITS)}")
        chosen = self._iterations if iteration is None else frozenset([iteration])
        return RunTables(self._tree, chosen, self._split if split is None else split)

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
                    tables.append(_with_columns(dataset.table(), columns))
        return pa.concat_tables(tables, promote_options="default") if tables else pa.table({})

    @cached_property
    def metrics(self) -> pa.Table:
        """One row per iteration and split: rates with 95 % intervals, and counts."""
        rows = []
        for record in self._chosen():
            for split in _SPLITS if self._split is None else (self._split,):
                if (measured := record.figures(split)) is not None:
                    rows.append({"iteration": record.iteration, "split": split, **_rates(measured)})
        return pa.Table.from_pylist(rows, _METRICS)

    @cached_property
    def iterations(self) -> pa.Table:
        """One row per iteration: its test, what it has spent, how long it took."""
        return pa.Table.from_pylist([self._iteration(r) for r in self._chosen()], _ITERATIONS)

    @cached_property
    def models(self) -> pa.Table:
        """One row per iteration and group: its model, and the end of its training."""
        rows = [row for record in self._chosen() for row in _models(record)]
        return pa.Table.from_pylist(rows, _MODELS)

    def __repr__(self) -> str:
        only = [f"iteration {i}" for i in sorted(self._iterations or ())]
        only += [f"split {self._split}"] if self._split else []
        which = f" ({', '.join(only)})" if only else ""
        return (
            f"<run {self.name!r} in {self._tree.store.url}{which}: episodes, generations, timings, "
            "examples, metrics, iterations, models>"
        )

    def _chosen(self) -> list[IterationRecord]:
        chosen = self._iterations
        return [r for r in self._records.all() if chosen is None or r.iteration in chosen]

    def _iteration(self, record: IterationRecord) -> dict[str, Any]:
        is_last = record.iteration == self._records.shown.last  # which is nothing but a test
        spent, test = record.all_spent, record.metrics(TEST)
        return {
            "iteration": record.iteration,
            "finished": record.is_over or (is_last and test is not None),
            "accuracy": test and test.accuracy,
            "calls": spent.calls,
            "prompt_tokens": spent.prompt_tokens,
            "completion_tokens": spent.generated_tokens,
            "training_tokens": spent.trained_tokens,
            "seconds": sum(record.stage_s.values()) or None,
        }

    def _committed(self) -> Iterator[tuple[int, str, str]]:
        """Iteration, split and directory of what is committed and asked for."""
        for iteration in self._records.iterations():
            if self._iterations is not None and iteration not in self._iterations:
                continue
            for split in _SPLITS if self._split is None else (self._split,):
                directory = self._tree.rollouts(iteration, split)
                if is_committed(self._tree.store, directory):
                    yield iteration, split, directory

    def _with_place(self, kind: str, schema: pa.Schema) -> pa.Table:
        """A table of all chosen splits, each row with its iteration and split."""
        tables = [_with_columns(schema.empty_table(), {"iteration": 0, "split": ""})]
        for iteration, split, directory in self._committed():
            stored = StoredRollouts(self._tree.store, [directory])
            table = stored.timings() if kind == "timings" else stored.generations(schema.names)
            tables.append(_with_columns(table, {"iteration": iteration, "split": split}))
        return pa.concat_tables(tables)


def _with_columns(table: pa.Table, values: dict[str, Any]) -> pa.Table:
    """The table with a constant column for each value, before its own."""
    for place, (name, value) in enumerate(values.items()):
        kind = pa.int32() if isinstance(value, int) else pa.string()
        column = pa.array([value] * table.num_rows, kind)
        table = table.add_column(place, pa.field(name, kind), column)
    return table


def _rates(measured: SplitMetrics | AttackMetrics) -> dict[str, Any]:
    figures = measured.as_json()
    row = {name: figures.get(name) for name in (*_COUNTS, *_RATES)}
    for rate in _RATES:
        low, high = figures.get(f"{rate}_ci95") or (None, None)
        row |= {f"{rate}_low": low, f"{rate}_high": high}
    return row


def _models(record: IterationRecord) -> Iterator[dict[str, Any]]:
    after = {} if record.swap is None else record.swap.names
    for group, model in record.served.items():
        job = record.jobs.get(group, JobShown())
        yield {
            "iteration": record.iteration,
            "group": group,
            "model": model,
            "next_model": after.get(group),
            "job": job.id,
            "status": job.state,
            "examples": record.datasets.get(group, DatasetShown()).examples,
            "loss": job.loss[-1][1] if job.loss else None,
        }
