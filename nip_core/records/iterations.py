"""What is on record of each iteration of a run, read once where it does not change any more.

RunShown          the part of a run's settings that showing it needs; open_shown reads it
IterationRecord   one iteration: what the summary, the report, the artifacts and the state say of it
Records           those of a run

An iteration is over when its swap is on record and so is its test, where the settings ask for one.
From then on its files stay as they are, unless the run is done again from an earlier place
(`nip_core.records.rewinds`). So `Records` keeps what it has read of such an iteration, and reads no
more than one or two of them anew, however many there are.

Whoever opens a long run need not read them all either: each `BLOCK` iterations that are over are
written once more, together, as ``shown/0000.json``. Such a file is derived: without it, or where
it is damaged, of another version, or of before the run was done again, the documents themselves
are read. It follows them, so a kill between the two costs nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import pyarrow as pa

from nip_core.errors import CorruptionError, StoreError
from nip_core.evaluation.attack_metrics import AttackMetrics
from nip_core.evaluation.embedding import thin_out
from nip_core.evaluation.metrics import paired_difference
from nip_core.evaluation.split_metrics import PairedDifference, SplitMetrics
from nip_core.jobs.document import billed_tokens
from nip_core.jobs.steps import by_step
from nip_core.parameters.providers import dummy_name
from nip_core.parameters.stored import with_defaults
from nip_core.parameters.tested_iterations import scheme_tests
from nip_core.records.intervals import shown_metrics, split_by_of
from nip_core.records.models import NOT_SCHEDULED
from nip_core.records.shapes import SECONDS, SWAP, checked, damaged
from nip_core.records.spending import Spent, add_up, expected_tokens, stages_of, tree_splits
from nip_core.records.stage_seconds import seconds_so_far
from nip_core.rollouts.plan import ATTACK, CANDIDATE, TEST, TRAIN, VALIDATION
from nip_core.rollouts.schema import EPISODES
from nip_core.rollouts.tables import StoredRollouts
from nip_core.run_store.documents import encode
from nip_core.run_store.lease import Lease
from nip_core.run_store.manifest import MANIFEST, is_committed, read_manifest
from nip_core.run_store.run import RunRecord, RunStore, read_document
from nip_core.run_store.store import list_files
from nip_lm_server.client import base_served_name

BLOCK = 25
"""Iterations in one file of ``shown/``."""
BLOCKS = "shown"
_FORMAT_VERSION = 2
_NOT_DUE = {
    "id": None,
    "outcome": None,
    "status": NOT_SCHEDULED,
    "reason": "no agent of the group trains in this iteration (update_schedule)",
    "trained_tokens": None,
    "billed_tokens": 0,
    "loss": (),
}
_OF_A_JOB = ("id", "outcome", "status", "reason", "trained_tokens")
_OF_A_DATASET = ("episodes", "examples", "method", "counts", "tokens", "training_usd")
_PARTS = (
    *("swap", "served", "promotion", "jobs", "datasets", "spent", "stage_s", "manifests"),
    "change",
)
_BREAKDOWNS = ("by_difficulty", "by_mutation")  # shown of the first test and the last alone
_MOST_LOSSES = 100  # of a job, which is more than the curve of the report has room for


@dataclass(frozen=True)
class RunShown:
    """The part of a run's record and settings that showing it needs."""

    record: RunRecord
    last: int
    """The number of iterations, and of the last, which has nothing but a test."""
    tested: frozenset[int]
    """Those with a test, by the settings."""
    attacks: bool
    """Whether it attacks another run, which is measured with the last."""
    first_models: Mapping[str, str]
    """By group, in agent order: what plays iteration 0."""


def open_shown(run: RunStore) -> RunShown:
    """The run's record and settings. Raises CorruptionError where they make no sense."""
    try:
        record = run.open()
        settings = with_defaults(record.parameters)
        first_models: dict[str, str] = {}
        for name, agent in settings["agents"].items():
            if not agent.get("is_random"):
                name_of = dummy_name if agent["use_dummy_api"] else base_served_name
                group = agent["shared_model_group"] or name
                first_models.setdefault(group, name_of(agent["model_name"]))
        taken_over = (record.contents.get("origin") or [{}])[0]
        first_models |= {group: str(model["model"]) for group, model in taken_over.items()}
        last, text_rl = int(settings["rl"]["num_iterations"]), settings["text_rl"]
        scheme, interval = str(text_rl["test_scheme"]), int(text_rl["test_interval"])
        tested = (i for i in range(last + 1) if scheme_tests(scheme, last, i, interval))
        attacks = settings["attack"]["run"] is not None
        return RunShown(record, last, frozenset(tested), attacks, first_models)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise damaged(f"{run.root}/run.json", error) from error


