"""Every verdict of the tests and attacks of a sweep in one table; its figures are their means.

Each row is a verdict. Nothing of a run but its committed rollouts is read, so runs that are not
finished, and those of earlier versions, are there as far as they are.
"""

import io
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from nip_core.attack_figures.figures import choose_episodes
from nip_core.errors import StoreError
from nip_core.evaluation.baseline_verifiers import decide_as_claimed
from nip_core.evaluation.spread import find_questions
from nip_core.protocols import NO_DECISION
from nip_core.records.intervals import find_claims_on_record, find_split_columns
from nip_core.rollouts.plan import ATTACK, TEST
from nip_core.rollouts.storage.tables import StoredRollouts
from nip_core.run_store.manifest import is_committed
from nip_core.run_store.run import RunStore
from nip_core.run_store.store import Store
from nip_study.plan.swept_runs import Sweep, SweptRun

ClaimsAndProvers = tuple[Mapping[str, int], Collection[str]]

AXIS = "axis_"
"""Before the name of an axis, so that no axis has the name of another column."""
_OF_EPISODES = [
    *("key", "branch_path", "question_id", "problem", "sample"),
    *("y", "decision", "outcome", "columns"),
]
_OF_GENERATIONS = [
    *("key", "episode", "branch_path", "agent", "round"),
    *("exchange", "attempt", "text", "invalid_reason"),
]
_ORDER = ("run", "attack", "iteration", "n", "question", "problem", "sample")


def read_verdicts(store: Store, sweep: Sweep) -> tuple[pa.Table, dict[str, str]]:
    """Read all verdicts of a sweep, sorted, and say by run why those of it could not be read.

    The columns are ``run``; ``axis_…``, the value of each axis; ``attack``, its name in the sweep,
    null for the run's own tests; ``iteration``, of an attack by training its step; ``n``, of an
    attack by best-of-n the number of messages, else null; ``question``, equal where problems count
    as variants of one another; ``problem`` and ``sample`` (how often the problem came before in
    this test); ``y``; ``decision``, 0 reject, 1 accept, 2 none (failed episodes, too), 3 neither;
    and ``believed``, in a run's own tests the decision of believing the prover, null where none
    spoke. A verdict is right where ``decision`` is ``y``.
    """
    left_out = dict[str, str]()
    parts = [_schema(sweep).empty_table()]
    for run in sweep.runs:
        split_by = find_split_columns(settings := run.parameters.to_dict())
        claims = find_claims_on_record(settings)
        names = [(run.name, None), *((attack.name, attack.label) for attack in run.attacks)]
        for name, label in names:
            try:
                parts += [
                    _cells(sweep, run, label, test, split_by)
                    for test in _tests(RunStore(store, name), None if label else claims)
                ]
            except StoreError as error:
                left_out[name] = str(error)
    table = pa.concat_tables(parts)
    # Null values, as a run's own tests are no attack, come first.
    first = {"attack": pc.fill_null(table["attack"], ""), "n": pc.fill_null(table["n"], 0)}
    keys = pa.table({name: first.get(name, table[name]) for name in _ORDER})
    order = pc.sort_indices(keys, sort_keys=[(name, "ascending") for name in _ORDER])
    return table.take(order).combine_chunks(), left_out


def encode_parquet(table: pa.Table) -> bytes:
    """Encode the table as a Parquet file: texts as dictionaries, zstd."""
    buffer = io.BytesIO()
    pq.write_table(table, buffer, compression="zstd", compression_level=9)
    return buffer.getvalue()


def _schema(sweep: Sweep) -> pa.Schema:
    fields = [pa.field("run", pa.string(), nullable=False)]
    fields += [pa.field(f"{AXIS}{axis}", pa.string(), nullable=False) for axis in sweep.axes]
    fields += [pa.field("attack", pa.string())]
    fields += [pa.field("iteration", pa.int32(), nullable=False), pa.field("n", pa.int32())]
    fields += [pa.field(name, pa.string(), nullable=False) for name in ("question", "problem")]
    fields += [pa.field("sample", pa.int32(), nullable=False)]
    fields += [pa.field(name, pa.int8(), nullable=False) for name in ("y", "decision")]
    fields.append(pa.field("believed", pa.int8()))
    return pa.schema(fields)


@dataclass(frozen=True)
class _Test:
    """A committed test, an attack by best-of-n once per n."""

    iteration: int
    n: int | None
    episodes: pa.Table
    believed: Mapping[str, int] | None = None
    """By the keys of episodes, see `decide_as_claimed`; None where no prover can be believed."""


def _tests(run: RunStore, claims: ClaimsAndProvers | None) -> Iterator[_Test]:
    names = run.store.list(f"{run.root}/iterations")
    iterations = sorted(int(name[:-1]) for name in names if name[:-1].isdecimal())
    places = [
        (iteration, split, place)
        for iteration in iterations
        for split in (TEST, ATTACK)
        if is_committed(run.store, place := run.rollouts(iteration, split))
    ]
    # Where an attack by training has tests of its own on test problems, its course is on others.
    is_apart = any(split == ATTACK for _, split, _ in places)
    for iteration, split, place in places:
        if split == TEST and is_apart:
            continue
        rollouts = StoredRollouts(run.store, [place])
        episodes = rollouts.episodes(_OF_EPISODES)
        if not rollouts.has_choices:
            believed = None
            if claims is not None and claims[0] and claims[1]:
                spoken = rollouts.generations(_OF_GENERATIONS)
                believed = decide_as_claimed(episodes, spoken, *claims)
            yield _Test(iteration, None, episodes, believed)
            continue
        choices = rollouts.choices()
        for n in sorted(set(choices["n"].to_pylist())):
            yield _Test(iteration, n, choose_episodes(episodes, choices, n))


def _cells(
    sweep: Sweep, run: SweptRun, attack: str | None, test: _Test, split_by: Sequence[str]
) -> pa.Table:
    episodes, believed = test.episodes, test.believed or {}
    failed = pc.equal(episodes["outcome"], "failed")
    columns = {
        "run": run.name,
        **{f"{AXIS}{axis}": value for axis, value in run.values.items()},
        "attack": attack,
        "iteration": test.iteration,
        "n": test.n,
        "question": pa.chunked_array([_name_questions(episodes, split_by)]),
        **{name: episodes[name] for name in ("problem", "sample", "y")},
        "decision": pc.if_else(failed, pa.scalar(NO_DECISION, pa.int8()), episodes["decision"]),
        "believed": pa.chunked_array(
            [pa.array([believed.get(key) for key in episodes["key"].to_pylist()], pa.int8())]
        ),
    }
    schema = _schema(sweep)
    arrays = [
        column
        if isinstance(column := columns[field.name], pa.ChunkedArray)
        else pa.repeat(pa.scalar(column, field.type), episodes.num_rows)
        for field in schema
    ]
    return pa.table(arrays, schema=schema)


def _name_questions(episodes: pa.Table, split_by: Sequence[str]) -> pa.Array:
    """Name the question of each episode: its id, or a digest of the texts it shares with others."""
    ids = episodes["question_id"].to_pylist()
    if split_by:
        shared = find_questions(episodes, split_by)
        texts = [shared[problem] for problem in episodes["problem"].to_pylist()]
        # A passage is long, and need not be read here.
        ids = [
            id_
            if text == f"id {id_}"
            else f"{split_by[0]}-{sha256(text.encode()).hexdigest()[:12]}"
            for id_, text in zip(ids, texts, strict=True)
        ]
    return pa.array(ids, pa.string())
