"""The records of each iteration of a run, read once where they do not change any more.

An iteration is over when its swap is on record and so is its test, where the settings ask for one.
From then on its files stay as they are, unless the run is done again from an earlier place
(`nip_core.records.rewinds`). So `Records` keeps its reading of such an iteration, and reads no
more than one or two of them anew, however many there are.

A process that opens a long run need not read them all either: each `BLOCK` iterations that are over
are written once more, together (`nip_core.records.blocks`). Such a file follows the documents that
it is derived from, so a kill between the two costs nothing.
"""

from dataclasses import asdict
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

from nip_core.attack_figures.metrics_document import AttackMetrics
from nip_core.evaluation.split_metrics import PairedDifference, SplitMetrics
from nip_core.jobs.document import count_billed_tokens, read_job
from nip_core.records.blocks import (
    BLOCK,
    PARTS,
    BlockPart,
    drop_breakdowns,
    read_block,
    write_block,
)
from nip_core.records.intervals import find_split_columns, read_shown_metrics
from nip_core.records.jobs_shown import NOT_DUE, DatasetShown, JobShown, read_losses
from nip_core.records.models import Decision, Swap, read_swap
from nip_core.records.run_shown import RunShown, open_shown
from nip_core.records.spending import (
    Spent,
    add_up,
    add_up_by_stage,
    count_expected_tokens,
    find_tree_splits,
)
from nip_core.records.stage_seconds import StageSeconds, read_seconds_so_far
from nip_core.rollouts.plan import ATTACK, EVERY_SPLIT, TEST, TRAIN
from nip_core.run_store.documents import validate_document
from nip_core.run_store.lease import Lease
from nip_core.run_store.manifest import MANIFEST, is_committed, read_manifest
from nip_core.run_store.run import RunStore, read_document
from nip_core.run_store.store import MissingFileError, list_files

if TYPE_CHECKING:  # a run that has its documents is shown without Arrow
    import pyarrow as pa