def document(run: RunStore, path: str, *needed: str) -> dict[str, Any] | None:
    """A JSON object, or None if there is none. Raises CorruptionError if a key is missing."""
    value = run.read_json_or_none(path)
    if value is None and not run.store.exists(path):
        return None
    if not isinstance(value, dict):
        raise CorruptionError(f"{path}: damaged, an object was expected")
    missing = [key for key in needed if key not in value]
    if missing:
        raise CorruptionError(f"{path}: damaged, {', '.join(missing)} is missing")
    return value


class IterationRecord:
    """One iteration. Each part is read when it is first asked for; damage raises CorruptionError.

    All parts can be encoded as JSON.
    """

    def __init__(self, records: "Records", iteration: int) -> None:
        """Reads nothing yet."""
        self._records, self._run, self.iteration = records, records.run, iteration
        self._stored_metrics: dict[str, SplitMetrics | None] = {}
        self._shown_metrics: dict[str, SplitMetrics] = {}
        self._attack_metrics: AttackMetrics | None = None
        self.has_breakdowns = True
        """Whether its metrics are whole, see `Records.whole`."""
        self.derived: dict[str, Any] = {}
        """What others make of it, for as long as it is the same."""

    def metrics(self, split: str) -> SplitMetrics | None:
        """The metrics of a split, None where there are none: of what is played for the gate as they
        are stored, of others with the intervals that are shown."""
        metrics = self.stored_metrics(split)
        if metrics is not None and split in (TEST, TRAIN) and split not in self._shown_metrics:
            settings = self._records.shown.record.parameters
            shown = shown_metrics(self._run, self.iteration, split, metrics, settings)
            self._shown_metrics[split] = shown
        return self._shown_metrics.get(split, metrics)

    def stored_metrics(self, split: str) -> SplitMetrics | None:
        """The metrics of a split as they are on record; of an earlier block, as they are shown."""
        if split not in self._stored_metrics:
            path = self._run.metrics(self.iteration, split)
            self._stored_metrics[split] = read_document(self._run, path, SplitMetrics)
        return self._stored_metrics[split]

    @property
    def attack(self) -> AttackMetrics | None:
        """Read what is measured of an attack with this iteration; None where nothing is."""
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
    def swap(self) -> dict[str, Any] | None:
        """The document of the swap, None where there is none yet."""
        path = self._run.models(self.iteration)
        swap = document(self._run, path, "groups")
        return swap and checked(swap, SWAP, path)

    @cached_property
    def served(self) -> dict[str, str]:
        """By group, the name of the model that plays the iteration."""
        if self.iteration == 0 or (before := self._records.of(self.iteration - 1)).swap is None:
            return dict(self._records.shown.first_models)
        return {group: str(model["model"]) for group, model in before.swap["groups"].items()}

    @cached_property
    def promotion(self) -> dict[str, Any] | None:
        """The decision of the gate after the training; None where there was none."""
        promotion = (self.swap or {}).get("promotion")
        return None if promotion is None else dict(promotion)

    @cached_property
    def jobs(self) -> dict[str, dict[str, Any]]:
        """Jobs by group, their losses as (step, loss). One that was not due has a stand-in."""
        jobs: dict[str, dict[str, Any]] = {}
        for group in self._records.shown.first_models:
            path = self._run.job(self.iteration, group)
            job = document(self._run, path, "id", "outcome", "status", "reason")
            if job is not None:
                jobs[group] = {name: job.get(name) for name in _OF_A_JOB} | {"loss": _losses(job)}
                jobs[group]["billed_tokens"] = billed_tokens(job, self._expected_tokens(group, job))
            elif group in (self.swap or {}).get("not_scheduled", ()):
                jobs[group] = dict(_NOT_DUE)
        return jobs

    def _expected_tokens(self, group: str, job: Mapping[str, Any]) -> int | None:
        """The tokens that training takes by what its dataset says, None where that is not known."""
        directory = self._run.dataset(self.iteration, group)
        return expected_tokens(self._run.store, directory, job)

    @cached_property
    def spent(self) -> dict[str, dict[str, Any]]:
        """By stage, the `facts` of what it has spent, see `nip_core.records.spending`."""
        trees = tree_splits(self._records.shown.record.parameters)
        stages = stages_of(self._run, self.iteration, self.stored_figures, self.jobs, trees)
        return {stage: spent.facts() for stage, spent in stages.items()}

    @cached_property
    def stages_spent(self) -> dict[str, Spent]:
        """`spent`, to be reckoned with."""
        return {stage: Spent.of(facts) for stage, facts in self.spent.items()}

    @cached_property
    def all_spent(self) -> Spent:
        """All stages together."""
        return add_up(self.stages_spent.values())

    @cached_property
    def datasets(self) -> dict[str, dict[str, Any]]:
        """By group with a job, what the manifest of its dataset says, {} where there is none."""
        facts = {}
        for group in self.jobs:
            directory, extra = self._run.dataset(self.iteration, group), dict[str, Any]()
            if is_committed(self._run.store, directory):
                extra = dict(read_manifest(self._run.store, directory).extra)
            facts[group] = {name: extra[name] for name in _OF_A_DATASET if name in extra}
        return facts

    @cached_property
    def stage_s(self) -> dict[str, float]:
        """Seconds by stage."""
        path = f"{self._run.iteration(self.iteration)}/times.json"
        times = self._run.read_json_or_none(path)
        if times is None:
            return seconds_so_far(self._run, self.iteration)
        return dict(checked(times, SECONDS, path))

    @cached_property
    def manifests(self) -> dict[str, str]:
        """By path below the run, the digests of the splits and datasets that are committed."""
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
        """The `paired_difference` of its test and the first one; None where there are not both."""
        first = None if self.metrics(TEST) is None else self._records.first_test
        if first is None or first >= self.iteration:
            return None
        record = self._records.shown.record
        before, after = (self._records.test_episodes(i) for i in (first, self.iteration))
        split_by = split_by_of(record.parameters)
        return paired_difference(before, after, record.seed, split_by=split_by)

    @property
    def is_over(self) -> bool:
        """Say whether nothing of it changes any more."""
        is_due = self.iteration in self._records.shown.tested
        return self.swap is not None and not (is_due and self.stored_metrics(TEST) is None)

    def parts(self) -> dict[str, Any]:
        """All of it, for a block, but for the breakdowns of its metrics."""
        splits = (TEST, TRAIN, VALIDATION, CANDIDATE, ATTACK)
        figures = {split: self.figures(split) for split in splits}
        metrics = {s: of and _without_breakdowns(of.as_json()) for s, of in figures.items()}
        parts = {name: getattr(self, name) for name in _PARTS}
        change = self.change and self.change.as_json()
        return {**parts, "change": change, "metrics": metrics}

    @classmethod
    def of_parts(cls, records: "Records", iteration: int, parts: Mapping[str, Any]) -> Self:
        """The record of which `parts` were written."""
        record = cls(records, iteration)
        record.has_breakdowns = False
        for split, metrics in parts["metrics"].items():
            if split == ATTACK:
                record._attack_metrics = metrics and AttackMetrics.model_validate(metrics)
                continue
            known = metrics and SplitMetrics.model_validate(metrics)
            record._stored_metrics[split] = known
            if known is not None:
                record._shown_metrics[split] = known
        for name in _PARTS:
            record.__dict__[name] = parts[name]  # in the place of what would be read
        if (change := parts["change"]) is not None:
            record.__dict__["change"] = PairedDifference.model_validate(change)
        return record


