"""The Arrow schemas of the tables that a played shard leaves behind.

episodes     one row per episode: its problem, its end, and the reward of each agent
generations  one row per model call, invalid answers included: they were paid for too
timings      the times of calls, which may differ between two runs of the same game; in no digest
choices      of an attack: by problem and number of messages, the episode that counts; follows from
             the first two

Chat histories and parsed messages are not stored. `nip_core.game.render` derives them from
these rows, for prompting and for dataset building alike. Keys are strings of 16 URL-safe
characters, see `nip_core.hashing.derive_key`.

Where responses branch (see `nip_core.rollouts.trees`), an episode is a leaf of a tree, and its
`branch_path` says the way to it: per round a dot and the number of the child, "0.1.0". All leaves
of a tree agree in run, split, iteration, problem and sample. A generation has the path of the node
that it led to, with a number for each round until then. It stands once: its `episode` is the first
leaf below, in the order of the numbers; the others reach it by the beginning of their path.
`parent_key` is the last valid generation of the node before. Without branching paths are "".

Version 2 added `decision_value` and `token_logprobs`, version 3 `columns`, version 4 `opponent` and
`opponent_iteration`, version 5 `reasoning` and `reasoning_tokens`, version 6 `drawn`, version 7
`p_accept`, version 8 `opponent_run`, version 9 `exchange` and `round_rewards`. Files of other
versions are refused. Of version 10 are `cached_tokens` of timings and `tool_result` of generations
alone, and these tables of version 9, without the column, are read, too.
"""

from collections.abc import Mapping

import pyarrow as pa

SCHEMA_VERSION = 9
LATER_VERSION = 10
"""Of tables that got a column; the others keep theirs, so that runs of before can be read."""

_METADATA = {"nip.schema_version": str(SCHEMA_VERSION)}
_LATER_METADATA = {"nip.schema_version": str(LATER_VERSION)}
VALUES_BEFORE: Mapping[str, int | None] = {
    **dict.fromkeys(("columns", "opponent", "opponent_iteration", "opponent_run")),
    **dict.fromkeys(("reasoning", "reasoning_tokens")),
    "exchange": 0,
    "tool_result": None,
}
"""Columns of later versions with the values of rows from before them. Digests leave such a value
out, so that runs from before a column keep theirs."""
NOT_DIGESTED = ("drawn", "p_accept", "round_rewards")
"""Columns that say nothing new of the game. Without them an older run has the digests of one that
is played today. `drawn` follows from problem and seed, `round_rewards` from the answers and the
protocol. `p_accept` is the engine's figure about an answer that is there; its last bits depend on
the other calls in the batch."""


def _list_rewards(*place: pa.Field) -> pa.DataType:
    """Make the type of a list of rewards, each of an agent."""
    agent = pa.field("agent", pa.string(), nullable=False)
    reward = pa.field("reward", pa.float64(), nullable=False)
    return pa.list_(pa.struct([*place, agent, reward]))


EPISODES = pa.schema(
    [
        pa.field("key", pa.string(), nullable=False),
        pa.field("run", pa.string(), nullable=False),
        pa.field("split", pa.string(), nullable=False),  # as `plan` calls them
        pa.field("iteration", pa.int32(), nullable=False),
        pa.field("problem", pa.string(), nullable=False),  # id of the row in the dataset
        pa.field("question_id", pa.string(), nullable=False),  # equal for variants of one question
        pa.field("sample", pa.int32(), nullable=False),  # how often the problem came before
        pa.field("branch_path", pa.string(), nullable=False),  # "" without branching
        pa.field("protocol", pa.string(), nullable=False),
        pa.field("question", pa.string(), nullable=False),
        pa.field("solution", pa.string(), nullable=False),
        pa.field("columns", pa.string()),  # the scenario's further columns: a JSON object of texts
        pa.field("drawn", pa.string()),  # likewise, columns drawn for the episode; in no digest
        pa.field("y", pa.int8(), nullable=False),  # 1 right, 0 wrong, -1 failed before its label
        pa.field("difficulty", pa.string()),  # family or level, where the dataset has one
        pa.field("mutation", pa.string()),  # kind of the bug, where known
        pa.field("seed", pa.int64(), nullable=False),
        pa.field("prover_stance", pa.int8()),  # the prover's side; null: as the protocol has it
        pa.field("opponent", pa.string()),  # whom an earlier model or another run played, or null
        pa.field("opponent_iteration", pa.int32()),  # the first that this model has played
        pa.field("opponent_run", pa.string()),  # the other run; null: this one
        pa.field("rounds", pa.int16(), nullable=False),  # rounds played
        pa.field("decision", pa.int8(), nullable=False),  # 0 reject, 1 accept, 2 none, 3 neither
        pa.field("decision_value", pa.float64()),  # on the decision scale, -1 to 1; null: none
        pa.field("outcome", pa.string(), nullable=False),  # finished, terminated, failed
        pa.field("error", pa.string()),  # why it failed
        pa.field("rewards", _list_rewards(), nullable=False),
        pa.field(  # the payments of each round, without zeros; null: unknown; in no digest
            "round_rewards", _list_rewards(pa.field("round", pa.int16(), nullable=False))
        ),
    ],
    metadata=_METADATA,
)

