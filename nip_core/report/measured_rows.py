"""The rows of a split that its figures are made of, each read when a figure needs it.

A million episodes with their messages are gigabytes, and no figure needs all of them at once.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property
from itertools import accumulate
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from nip_core.evaluation.baseline_verifiers import believe_the_prover, decide_as_claimed
from nip_core.evaluation.metrics import mark_calls
from nip_core.evaluation.split_metrics import BelievedMetrics
from nip_core.protocols import NO_DECISION
from nip_core.rollouts.acceptance import GENERATIONS_OF_ACCEPTANCE
from nip_core.rollouts.storage.schema import EPISODES, GENERATIONS
from nip_core.rollouts.storage.tables import StoredRollouts
from nip_core.rollouts.trees import Leaf

_UNREAD = {"question", "solution", "drawn", "seed", "round_rewards"}
_OF_EPISODES = [name for name in EPISODES.names if name not in _UNREAD]
_REPEATED = ("agent", "invalid_reason", "finish_reason", "model_asked")
_TEXTS = ("text", "tool_result")
_COUNTED = ("episode", *_REPEATED, "attempt", *_TEXTS, "prompt_tokens", "completion_tokens")
_ORDER = ("round", "exchange", "attempt")
_CLAIMING = ("episode", "branch_path", "agent", *_ORDER, "text", "invalid_reason")
_WORDS = ("reject", "accept", "")  # by decision
_AT_ONCE = 50  # shards, whose rows are joined: many small arrays take more memory


class MeasuredRows:
    """The rows of some rollouts. Episodes are kept, without their texts; calls are read anew.

    An episode's key is its number here: the keys of its calls would take most of the memory.
    """

    def __init__(
        self, rollouts: StoredRollouts, claims: Mapping[str, int], provers: Collection[str]
    ) -> None:
        """Read the episodes. `claims` and `provers` are those of `believe_the_prover`."""
        self._parts, self._claims, self._provers = rollouts.parts(), claims, provers
        tables = [part.episodes(_OF_EPISODES) for part in self._parts]
        self._keys = [table["key"].combine_chunks() for table in tables]
        empty = EPISODES.empty_table().select(_OF_EPISODES)
        episodes = pa.concat_tables([empty, *tables]).combine_chunks()
        numbers = pa.array(range(episodes.num_rows), pa.int32())
        self.episodes = episodes.set_column(0, "key", numbers)

    def read_generations(self) -> pa.Table:
        """Read all calls, for `evaluate`, `any_of` and `invalid_answers`."""
        return self._read(_COUNTED, _drop_valid_texts)

    def read_verdicts(self) -> pa.Table:
        """Read the verdicts, for `measure_acceptance`."""
        return self._read(
            GENERATIONS_OF_ACCEPTANCE,
            lambda rows: rows.filter(pc.less(rows["decision"], NO_DECISION)),
        )

    def believe(self, **settings: Any) -> BelievedMetrics:
        """Measure the episodes by `believe_the_prover`, with its other settings."""
        # One message for each episode in which a prover spoke, with the verdict of all its claims.
        heard = self.episodes.filter(pc.is_valid(self._claimed))
        count = heard.num_rows
        messages = {
            "episode": heard["key"],
            "branch_path": heard["branch_path"],
            "agent": pa.repeat("prover", count),
            **dict.fromkeys(_ORDER, pa.repeat(0, count)),
            "text": pa.array(_WORDS).take(self._claimed.drop_null()),
            "invalid_reason": pa.nulls(count, pa.string()),
        }
        claims = {word: decision for decision, word in enumerate(_WORDS) if word}
        return believe_the_prover(self.episodes, pa.table(messages), claims, **settings)

    @cached_property
    def _claimed(self) -> pa.Array:
        """The provers' claim by episode, as a decision; null where none of them spoke."""
        decisions: list[int | None] = []
        for part in self._parts:
            episodes, calls = part.episodes([*Leaf._fields, "outcome"]), part.generations(_CLAIMING)
            decided = decide_as_claimed(episodes, calls, self._claims, self._provers)
            decisions += [decided.get(key) for key in episodes["key"].to_pylist()]
        return pa.array(decisions, pa.int8())

    def _read(self, columns: Sequence[str], keep: Callable[[pa.Table], pa.Table]) -> pa.Table:
        """Read generations shard by shard, and keep some of each."""

        def take(rows: pa.Table, keys: pa.Array, first: int) -> pa.Table:
            rows = keep(rows)
            places = pc.index_in(rows["episode"], value_set=keys)
            numbers = pc.add(places, pa.scalar(first, pa.int32()))
            return rows.set_column(columns.index("episode"), "episode", numbers)

        joined = [take(GENERATIONS.empty_table().select(columns), pa.array([], pa.string()), 0)]
        firsts = [0, *accumulate(map(len, self._keys))]
        parts = [*zip(self._parts, self._keys, firsts, strict=False)]
        for start in range(0, len(parts), _AT_ONCE):
            some = parts[start : start + _AT_ONCE]
            tables = [take(part.generations(columns), *place) for part, *place in some]
            joined.append(pa.concat_tables(tables).combine_chunks())
        return pa.concat_tables(joined)


def _drop_valid_texts(rows: pa.Table) -> pa.Table:
    """Drop the texts of valid answers and of results, and encode columns with few values."""
    is_valid = pc.is_null(rows["invalid_reason"])
    numbers = pa.array(range(rows.num_rows), pa.int64())
    # Taken, as a choice between a text and none would keep all texts in memory.
    texts = rows["text"].take(pc.if_else(is_valid, pa.scalar(None, pa.int64()), numbers))
    rows = rows.set_column(_COUNTED.index("text"), "text", texts)
    calls = mark_calls(rows["tool_result"])
    rows = rows.set_column(_COUNTED.index("tool_result"), "tool_result", calls)
    for name in _REPEATED:
        rows = rows.set_column(_COUNTED.index(name), name, rows[name].dictionary_encode())
    return rows
