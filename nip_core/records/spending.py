"""The spending of each stage of an iteration, by its records: tables, journals and jobs.

`nip_core.records.spent_in_all` adds up the whole run. `nip_core.costs` estimates the rest.

Nothing is counted while it happens, so a kill loses no figure and a resumed run counts nothing
twice. The parts that a fork has copied were paid by the run that they came from. Not counted:
answers that a kill threw away before they were on record, calls that failed on their way, and the
few with which models are proved.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import TYPE_CHECKING, Any, NamedTuple

from nip_core.attack_figures.metrics_document import AnyMetrics
from nip_core.jobs.job import JobRecord
from nip_core.parameters import HyperParameters
from nip_core.parameters.derived.prices import price_calls, price_training
from nip_core.rollouts.plan import ATTACK, CANDIDATE, TEST, TRAIN, VALIDATION
from nip_core.rollouts.storage.journal_segments import read_journal
from nip_core.rollouts.storage.shard_manifests import committed_shards
from nip_core.rollouts.storage.table_rows import Record
from nip_core.run_store.facts import DatasetFacts, ShardFacts, SplitFacts
from nip_core.run_store.manifest import Manifest, is_committed, read_manifest
from nip_core.run_store.run import RunStore
from nip_core.run_store.store import MissingFileError, Store

if TYPE_CHECKING:  # splits with metrics are added up without Arrow
    from nip_core.rollouts.storage.table_rows import Generation, Timing

STAGE_BY_SPLIT = {
    TEST: "test",
    ATTACK: "attack",
    TRAIN: "play",
    VALIDATION: "gate, old",
    CANDIDATE: "gate, new",
}
"""By split, in the order of an iteration, the stage that plays it; of the gate either side."""
_SUFFIX = ".journal"


@dataclass(frozen=True)
class Spent:
    """Tokens that were paid for, on any hardware."""

    calls: int = 0  # answers on record
    by_agent: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """Prompt and generated tokens."""
    trained: Mapping[str, int] = field(default_factory=dict)
    """By group; of a job that goes on, the tokens that it is expected to take."""
    cached: Mapping[str, int] = field(default_factory=dict)
    """By agent, those of the prompt tokens that their provider had read before."""

    def __add__(self, addend: "Spent") -> "Spent":
        return add_up((self, addend))

    @property
    def prompt_tokens(self) -> int:
        """Count the tokens read by models."""
        return sum(prompt for prompt, _ in self.by_agent.values())

    @property
    def generated_tokens(self) -> int:
        """Count the tokens written by models."""
        return sum(generated for _, generated in self.by_agent.values())

    @property
    def trained_tokens(self) -> int:
        """Count the tokens of all training, once for each epoch."""
        return sum(self.trained.values())

    @property
    def tokens(self) -> int:
        """All of them."""
        return self.prompt_tokens + self.generated_tokens + self.trained_tokens

    def usd(self, parameters: HyperParameters) -> float | None:
        """US dollars by the prices in the settings; None where one is missing."""
        parts = [price_calls(parameters, self.by_agent, self.cached)] if self.by_agent else []
        parts += [price_training(parameters, group, n) for group, n in self.trained.items()]
        # One price that is missing makes the sum unknown: a part of it would look like all of it.
        prices = [usd for usd in parts if usd is not None]
        return sum(prices) if len(prices) == len(parts) else None


def add_up(parts: Iterable[Spent]) -> Spent:
    """All of them together."""
    calls, agents, groups = 0, dict[str, tuple[int, int]](), Counter[str]()
    cached = Counter[str]()
    for part in parts:
        calls += part.calls
        for agent, (prompt, generated) in part.by_agent.items():
            sums = agents.get(agent, (0, 0))
            agents[agent] = (sums[0] + prompt, sums[1] + generated)
        groups.update(part.trained)
        cached.update(part.cached)
    return Spent(calls, agents, dict(groups), dict(cached))


def count_shared_prompts(
    generations: "Sequence[Generation]", timings: "Sequence[Timing]"
) -> dict[str, int]:
    """By agent, the prompt tokens of rows with an answer by the same call as an earlier row's.

    Several answers to one prompt are asked for by one call, and each row has the whole prompt. The
    rows of a call began, and took as long, to the last digit. Rows and their timings are in step.
    """
    calls, shared = set[tuple[Any, ...]](), dict[str, int]()
    for row, timing in zip(generations, timings, strict=True):
        place = (row.parent_key, row.round, row.agent)
        call = (*place, timing.started_at, timing.latency_s)
        if call in calls and row.prompt_tokens:
            shared[row.agent] = shared.get(row.agent, 0) + row.prompt_tokens
        calls.add(call)
    return shared


def count_cached_tokens(
    generations: "Sequence[Generation]", timings: "Sequence[Timing]"
) -> dict[str, int]:
    """By agent, the prompt tokens that their provider had read before; agents without any are not
    there. Rows and their timings are in step.
    """
    cached = Counter[str]()
    for row, timing in zip(generations, timings, strict=True):
        cached[row.agent] += timing.cached_tokens or 0
    return dict(+cached)


def find_tree_splits(settings: Mapping[str, Any]) -> frozenset[str]:
    """The splits of a run with rows that may share prompts, by its settings on record."""
    return frozenset({ATTACK, TRAIN} if settings.get("trainer") == "pure_text_malt" else {ATTACK})


def add_up_by_stage(
    run: RunStore,
    iteration: int,
    metrics_of: Callable[[str], AnyMetrics | None],
    billed: Mapping[str, int],
    trees: frozenset[str],
) -> dict[str, Spent]:
    """Add up the spending of each stage of an iteration, in their order.

    Stages with nothing on record are not there; a split in play counts as far as it is on record.
    `metrics_of` gives the metrics of a split, `billed` by group the tokens of its job, `trees` are
    `find_tree_splits`.
    """
    tables = PlayedTables(run.store, run.root, f"{iteration:04d}", trees)
    stages = {}
    for split, stage in STAGE_BY_SPLIT.items():
        metrics = metrics_of(split)
        if metrics is not None or split in tables.splits:
            spending = tables.spent(split, metrics)
            # An attack is measured on tests, which were paid where they were played.
            if spending.calls:
                stages[stage] = spending
    for group, tokens in billed.items():
        stages[f"train {group}"] = Spent(trained={group: tokens})
    return stages


def count_expected_tokens(store: Store, directory: str, job: JobRecord) -> int | None:
    """Reckon the tokens of a job from its dataset in `directory`; None: not known."""
    # A number from the back-end needs no reckoning.
    if job.trained_tokens is not None or not is_committed(store, directory):
        return None
    tokens = DatasetFacts.from_manifest(read_manifest(store, directory)).tokens
    epochs = job.settings.get("n_epochs")
    return None if tokens is None or epochs is None else int(tokens) * int(epochs)


class _Counted(NamedTuple):
    """The tokens of a generation that were paid for."""

    agent: str
    prompt_tokens: int
    completion_tokens: int


class PlayedTables:
    """The episodes of an iteration, under the root of a run or of files that it has set aside."""

    def __init__(self, store: Store, root: str, iteration: str, trees: frozenset[str]) -> None:
        self._store, self._trees = store, trees
        self._rollouts = f"{root}/iterations/{iteration}/rollouts"
        self._journals = f"{root}/journals/{iteration}"
        self.splits = {*list_folders(store, self._rollouts), *list_folders(store, self._journals)}

    def player(self, split: str) -> str | None:
        """Name the run behind the split, by its first shard; None: it has none committed."""
        from nip_core.rollouts.storage.tables import StoredRollouts

        # All episodes of a split have one: the first that is found tells.
        for manifest in committed_shards(self._store, f"{self._rollouts}/{split}").values():
            rows = StoredRollouts.of_shard(self._store, manifest).episodes(["run"])
            if rows.num_rows:
                return str(rows["run"][0].as_py())
        return None

    def spent(self, split: str, metrics: AnyMetrics | None) -> Spent:
        """Return a split's spending, by its metrics, or without them by its shards and journals."""
        if metrics is None:
            return self._unmeasured(split)
        if metrics.generations is None:
            return Spent()  # of tests, which are counted where they were played
        by_agent = {
            name: (figures.prompt_tokens or 0, figures.completion_tokens or 0)
            for name, figures in metrics.agents.items()
        }
        spending = Spent(metrics.generations, by_agent, cached=self._read_cached(split))
        # Every shard has a say in it, so they are read only where there may be something to say.
        return self._without_shared(spending, split) if split in self._trees else spending

    def _read_cached(self, split: str) -> Mapping[str, int]:
        try:
            manifest = read_manifest(self._store, f"{self._rollouts}/{split}")
        except MissingFileError:  # metrics without their rollouts
            return {}
        return SplitFacts.from_manifest(manifest).cached_tokens or {}

    def _unmeasured(self, split: str) -> Spent:
        store, journals = self._store, f"{self._journals}/{split}"
        # Journals first: the shard of a journal that goes meanwhile is committed by then.
        open_journals = {
            name.rstrip("/").removesuffix(_SUFFIX): read_journal(store, f"{journals}/{name}")
            for name in store.list(journals)
        }
        shards = committed_shards(store, f"{self._rollouts}/{split}")
        parts = [_of_shard(store, manifest) for manifest in shards.values()]
        # A kill leaves the journal of a shard that is committed, too.
        parts += [
            _of_journal(records, f"{journals}/{shard}")
            for shard, records in open_journals.items()
            if shard not in shards
        ]
        return add_up(parts)

    def _without_shared(self, spending: Spent, split: str) -> Spent:
        shards = committed_shards(self._store, f"{self._rollouts}/{split}").values()
        return reduce(
            _less,
            (ShardFacts.from_manifest(shard).shared_prompts or {} for shard in shards),
            spending,
        )


