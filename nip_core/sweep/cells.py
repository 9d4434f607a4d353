"""Every verdict of the tests and attacks of a sweep in one table; its figures are their means.

read_verdicts   the table, from what is in the store, and what could not be read
encode_parquet  the same as a file: the same verdicts give the same bytes (of one pyarrow)

Each row is a verdict. Nothing of a run but its committed rollouts is read, so runs that are not
finished, and those of earlier versions, are there as far as they are.
"""

import io
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from nip_core.errors import StoreError
from nip_core.evaluation.attack_figures import choose_episodes
from nip_core.protocols import NO_DECISION
from nip_core.rollouts.plan import ATTACK, TEST
from nip_core.rollouts.tables import StoredRollouts
from nip_core.run_store.manifest import is_committed
from nip_core.run_store.run import RunStore, list_runs
from nip_core.run_store.store import Store
from nip_core.sweep.swept_runs import Sweep, SweptRun

AXIS = "axis_"
"""Before the name of an axis, so that no axis has the name of another column."""
_OF_EPISODES = [
    "key",
    "branch_path",
    "question_id",
    "problem",
    "sample",
    "y",
    "decision",
    "outcome",
]
_ORDER = ("run", "attack", "iteration", "n", "question", "problem", "sample")


def read_verdicts(store: Store, sweep: Sweep) -> tuple[pa.Table, list[str]]:
    """Read all verdicts of a sweep, sorted, and say in a sentence each what could not be read.

    The columns are ``run``; ``axis_…``, the value of each axis; ``attack``, its name in the sweep,
    null for the run's own tests; ``iteration``, of an attack by training its step; ``n``, of an
    attack by best-of-n the number of messages, else null; ``question``, ``problem`` and ``sample``
    (how often the problem came before in this test); ``y``; and ``decision``, 0 reject, 1 accept, 2
    none (failed episodes, too), 3 neither. A verdict is right where the last two are equal.
    """
    stored, left_out = {*list_runs(store)}, list[str]()
    parts = [_schema(sweep).empty_table()]
    for run in sweep.runs:
        played = [(run.name, None), *((attack.name, attack.label) for attack in run.attacks)]
        for name, label in played:
            if name not in stored:
                continue
            try:
                parts += [
                    _cells(sweep, run, label, iteration, n, episodes)
                    for iteration, n, episodes in _tests(RunStore(store, name))
                ]
            except StoreError as error:
                left_out.append(str(error))
    table = pa.concat_tables(parts)
    # What is null, as a run's own tests are no attack, comes first.
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
    return pa.schema(fields)


def _tests(run: RunStore) -> Iterator[tuple[int, int | None, pa.Table]]:
    """Yield iteration, n and episodes of each committed test, an attack by best-of-n once per n."""
    names = run.store.list(f"{run.root}/iterations")
    for iteration in sorted(int(name[:-1]) for name in names if name[:-1].isdecimal()):
        for split in (TEST, ATTACK):
            if not is_committed(run.store, place := run.rollouts(iteration, split)):
                continue
            stored = StoredRollouts(run.store, [place])
            episodes = stored.episodes(_OF_EPISODES)
            if split == TEST:
                yield iteration, None, episodes
                continue
            choices = stored.choices()
            for n in sorted(set(choices["n"].to_pylist())):
                yield iteration, n, choose_episodes(episodes, choices, n)


def _cells(
    sweep: Sweep, run: SweptRun, attack: str | None, iteration: int, n: int | None, of: pa.Table
) -> pa.Table:
    failed = pc.equal(of["outcome"], "failed")
    columns = {
        "run": run.name,
        **{f"{AXIS}{axis}": value for axis, value in run.values.items()},
        "attack": attack,
        "iteration": iteration,
        "n": n,
        "question": of["question_id"],
        **{name: of[name] for name in ("problem", "sample", "y")},
        "decision": pc.if_else(failed, pa.scalar(NO_DECISION, pa.int8()), of["decision"]),
    }
    schema = _schema(sweep)
    arrays = [
        column
        if isinstance(column := columns[field.name], pa.ChunkedArray)
        else pa.repeat(pa.scalar(column, field.type), of.num_rows)
        for field in schema
    ]
    return pa.table(arrays, schema=schema)
