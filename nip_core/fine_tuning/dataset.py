"""Training examples as Parquet, the source of every back-end's format.

Each row names the rollouts it came from. `to_supervised_jsonl` derives the file that the OpenAI
wire protocol wants; its rules stand in `nip_core.lm_server.formats`.
"""

import io
import json
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from nip_core.hashing import digest
from nip_core.trainers.expert_iteration import Example

SCHEMA_VERSION = 1

EXAMPLES = pa.schema(
    [
        pa.field("key", pa.string(), nullable=False),
        pa.field("agent", pa.string(), nullable=False),
        pa.field("episode", pa.string(), nullable=False),  # key in the episodes table
        pa.field("generations", pa.list_(pa.string()), nullable=False),  # keys of the agent's own
        pa.field("iteration", pa.int32(), nullable=False),  # of the rollout
        pa.field("problem", pa.string(), nullable=False),
        pa.field("y", pa.int8(), nullable=False),
        pa.field("reward", pa.float64(), nullable=False),
        pa.field("reason", pa.string(), nullable=False),  # threshold, weighted, true_label
        pa.field(
            "messages",
            pa.list_(
                pa.struct(
                    [
                        pa.field("role", pa.string(), nullable=False),
                        pa.field("content", pa.string(), nullable=False),
                        pa.field("name", pa.string()),
                    ]
                )
            ),
            nullable=False,
        ),
    ],
    metadata={"nip.schema_version": str(SCHEMA_VERSION)},
)


def to_table(examples: Sequence[Example]) -> pa.Table:
    """The examples as a table with the schema EXAMPLES, in the order given."""
    rows = [
        {
            "key": e.key,
            "agent": e.agent,
            "episode": e.episode,
            "generations": list(e.generations),
            "iteration": e.iteration,
            "problem": e.problem,
            "y": e.y,
            "reward": e.reward,
            "reason": e.reason,
            "messages": [{"name": None, **message} for message in e.messages],
        }
        for e in examples
    ]
    return pa.Table.from_pylist(rows, schema=EXAMPLES)


def to_parquet(table: pa.Table) -> bytes:
    """The table as the bytes of a Parquet file."""
    sink = io.BytesIO()
    pq.write_table(table, sink, compression="zstd")
    return sink.getvalue()


def to_supervised_jsonl(table: pa.Table) -> bytes:
    """One JSON line per example: ``{"messages": [{"role", "content", "name"?}, ...]}``."""
    lines = []
    for messages in table.column("messages").to_pylist():
        chat = [{k: v for k, v in message.items() if v is not None} for message in messages]
        lines.append(json.dumps({"messages": chat}, ensure_ascii=False))
    return "".join(f"{line}\n" for line in lines).encode()


def dataset_digest(table: pa.Table) -> str:
    """SHA-256 over all columns of all rows, sorted by key."""
    return digest(sorted(table.to_pylist(), key=lambda row: str(row["key"])))