def _of_shard(store: Store, manifest: Manifest) -> Spent:
    from nip_core.rollouts.storage.table_rows import read_rows
    from nip_core.rollouts.storage.tables import StoredRollouts

    shard = StoredRollouts.of_shard(store, manifest)
    rows = [*read_rows(shard.generations(_Counted._fields), _Counted)]
    facts = ShardFacts.from_manifest(manifest)
    return _less(_of_rows(rows, facts.cached_tokens), facts.shared_prompts or {})


def _of_journal(records: Sequence[Record], name: str) -> Spent:
    from nip_core.rollouts.storage.table_rows import recorded_calls

    call_records = recorded_calls(records, name).values()
    rows = [record.generation for record in call_records]
    timings = [record.timing for record in call_records]
    spending = _of_rows(rows, count_cached_tokens(rows, timings))
    return _less(spending, count_shared_prompts(rows, timings))


def _of_rows(rows: "Sequence[_Counted | Generation]", cached: Mapping[str, int] | None) -> Spent:
    by_agent: dict[str, tuple[int, int]] = {}
    for row in rows:
        prompt, generated = by_agent.get(row.agent, (0, 0))
        prompt, generated = prompt + row.prompt_tokens, generated + row.completion_tokens
        by_agent[row.agent] = (prompt, generated)
    return Spent(len(rows), by_agent, cached=cached or {})


def _less(spending: Spent, shared: Mapping[str, int]) -> Spent:
    return spending + Spent(by_agent={agent: (-tokens, 0) for agent, tokens in shared.items()})


def list_folders(store: Store, directory: str) -> list[str]:
    return [name.rstrip("/") for name in store.list(directory) if name.endswith("/")]