_CHOICE = [
    pa.field("token", pa.string(), nullable=False),
    pa.field("logprob", pa.float64(), nullable=False),
]
_TOKEN = pa.struct([*_CHOICE, pa.field("top", pa.list_(pa.struct(_CHOICE)), nullable=False)])

GENERATIONS = pa.schema(
    [
        pa.field("key", pa.string(), nullable=False),
        pa.field("parent_key", pa.string()),  # the previous valid generation of the episode
        pa.field("episode", pa.string(), nullable=False),  # key in `episodes`
        pa.field("branch_path", pa.string(), nullable=False),
        pa.field("round", pa.int16(), nullable=False),
        pa.field("agent", pa.string(), nullable=False),
        pa.field("exchange", pa.int16(), nullable=False),  # valid answers of the turn before it
        pa.field(
            "attempt", pa.int16(), nullable=False
        ),  # invalid answers before it in the exchange
        pa.field("model_asked", pa.string(), nullable=False),
        pa.field("model_served", pa.string(), nullable=False),
        pa.field("text", pa.string(), nullable=False),
        pa.field("decision", pa.int8(), nullable=False),  # as in `episodes`
        pa.field("decision_value", pa.float64()),
        pa.field(
            "p_accept", pa.float64()
        ),  # of "accept" against "reject"; null: unknown; in no digest
        pa.field("finish_reason", pa.string(), nullable=False),
        pa.field("invalid_reason", pa.string()),  # null: the answer was valid and is in the history
        pa.field("prompt_tokens", pa.int32(), nullable=False),
        pa.field("completion_tokens", pa.int32(), nullable=False),  # thoughts included
        pa.field("reasoning", pa.string()),  # thoughts, where the API gives them beside the text
        pa.field("reasoning_tokens", pa.int32()),  # of the completion's; null: none counted
        pa.field("prompt_token_ids", pa.list_(pa.int32())),
        pa.field("completion_token_ids", pa.list_(pa.int32())),
        pa.field("completion_logprobs", pa.list_(pa.float32())),
        pa.field("token_logprobs", pa.list_(_TOKEN)),  # the likeliest tokens, where asked for
        pa.field("tool_result", pa.string()),  # of the tool that it called; null: it called none
    ],
    metadata=_LATER_METADATA,
)

TIMINGS = pa.schema(
    [
        pa.field("key", pa.string(), nullable=False),  # key in `generations`
        pa.field("started_at", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("latency_s", pa.float32(), nullable=False),
        pa.field("transport_retries", pa.int16(), nullable=False),
        pa.field("cached_tokens", pa.int32()),  # of the prompt; of several answers the first has it
    ],
    metadata=_LATER_METADATA,
)
EARLIER = {
    "timings": pa.schema([*TIMINGS][:-1], metadata=_METADATA),
    "generations": pa.schema([*GENERATIONS][:-1], metadata=_METADATA),
}
"""Tables of version 9."""

CHOICES = pa.schema(
    [
        pa.field("key", pa.string(), nullable=False),
        pa.field("problem", pa.string(), nullable=False),
        pa.field("sample", pa.int32(), nullable=False),
        pa.field("n", pa.int32(), nullable=False),  # messages there were to choose from
        pa.field("episode", pa.string(), nullable=False),  # key of the leaf whose verdict counts
        pa.field("p_accept", pa.float64()),  # of the message chosen last; null: not estimated
        pa.field("distinct", pa.int32()),  # different ones it was chosen from; null: no choice
    ],
    metadata=_METADATA,
)
