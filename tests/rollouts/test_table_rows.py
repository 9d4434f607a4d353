"""Rows have the columns of their tables, and journals give them back as they were written."""

from datetime import UTC, datetime

import pytest
from pydantic import BaseModel
from random_play import game, play
from stored_rows import typed_tables

from nip_core.errors import CorruptionError
from nip_core.rollouts.client.completions import ChatAnswer
from nip_core.rollouts.storage.schema import (
    CHOICES,
    EPISODES,
    GENERATIONS,
    TIMINGS,
    VALUES_BEFORE,
)
from nip_core.rollouts.storage.table_rows import (
    CallRecord,
    Episode,
    Generation,
    LabelRow,
    MessageChoice,
    Timing,
    read_rows,
    recorded_calls,
    recorded_labels,
    row_columns,
    stored_row,
)

KINDS = {Episode: EPISODES, Generation: GENERATIONS, Timing: TIMINGS, MessageChoice: CHOICES}


@pytest.fixture(scope="module")
def played():
    return play(game(), 0, 12)


@pytest.fixture
def call(played):
    started_at = datetime(2026, 1, 1, microsecond=120, tzinfo=UTC)
    row = played.generations[0]
    return CallRecord(
        row, Timing(key=row.key, started_at=started_at, latency_s=0.1, transport_retries=2)
    )


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_a_row_has_the_columns_of_its_table_in_their_order(kind):
    assert list(row_columns(kind)) == KINDS[kind].names
    needed = {name for name in KINDS[kind].names if not KINDS[kind].field(name).nullable}
    needed -= {*VALUES_BEFORE}
    with pytest.raises(TypeError) as missing:
        kind()
    assert all(f"'{name}'" in str(missing.value) for name in needed)


def test_rows_come_back_from_their_tables(played):
    tables = played.tables
    assert [*read_rows(tables.episodes, Episode)] == played.episodes
    back = {row.key: row for row in read_rows(tables.generations, Generation)}
    assert len(back) == len(played.generations)
    for row in played.generations:
        same = stored_row(back[row.key])
        assert same.pop("completion_logprobs") == pytest.approx(row.completion_logprobs)
        assert same == {k: v for k, v in stored_row(row).items() if k != "completion_logprobs"}


def test_columns_that_are_not_read_have_their_defaults_and_needed_ones_are_named(played):
    table = played.tables.generations
    [first, *_] = read_rows(table.drop_columns(["token_logprobs", "reasoning"]), Generation)
    assert first.token_logprobs is None and first.reasoning is None
    with pytest.raises(TypeError, match="'text'"):
        next(read_rows(table.drop_columns(["text"]), Generation))


def test_a_journal_gives_back_what_was_recorded(call):
    assert call.to_json()["timing"]["started_at"] == "2026-01-01T00:00:00.000120+00:00"
    assert recorded_calls([call.to_json()], "j") == {call.generation.key: call}
    label = LabelRow("k", 1, None, 0.25)
    assert recorded_labels([call.to_json(), label.to_json()], "j") == {"k": label}
    assert recorded_calls([label.to_json()], "j") == {}


def test_a_journal_of_before_a_column_was_there_is_read(call):
    record = call.to_json()
    del record["generation"]["reasoning"], record["generation"]["reasoning_tokens"]
    [found] = recorded_calls([record], "j").values()
    assert found == call


@pytest.mark.parametrize(
    "spoil",
    [
        lambda record: record["generation"].update(colour=1),
        lambda record: record["generation"].pop("text"),
        lambda record: record["timing"].update(started_at="noon"),
        lambda record: record.pop("timing"),
    ],
)
def test_a_record_of_other_columns_is_refused_with_the_journal(call, spoil):
    record = call.to_json()
    spoil(record)
    with pytest.raises(CorruptionError, match=r"^runs/a/j: an answer in it is not as"):
        recorded_calls([record], "runs/a/j")
    with pytest.raises(CorruptionError, match=r"^runs/a/j: a label in it is not as"):
        recorded_labels([{"label": {"key": "k"}}], "runs/a/j")


def test_rows_by_hand_make_the_same_tables(played):
    again = typed_tables(map(stored_row, played.episodes), map(stored_row, played.generations))
    assert again.episodes.equals(played.tables.episodes)


def test_an_answer_can_stand_in_a_pydantic_model_of_another_program():
    class Seat(BaseModel):
        answers: list[ChatAnswer] | None = None

    token = {"token": "a", "logprob": -0.5, "top": [{"token": "b", "logprob": -1.0}]}
    facts = {"text": "a", "finish_reason": "stop", "model": "m", "transport_retries": 0}
    counts = {"prompt_tokens": 1, "completion_tokens": 1, "latency_s": 0.1}
    seat = Seat.model_validate({"answers": [{**facts, **counts, "tokens": [token]}]})
    assert seat.answers is not None and seat.answers[0].tokens == [token]