class IterationRecord:
    """One iteration, each part read when it is first asked for; damage raises CorruptionError."""

    def __init__(self, records: "Records", iteration: int) -> None:
        """Reads nothing yet."""
        self._records, self._run, self.iteration = records, records.run, iteration
        self._stored_metrics: dict[str, SplitMetrics | None] = {}
        self._shown_metrics: dict[str, SplitMetrics] = {}
        self._attack_metrics: AttackMetrics | None = None
        self.has_breakdowns = True
        """Whether its metrics are whole, see `Records.whole`."""
        self.derived: dict[str, Any] = {}
        """Values that callers derive from it, for as long as it is the same."""

    def metrics(self, split: str) -> SplitMetrics | None:
        """Return the metrics of a split, None where there are none.

        The gate's splits have the metrics that are stored, other splits have the intervals that
        are shown.
        """
        metrics = self.stored_metrics(split)
        if metrics is not None and split in (TEST, TRAIN) and split not in self._shown_metrics:
            full_metrics = read_shown_metrics(self._run, self.iteration, split, metrics)
            self._shown_metrics[split] = full_metrics
        return self._shown_metrics.get(split, metrics)

    def stored_metrics(self, split: str) -> SplitMetrics | None:
        """The metrics of a split as they are on record; of an earlier block, as they are shown."""
        if split not in self._stored_metrics:
            path = self._run.metrics(self.iteration, split)
            self._stored_metrics[split] = read_document(self._run, path, SplitMetrics)
        return self._stored_metrics[split]

    @property
    def attack(self) -> AttackMetrics | None:
        """Read the figures of an attack that are measured with this iteration; None without any."""
        if self._attack_metrics is None:
            path = self._run.metrics(self.iteration, ATTACK)
            self._attack_metrics = read_document(self._run, path, AttackMetrics)
        return self._attack_metrics

    def figures(self, split: str) -> SplitMetrics | AttackMetrics | None:
        """The figures of a split, an attack or not, as `metrics` has them."""
        return self.attack if split == ATTACK else self.metrics(split)

    def stored_figures(self, split: str) -> SplitMetrics | AttackMetrics | None:
        """The figures of a split, an attack or not, as `stored_metrics` has them."""
        return self.attack if split == ATTACK else self.stored_metrics(split)

    @cached_property
    def swap(self) -> Swap | None:
        """The swap: the models from the next iteration on; None where there is none yet."""
        return read_swap(self._run, self.iteration)

    @cached_property
    def served(self) -> dict[str, str]:
        """Name by group the model in play."""
        # The swap before it is missing only where the store lacks files of the run.
        if (
            self.iteration == 0
            or (predecessor := self._records.of(self.iteration - 1)).swap is None
        ):
            return dict(self._records.shown.first_models)
        return predecessor.swap.names

    @cached_property
    def promotion(self) -> Decision | None:
        """The decision of the gate after the training; None where there was none."""
        return None if self.swap is None else self.swap.promotion

    @cached_property
    def jobs(self) -> dict[str, JobShown]:
        """List the jobs by group.

        A group without its turn has a stand-in, so that a reader sees why it was not trained. A
        group that is still to get its job is not there.
        """
        jobs: dict[str, JobShown] = {}
        not_scheduled = [] if self.swap is None else self.swap.not_scheduled
        for group in self._records.shown.first_models:
            job = read_job(self._run, self._run.job(self.iteration, group))
            if job is not None:
                directory = self._run.dataset(self.iteration, group)
                jobs[group] = JobShown(
                    id=job.id,
                    outcome=job.outcome,
                    status=job.status,
                    reason=job.reason,
                    trained_tokens=job.trained_tokens,
                    loss=read_losses(job),
                    billed_tokens=count_billed_tokens(
                        job, count_expected_tokens(self._run.store, directory, job)
                    ),
                )
            # Otherwise it has none yet.
            elif group in not_scheduled:
                jobs[group] = NOT_DUE
        return jobs

    @cached_property
    def spent(self) -> dict[str, Spent]:
        """Spending by stage, see `nip_core.records.spending`."""
        trees = find_tree_splits(self._records.shown.record.parameters)
        billed = {group: job.billed_tokens for group, job in self.jobs.items() if job.is_due}
        return add_up_by_stage(self._run, self.iteration, self.stored_figures, billed, trees)

    @cached_property
    def all_spent(self) -> Spent:
        """All stages together."""
        return add_up(self.spent.values())

    @cached_property
    def datasets(self) -> dict[str, DatasetShown]:
        """By group with a job, the facts in the manifest of its dataset."""
        return {group: self._read_dataset(group) for group in self.jobs}

    def _read_dataset(self, group: str) -> DatasetShown:
        directory = self._run.dataset(self.iteration, group)
        # A job that is not due has none.
        if not is_committed(self._run.store, directory):
            return DatasetShown()
        manifest = read_manifest(self._run.store, directory)
        return validate_document(manifest.extra, DatasetShown, f"{directory}/{MANIFEST}")

    @cached_property
    def stage_s(self) -> dict[str, float]:
        """Seconds by phase, see `nip_core.records.stage_seconds`."""
        path = f"{self._run.iteration(self.iteration)}/times.json"
        times = read_document(self._run, path, StageSeconds)
        # Written when the iteration is over; until then there are those so far.
        return read_seconds_so_far(self._run, self.iteration) if times is None else times.root

    @cached_property
    def manifests(self) -> dict[str, str]:
        """Give by path below the run the digests of all committed splits and datasets."""
        run = self._run
        return {
            path.removeprefix(f"{run.root}/"): read_manifest(
                run.store, path.rpartition("/")[0], path.rpartition("/")[2]
            ).digest
            for path in list_files(run.store, run.iteration(self.iteration))
            if path.endswith(f"/{MANIFEST}")
        }

    @cached_property
    def change(self) -> PairedDifference | None:
        """The `paired_difference` between this iteration's test and the first test of the run.

        None if either test is missing, or if this test is the first one.
        """
        first = None if self.metrics(TEST) is None else self._records.first_test
        # The first test has nothing to be compared with.
        if first is None or first >= self.iteration:
            return None
        from nip_core.evaluation.metrics import paired_difference

        record = self._records.shown.record
        first_episodes, own_episodes = (
            self._records.test_episodes(i) for i in (first, self.iteration)
        )
        split_by = find_split_columns(record.parameters)
        return paired_difference(first_episodes, own_episodes, record.seed, split_by=split_by)

    @property
    def is_over(self) -> bool:
        """Say whether nothing of it changes any more."""
        is_due = self.iteration in self._records.shown.tested
        return self.swap is not None and not (is_due and self.stored_metrics(TEST) is None)

    def to_block(self) -> dict[str, Any]:
        """Give all of it for a block of iterations, but for the breakdowns of its metrics."""
        splits = EVERY_SPLIT
        figures = {split: self.figures(split) for split in splits}
        return {
            "swap": None if self.swap is None else self.swap.to_document(),
            "served": self.served,
            "promotion": None if self.promotion is None else self.promotion.to_document(),
            "jobs": {group: job.to_document() for group, job in self.jobs.items()},
            "datasets": {
                g: value.model_dump(exclude_unset=True) for g, value in self.datasets.items()
            },
            "spent": {stage: asdict(spent) for stage, spent in self.spent.items()},
            "stage_s": self.stage_s,
            "manifests": self.manifests,
            "change": self.change and self.change.as_json(),
            "metrics": {
                s: value and drop_breakdowns(value.as_json()) for s, value in figures.items()
            },
        }

    @classmethod
    def from_block(cls, records: "Records", iteration: int, part: BlockPart) -> Self:
        """Make the record of an iteration from its part of a block."""
        record = cls(records, iteration)
        record.has_breakdowns = False
        record._stored_metrics.update(part.metrics.by_split)
        record._shown_metrics.update(
            {s: metrics for s, metrics in part.metrics.by_split.items() if metrics}
        )
        record._attack_metrics = part.metrics.attack
        # In the place of values that would be read.
        record.__dict__.update({name: getattr(part, name) for name in PARTS})
        return record