class Records:
    """What is on record of the iterations of a run. `look_again` before whatever is shown next."""

    def __init__(self, run: RunStore) -> None:
        """Reads nothing yet."""
        self.run = run
        self._forget()

    def _forget(self) -> None:
        self._rewinds: int | None = None
        self._known: dict[int, IterationRecord] = {}
        self._over: set[int] = set()  # of these, those that stay
        self._blocks: dict[int, bool] = {}  # by number, whether the file stands for what it says
        self._first_test: int | None = None
        self._test_episodes: dict[int, pa.Table] = {}
        self._count = 0
        self.memory: dict[str, Any] = {}
        """What others derive from the run, for as long as it is not done again from some place."""
        self.__dict__.pop("shown", None)

    @cached_property
    def shown(self) -> RunShown:
        """The run's settings, as far as they are needed here."""
        return open_shown(self.run)

    @property
    def rewinds(self) -> int:
        """The number of times that the run was done again from some place."""
        if self._rewinds is None:
            self._rewinds = len(self.run.store.list(f"{self.run.root}/superseded"))
        return self._rewinds

    def look_again(self) -> Self:
        """Keep only what does not change any more, so that the rest is read anew."""
        before, self._rewinds = self._rewinds, None
        if before is not None and before != self.rewinds:
            self._forget()
        self._known = {i: self._known[i] for i in self._over}
        return self

    def of(self, iteration: int) -> IterationRecord:
        """The record of an iteration, on which there may be nothing."""
        if iteration not in self._known:
            self._read_block(iteration // BLOCK)
        if iteration not in self._known:
            record = self._known[iteration] = IterationRecord(self, iteration)
            # Asked before the rest of it is read: what was read earlier could have changed since.
            if record.is_over:
                self._over.add(iteration)
        return self._known[iteration]

    def whole(self, iteration: int) -> IterationRecord:
        """The record of an iteration with the breakdowns of its metrics, which blocks lack."""
        if not self.of(iteration).has_breakdowns:
            self._known[iteration] = IterationRecord(self, iteration)
        return self._known[iteration]

    def iterations(self) -> list[int]:
        """Iterations of which anything is on record."""
        store, place = self.run.store, f"{self.run.root}/iterations"
        names = (name[:-1] for name in store.list(place) if name.endswith("/"))
        numbers = sorted(int(name) for name in names if name.isdigit())
        return [
            i
            for i in numbers
            if i <= self.shown.last and (i in self._over or store.list(self.run.iteration(i)))
        ]

    def all(self) -> list[IterationRecord]:
        """The records of `iterations`."""
        return [self.of(i) for i in self.iterations()]

    def finished(self) -> int:
        """As `RunStore.finished_iterations`, without asking for what is known."""
        return self.run.finished_iterations(self.over())

    def over(self) -> int:
        """Return how many iterations, from the first without a gap, are over."""
        while self._count < self.shown.last and self.of(self._count).is_over:
            self._count += 1
        return self._count

    def swaps(self, count: int) -> list[dict[str, Any]]:
        """The documents of the swaps of the first `count` iterations, which must be there."""
        self.over()  # takes what it finds in blocks
        swaps = (self.of(i).swap if i in self._over else None for i in range(count))
        return [
            swap or dict(self.run.read_json(self.run.models(i))) for i, swap in enumerate(swaps)
        ]

    @property
    def first_test(self) -> int | None:
        """The first iteration with a test, None if there is none yet."""
        if self._first_test is None:
            tested = (r.iteration for r in self.all() if r.stored_metrics(TEST) is not None)
            self._first_test = next(tested, None)
        return self._first_test

    def test_episodes(self, iteration: int) -> pa.Table:
        """The test episodes of an iteration; those of the first test are kept."""
        if iteration in self._test_episodes:
            return self._test_episodes[iteration]
        stored = StoredRollouts(self.run.store, [self.run.rollouts(iteration, TEST)])
        episodes = stored.episodes(EPISODES.names)
        if iteration == self._first_test:
            self._test_episodes[iteration] = episodes
        return episodes

    # Blocks

    def write_blocks(self, lease: Lease) -> None:
        """Write those whose iterations are all over and that are not there."""
        for number in range(self.finished() // BLOCK):
            if self._read_block(number):
                continue
            records = [self.of(i) for i in range(number * BLOCK, (number + 1) * BLOCK)]
            if all(record.is_over for record in records):
                block = {
                    "format_version": _FORMAT_VERSION,
                    "rewinds": self.rewinds,
                    "iterations": [record.parts() for record in records],
                }
                # Not once for all: one of before the run was done again is replaced.
                self.run.store.put(self._block(number), encode(block), fence=lease.fence)
                self._blocks[number] = True

    def _read_block(self, number: int) -> bool:
        """Take the records of a block that was written; False if there is none that counts."""
        if number not in self._blocks:
            self._blocks[number] = self._take_block(number)
        return self._blocks[number]

    def _take_block(self, number: int) -> bool:
        try:
            block = self.run.read_json(self._block(number))
            if block["format_version"] != _FORMAT_VERSION or block["rewinds"] != self.rewinds:
                return False
            records = [
                IterationRecord.of_parts(self, number * BLOCK + k, parts)
                for k, parts in enumerate(block["iterations"])
            ]
        except (StoreError, KeyError, TypeError, AttributeError, ValueError):
            return False  # the documents themselves are read
        self._known |= {r.iteration: r for r in records if r.is_over}
        self._over |= {r.iteration for r in records if r.is_over}
        return all(record.is_over for record in records)

    def _block(self, number: int) -> str:
        return f"{self.run.root}/{BLOCKS}/{number:04d}.json"


def _without_breakdowns(metrics: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: _without_breakdowns(value) if isinstance(value, Mapping) else value
        for name, value in metrics.items()
        if name not in _BREAKDOWNS
    }


def _losses(job: Mapping[str, Any]) -> list[tuple[int, float]]:
    """(step, training loss) from the back-end's metrics events; of many, some with the last."""
    told = by_step(job.get("backend_events") or ())
    losses = ((step, event["data"].get("train_loss")) for step, event in told.items())
    points = [(step, float(loss)) for step, loss in losses if loss is not None]
    return thin_out(points, _MOST_LOSSES)
