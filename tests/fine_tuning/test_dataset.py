"""Examples as Parquet and as the JSONL that goes over the wire."""

import io
import json
from dataclasses import fields, replace

import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nip_core.fine_tuning.dataset import (
    EXAMPLES,
    dataset_digest,
    to_parquet,
    to_supervised_jsonl,
    to_table,
)
from nip_core.lm_server.formats import read_jsonl, read_supervised, validate_supervised
from nip_core.trainers.expert_iteration import Example

HARD_TEXT = 'Ünïcödé 🐍 \u2028 line separator, "quotes",\nnew line,\ttab, \x00, </s>, end\r\n'


def example(i, text="Decision: accept"):
    return Example(
        key=f"key-{i:04d}",
        agent="verifier",
        episode=f"episode-{i}",
        generations=(f"g{i}-0", f"g{i}-2"),
        iteration=3,
        problem=f"p{i}",
        y=i % 2,
        reward=0.1 * i,
        reason="threshold",
        messages=(
            {"role": "system", "content": f"Return x plus {i}."},
            {"role": "assistant", "content": "Question: why?"},
            {"role": "user", "content": "Answer: b", "name": "Expert"},
            {"role": "system", "content": "Decide now."},
            {"role": "assistant", "content": text},
        ),
    )


def examples(count):
    return [example(i) for i in range(count)]


def read(data):
    return pq.read_table(io.BytesIO(data))


def test_the_parquet_file_has_the_schema_with_its_version():
    schema = read(to_parquet(to_table(examples(3)))).schema
    assert schema == EXAMPLES
    assert schema.metadata[b"nip.schema_version"] == b"1"
    assert schema.names == [field.name for field in fields(Example)]


def test_parquet_keeps_every_row_in_the_order_given():
    given_ = [example(2, HARD_TEXT), example(0), example(1)]
    rows = read(to_parquet(to_table(given_))).to_pylist()
    assert [row["key"] for row in rows] == ["key-0002", "key-0000", "key-0001"]
    back = [
        Example(
            **{
                **row,
                "generations": tuple(row["generations"]),
                "messages": tuple(
                    {k: v for k, v in message.items() if v is not None}
                    for message in row["messages"]
                ),
            }
        )
        for row in rows
    ]
    assert back == given_


def test_equal_examples_give_equal_bytes():
    assert to_parquet(to_table(examples(20))) == to_parquet(to_table(examples(20)))
    assert to_supervised_jsonl(to_table(examples(20))) == to_supervised_jsonl(
        to_table(examples(20))
    )


def test_the_jsonl_is_derived_from_the_parquet_and_valid():
    given_ = [*examples(10), example(10, HARD_TEXT)]
    data = to_supervised_jsonl(read(to_parquet(to_table(given_))))
    assert validate_supervised(read_jsonl(data)) == []
    assert data.count(b"\n") == 11 and data.endswith(b"\n")
    lines = [json.loads(line) for line in data.decode().split("\n")[:-1]]
    assert lines == [{"messages": list(e.messages)} for e in given_]


def test_the_server_reads_the_same_conversations_and_learns_the_agents_messages():
    for ours, theirs in zip(
        examples(12), read_supervised(to_supervised_jsonl(to_table(examples(12)))), strict=True
    ):
        assert [(m.role, m.content, m.name) for m in theirs.messages] == [
            (m["role"], m["content"], m.get("name")) for m in ours.messages
        ]
        assert {m.weight for m in theirs.messages} == {1}


def test_messages_without_a_name_have_no_name_on_the_wire():
    [line] = to_supervised_jsonl(to_table(examples(1))).splitlines()
    messages = json.loads(line)["messages"]
    assert [("name" in m) for m in messages] == [False, False, True, False, False]


@given(st.permutations(examples(7)))
def test_the_digest_does_not_depend_on_the_order_of_the_rows(shuffled):
    assert dataset_digest(to_table(shuffled)) == dataset_digest(to_table(examples(7)))


def test_the_digest_survives_the_file():
    table = to_table([*examples(5), example(5, HARD_TEXT)])
    assert dataset_digest(read(to_parquet(table))) == dataset_digest(table)


CHANGES = {
    "key": "other",
    "agent": "prover",
    "episode": "other",
    "generations": ("other",),
    "iteration": 4,
    "problem": "other",
    "y": 0,
    "reward": 0.11,
    "reason": "weighted",
    "messages": example(1, "Decision: reject").messages,
}


def test_the_changes_below_cover_every_column():
    assert list(CHANGES) == EXAMPLES.names


@pytest.mark.parametrize("column", CHANGES)
def test_the_digest_covers_every_column(column):
    one = examples(3)
    other = [one[0], replace(one[1], **{column: CHANGES[column]}), one[2]]
    assert dataset_digest(to_table(one)) != dataset_digest(to_table(other))


def test_the_digest_counts_a_repeated_row():
    assert dataset_digest(to_table(examples(2))) != dataset_digest(
        to_table([*examples(2), example(1)])
    )


def test_no_examples_are_an_empty_table_of_the_same_schema():
    table = to_table([])
    assert table.num_rows == 0 and table.schema.equals(EXAMPLES, check_metadata=True)
    assert read(to_parquet(table)).num_rows == 0
    assert to_supervised_jsonl(table) == b""
    assert len(dataset_digest(table)) == 64