class Records:
    """The records of a run's iterations. Call `look_again` before they are shown again."""

    def __init__(self, run: RunStore) -> None:
        """Reads nothing yet."""
        self.run = run
        self._forget()

    def _forget(self) -> None:
        self._rewinds: int | None = None
        self._is_still: bool | None = None  # no rewind was moving files when the reading began
        self._known: dict[int, IterationRecord] = {}
        self._over: set[int] = set()  # of these, those that stay
        self._blocks: dict[int, bool] = {}  # by number, whether the file stands for its iterations
        self._first_test: int | None = None
        self._test_episodes: dict[int, pa.Table] = {}
        self._count = 0
        self.memory: dict[str, Any] = {}
        """Values that callers derive from the run, for as long as no part of it is done again."""
        self.__dict__.pop("shown", None)

    @cached_property
    def shown(self) -> RunShown:
        """The run's settings, as far as they are needed here."""
        return open_shown(self.run)

    @property
    def rewinds(self) -> int:
        """Count how often the run was done again from some place."""
        if self._rewinds is None:
            place = f"{self.run.root}/superseded"
            # By their directories: this is asked before everything that is shown, and must be one
            # request.
            names = self.run.store.list(place)
            self._rewinds = len(names)
            # Asked once only, because no further rewind begins without a change of the count. Also
            # of a directory without a plan, which may be about to get one.
            if self._is_still is None:
                ends = (f"{place}/{name.rstrip('/')}/done.json" for name in names)
                self._is_still = all(self.run.store.exists(end) for end in ends)
        return self._rewinds

    def look_again(self) -> Self:
        """Keep only records that do not change any more, so the rest is read anew."""
        earlier_count, self._rewinds = self._rewinds, None
        # An iteration that was over may have been set aside. The count rises when that begins:
        # nothing is kept that was read while files were moved.
        if earlier_count is not None and (earlier_count != self.rewinds or not self._is_still):
            self._forget()
        self._known = {i: self._known[i] for i in self._over}
        # An attack may have ended since.
        if "shown" in self.__dict__ and self.shown.may_end:
            del self.__dict__["shown"]
        return self

    def of(self, iteration: int) -> IterationRecord:
        """Return the record of an iteration; it may be empty."""
        # A block first, which is one file for many iterations.
        if iteration not in self._known:
            self._read_block(iteration // BLOCK)
        if iteration not in self._known:
            record = self._known[iteration] = IterationRecord(self, iteration)
            # Asked before the rest of it is read: an earlier reading could have changed since.
            if record.is_over:
                self._over.add(iteration)
        return self._known[iteration]

    def whole(self, iteration: int) -> IterationRecord:
        """Return the record of an iteration with the breakdowns of its metrics. Blocks lack
        these.
        """
        if not self.of(iteration).has_breakdowns:
            self._known[iteration] = IterationRecord(self, iteration)
        return self._known[iteration]

    def iterations(self) -> list[int]:
        """List the iterations with anything on record."""
        store, place = self.run.store, f"{self.run.root}/iterations"
        names = (name[:-1] for name in store.list(place) if name.endswith("/"))
        numbers = sorted(int(name) for name in names if name.isdigit())
        # A rewind leaves empty directories on a disk, and an object store has none: either way
        # there is no iteration.
        return [
            i
            for i in numbers
            if i <= self.shown.last and (i in self._over or store.list(self.run.iteration(i)))
        ]

    def all(self) -> list[IterationRecord]:
        """The records of `iterations`."""
        return [self.of(i) for i in self.iterations()]

    def finished(self) -> int:
        """As `RunStore.finished_iterations`, without asking for iterations that are over."""
        return self.run.finished_iterations(self.over())

    def over(self) -> int:
        """Return how many iterations, from the first without a gap, are over."""
        while self._count < self.shown.last and self.of(self._count).is_over:
            self._count += 1
        return self._count

    def swaps(self, count: int) -> list[Swap]:
        """Return the swaps of the first `count` iterations. Raises MissingFileError for a
        missing one.
        """
        self.over()  # takes the records that it finds in blocks
        swaps = []
        for i in range(count):
            swap = (self.of(i).swap if i in self._over else None) or read_swap(self.run, i)
            if swap is None:
                raise MissingFileError(f"{self.run.models(i)}: no such file")
            swaps.append(swap)
        return swaps

    @property
    def first_test(self) -> int | None:
        """The first iteration with a test, None if there is none yet."""
        # Kept, or each later test, which is compared with it, would look through all iterations.
        if self._first_test is None:
            test_iterations = (
                r.iteration for r in self.all() if r.stored_metrics(TEST) is not None
            )
            self._first_test = next(test_iterations, None)
        return self._first_test

    def test_episodes(self, iteration: int) -> "pa.Table":
        """The test episodes of an iteration; the first test's are kept."""
        if iteration in self._test_episodes:
            return self._test_episodes[iteration]
        from nip_core.rollouts.storage.schema import EPISODES
        from nip_core.rollouts.storage.tables import StoredRollouts

        rollouts = StoredRollouts(self.run.store, [self.run.rollouts(iteration, TEST)])
        episodes = rollouts.episodes(EPISODES.names)
        # Every later test is compared with the first; the others are used once.
        if iteration == self._first_test:
            self._test_episodes[iteration] = episodes
        return episodes

    # Blocks

    def write_blocks(self, lease: Lease) -> None:
        """Write the missing blocks of iterations that are all over."""
        for number in range(self.finished() // BLOCK):
            if self._read_block(number):
                continue
            records = [self.of(i) for i in range(number * BLOCK, (number + 1) * BLOCK)]
            # An iteration without its test still changes.
            if all(record.is_over for record in records):
                parts = [record.to_block() for record in records]
                write_block(self.run, number, self.rewinds, parts, lease)
                self._blocks[number] = True

    def _read_block(self, number: int) -> bool:
        """Take the records of a written block; False if there is none to go by."""
        if number not in self._blocks:
            self._blocks[number] = self._take_block(number)
        return self._blocks[number]

    def _take_block(self, number: int) -> bool:
        block = read_block(self.run, number, self.rewinds)
        if block is None:
            return False
        records = [
            IterationRecord.from_block(self, number * BLOCK + k, part)
            for k, part in enumerate(block.iterations)
        ]
        # The settings may ask by now for a test that was not held then: such an iteration is read
        # from its documents.
        self._known |= {r.iteration: r for r in records if r.is_over}
        self._over |= {r.iteration for r in records if r.is_over}
        return all(record.is_over for record in records)
