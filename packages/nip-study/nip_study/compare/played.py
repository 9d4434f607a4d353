"""Runs on record, for comparisons: their names, their tests, and how far apart these are."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import pyarrow.compute as pc

from nip_core.errors import DatasetError
from nip_core.evaluation.metrics import paired_difference
from nip_core.evaluation.split_metrics import PairedDifference, SplitMetrics
from nip_core.parameters.basis.plain import Plain
from nip_core.records import named_run
from nip_core.records.intervals import find_split_columns
from nip_core.records.iterations import Records
from nip_core.records.status import find_status
from nip_core.rollouts.plan import TEST
from nip_core.run_store.run import RunRecord, RunStore
from nip_core.run_store.settings_difference import settings_difference

LABELS: Mapping[str, int | None] = {"accuracy": None, "completeness": 1, "soundness": 0}
"""The rates that are compared, with the label of the problems that each is about."""


@dataclass(frozen=True)
class PlayedRun:
    """A run on record, read only."""

    tree: RunStore

    @property
    def name(self) -> str:
        """Return its name, without its place."""
        return self.tree.name

    @property
    def place(self) -> str:
        """Return its store and its name."""
        return f"{self.tree.store.url}/{self.name}"

    @cached_property
    def records(self) -> Records:
        """Open the records of its iterations."""
        return Records(self.tree)

    @property
    def record(self) -> RunRecord:
        """Return its settings, version and contents."""
        return self.records.shown.record

    @cached_property
    def status(self) -> str:
        """Say whether it is running, finished or stopped."""
        return find_status(self.tree, self.records)

    @cached_property
    def tests(self) -> tuple[int, ...]:
        """List the tested iterations, in order."""
        records = self.records.all()
        return tuple(r.iteration for r in records if r.stored_metrics(TEST) is not None)

    def test(self, iteration: int) -> SplitMetrics:
        """Return the metrics of the test of one of `tests`."""
        return self.records.of(iteration).metrics(TEST) or SplitMetrics()


def find_played_run(name: str, run_store: str) -> PlayedRun:
    """Find the run called `name` in `run_store`, or at the path or address STORE/NAME.

    Raises SettingsError if it is not there.
    """
    return PlayedRun(named_run.find_run(name, run_store))


def subtract_settings(a: PlayedRun, b: PlayedRun) -> dict[str, tuple[Plain, Plain]]:
    """Find by dotted key the settings in which two runs differ, but for those that name a run."""
    return {
        key: values
        for key, values in settings_difference(a.record.parameters, b.record.parameters).items()
        if key not in ("run_name", "run_store") and not key.endswith("_type")
    }


def check_alike(a: PlayedRun, b: PlayedRun) -> None:
    """Raise DatasetError if the runs were tested on different problems."""
    digests = [(run.record.contents.get("problems") or {}).get(TEST) for run in (a, b)]
    if None not in digests and digests[0] != digests[1]:
        raise DatasetError(
            f"runs {a.name!r} and {b.name!r} are tested on different problems, so their results "
            "can't be paired; compare runs with the same dataset, dataset_options and "
            "test_dataset_split"
        )


def compare_tests(
    a: tuple[PlayedRun, int], b: tuple[PlayedRun, int], rates: Sequence[str] = tuple(LABELS)
) -> dict[str, PairedDifference]:
    """Compare a test of `b` with one of `a`, problem by problem: by rate, how much higher it is.

    Each is a run and an iteration. Raises DatasetError for different problems.
    """
    check_alike(a[0], b[0])
    tables = [run.records.test_episodes(iteration) for run, iteration in (a, b)]
    settings = a[0].record.parameters
    split_by = find_split_columns(settings)
    differences = {}
    for rate in rates:
        label = LABELS[rate]
        parts = tables
        if label is not None:
            parts = [table.filter(pc.equal(table["y"], label)) for table in tables]
        # The seed of the first run for both, so that a comparison says the same each time.
        seed = a[0].record.seed
        differences[rate] = paired_difference(parts[0], parts[1], seed, split_by=split_by)
    return differences
