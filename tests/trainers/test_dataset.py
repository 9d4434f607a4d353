"""Examples as Parquet, and every format that is derived from it, as its receiver reads it."""

import json
from dataclasses import fields, replace
from itertools import pairwise

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from digests import dataset_digest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_examples import example, made, pair, trajectory

from nip_base.formats import read_examples
from nip_core.errors import CorruptionError, StageError, StoreError
from nip_core.run_store.local_store import LocalStore
from nip_core.run_store.manifest import commit
from nip_core.trainers.dataset import (
    FILES,
    SCHEMAS,
    WITH_WEIGHTS,
    Dataset,
    choose_held_out,
    open_dataset,
    to_table,
    write_examples,
)
from nip_core.trainers.lines import JSONL, write_jsonl
from nip_core.trainers.row_digests import hash_rows

HARD_TEXT = 'Ünïcödé 🐍 \u2028 line separator, "quotes",\nnew line,\ttab, \x00, </s>, end\r\n'
METHODS = tuple(SCHEMAS)


def written(folder, method, examples):
    file = folder / FILES[method]
    write_examples(file, method, examples)
    return Dataset(file, method, str(file))


# The table


@pytest.mark.parametrize("method", METHODS)
def test_the_parquet_file_has_the_schema_with_its_version(method, tmp_path):
    write_examples(tmp_path / "a", method, made(method, 3))
    schema = pq.read_schema(tmp_path / "a")
    assert schema == SCHEMAS[method]
    assert schema.metadata[b"nip.schema_version"] == b"2"
    names = [field.name for field in fields(type(made(method, 1)[0]))]
    later = ("reasoning", "weights")
    assert schema.names == [name for name in names if not name.endswith(later)]


THOUGHTS = {
    "supervised": {"reasoning": (None, "Hm.", None, HARD_TEXT)},
    "dpo": {"chosen_reasoning": HARD_TEXT, "rejected_reasoning": None},
}


@pytest.mark.parametrize("method", THOUGHTS)
def test_thoughts_are_columns_of_their_own_and_reach_the_line(method, tmp_path):
    examples = [*made(method, 3), replace(made(method, 4)[3], **THOUGHTS[method])]
    file = tmp_path / FILES[method]
    with_them = write_examples(file, method, examples, has_reasoning=True)
    assert pq.read_schema(file).metadata[b"nip.schema_version"] == b"3"
    dataset = Dataset(file, method, "a")
    *plain, row = dataset.rows()
    for name, thought in THOUGHTS[method].items():
        assert row[name] == (list(thought) if isinstance(thought, tuple) else thought)
        assert plain[0][name] is None
    # 1. Their digest is another one, and no other version of nip takes them for text alone.
    without = write_examples(tmp_path / "plain", method, examples)
    changed = [*examples[:3], replace(examples[3], **dict.fromkeys(THOUGHTS[method]))]
    others = write_examples(tmp_path / "none", method, changed, has_reasoning=True)
    assert len({with_them.digest, without.digest, others.digest}) == 3
    # 2. What is sent has them beside the texts, where there are some.
    write_jsonl(dataset.rows(), method, tmp_path / "lines", "the file")
    *_, first, last = map(json.loads, (tmp_path / "lines").read_bytes().splitlines())
    said = last["messages"] if method == "supervised" else last["preferred_output"]
    assert said[-1]["reasoning_content"] == HARD_TEXT
    assert "reasoning_content" not in json.dumps(first)


@pytest.mark.parametrize("thoughts", [None, THOUGHTS["supervised"]["reasoning"]])
def test_what_is_not_learned_is_a_column_of_its_own_and_reaches_the_line(thoughts, tmp_path):
    behind_a_hint = replace(example(3), weights=(None, 0, None, 1), reasoning=thoughts)
    file = tmp_path / FILES["supervised"]
    examples = [*made("supervised", 3), behind_a_hint]
    with_them = write_examples(file, "supervised", examples, has_weights=True)
    assert pq.read_schema(file) == WITH_WEIGHTS
    assert pq.read_schema(file).metadata[b"nip.schema_version"] == b"4"
    dataset = Dataset(file, "supervised", "a")
    *plain, row = dataset.rows()
    assert row["weights"] == [None, 0, None, 1] and plain[0]["weights"] is None
    assert row["reasoning"] == (None if thoughts is None else list(thoughts))
    # 1. The digest covers them.
    others = [*examples[:3], replace(behind_a_hint, weights=(None, 1, None, 1))]
    changed = write_examples(tmp_path / "others", "supervised", others, has_weights=True)
    assert changed.digest != with_them.digest
    # 2. What is sent has them at the agent's own messages, and the server reads them so.
    write_jsonl(dataset.rows(), "supervised", tmp_path / "lines", "the file")
    *_, first, last = map(json.loads, (tmp_path / "lines").read_bytes().splitlines())
    assert [m.get("weight") for m in last["messages"]] == [None, 0, None, 1]
    assert "weight" not in json.dumps(first)
    *_, (_, read) = read_examples("supervised", tmp_path / "lines")
    assert [m.weight for m in read.messages if m.role == "assistant"] == [0, 1]


@pytest.mark.parametrize("method", METHODS)
def test_parquet_keeps_every_row_in_the_order_given_over_many_batches(method, tmp_path):
    given_ = made(method, 1203)[::-1]
    dataset = written(tmp_path, method, given_)
    rows = list(dataset.rows())
    assert dataset.examples == len(rows) == 1203
    assert rows == to_table(given_, method).to_pylist()
    assert [row["key"] for row in rows] == [e.key for e in given_] == dataset.column("key")
    assert pq.ParquetFile(tmp_path / FILES[method]).num_row_groups == 3


def test_hard_texts_arrive_unchanged(tmp_path):
    [row] = written(tmp_path, "supervised", [example(2, HARD_TEXT)]).rows()
    assert row["messages"][-1] == {"role": "assistant", "content": HARD_TEXT, "name": None}
    [row] = written(tmp_path, "dpo", [pair(2, HARD_TEXT)]).rows()
    assert row["chosen"] == HARD_TEXT


def test_tokens_without_log_probabilities_have_none(tmp_path):
    [row] = written(tmp_path, "trajectories", [trajectory(5)]).rows()
    first, second = row["turns"]
    assert first["prompt_token_ids"] == [1, 5] and first["completion_token_ids"] == [3, 2]
    assert first["logprobs"] == pytest.approx([-0.25, -0.1])
    assert second["completion_token_ids"] == [4] and second["logprobs"] is None


@pytest.mark.parametrize("method", METHODS)
def test_equal_examples_give_equal_bytes(method, tmp_path):
    for name in "ab":
        write_examples(tmp_path / name, method, made(method, 20))
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


@pytest.mark.parametrize("method", METHODS)
def test_the_digest_is_that_of_the_rows_in_whatever_order(method, tmp_path):
    examples = made(method, 7)
    forward = write_examples(tmp_path / "a", method, examples)
    back = write_examples(tmp_path / "b", method, examples[::-1])
    rows = list(Dataset(tmp_path / "b", method, "b").rows())
    assert forward.digest == back.digest == dataset_digest(rows, method)
    assert forward.examples == 7


@settings(max_examples=30, deadline=None)
@given(method=st.sampled_from(METHODS), data=st.data())
def test_a_rows_part_in_the_digest_is_the_same_next_to_any_others(method, data):
    examples = made(method, 6)
    if data.draw(st.booleans()):
        examples[2] = replace(examples[2], tokens=None)
    whole = to_table(examples, method)
    ends = sorted(data.draw(st.sets(st.integers(0, 6))) | {0, 6})
    pieces = [whole.slice(a, b - a) for a, b in pairwise(ends)]
    assert [h for piece in pieces for h in hash_rows(piece)] == hash_rows(whole)
    assert hash_rows(pa.concat_tables(pieces)) == hash_rows(whole)


CHANGES = {
    "key": "other",
    "agent": "prover",
    "episode": "other",
    "generations": ("other",),
    "iteration": 4,
    "problem": "other",
    "question_id": "other",
    "y": 0,
    "reward": 0.11,
    "reason": "weighted",
    "tokens": 5,
    "messages": example(1, "Decision: reject").messages,
    "chosen": "other",
    "rejected": "other",
    "rejected_reward": 0.0,
    "turns": trajectory(2).turns,
    "group_id": "other",
    "advantage": 0.0,
}


@pytest.mark.parametrize("method", METHODS)
def test_the_digest_covers_every_column_and_counts_rows(method):
    def digest(examples):
        return dataset_digest(to_table(examples, method).to_pylist(), method)

    one = made(method, 3)
    digests = {digest(one), digest([*one, one[1]]), digest(one[:2])}
    for column in SCHEMAS[method].names:
        digests.add(digest([one[0], replace(one[1], **{column: CHANGES[column]}), one[2]]))
    assert len(digests) == 3 + len(SCHEMAS[method])


def test_text_that_moves_from_one_message_to_the_next_changes_the_digest():
    def digest(*contents):
        messages = tuple({"role": "assistant", "content": content} for content in contents)
        return dataset_digest(to_table([replace(example(0), messages=messages)]).to_pylist())

    assert len({digest("ab", "c"), digest("a", "bc"), digest("abc", "")}) == 3


def test_who_a_message_is_from_has_a_part_in_the_digest():
    def digest(**one):
        messages = ({"role": "user", "content": "a", **one},)
        return dataset_digest(to_table([replace(example(0), messages=messages)]).to_pylist())

    others = ({"role": "system"}, {"name": "Expert_1"}, {"name": "Expert_2"})
    assert len({digest(), *(digest(**other) for other in others)}) == 4


def test_every_token_and_its_log_probability_has_a_part_in_the_digest():
    def digest(**change):
        turn = replace(trajectory(0).turns[0], **change)
        rows = to_table([replace(trajectory(0), turns=(turn,))], "trajectories").to_pylist()
        return dataset_digest(rows, "trajectories")

    changes = (
        {"prompt_token_ids": [1, 7]},
        {"completion_token_ids": [3, 7]},
        {"logprobs": [-0.25, -7.0]},
        {"logprobs": None},
    )
    assert len({digest(), *(digest(**change) for change in changes)}) == 5


@pytest.mark.parametrize("method", METHODS)
def test_no_examples_are_an_empty_file_of_the_same_schema(method, tmp_path):
    dataset = written(tmp_path, method, [])
    assert (dataset.examples, list(dataset.rows()), dataset.column("tokens")) == (0, [], [])
    assert write_jsonl(dataset.rows(), method, tmp_path / "lines", "it") == 0


def test_a_committed_dataset_is_read_back_and_a_damaged_one_is_not(tmp_path):
    store = LocalStore(tmp_path / "store")
    file = tmp_path / FILES["dpo"]
    write_examples(file, "dpo", made("dpo", 3))
    facts = {"method": "dpo", "digest": "0", "examples": 3, "episodes": 3}
    manifest = commit(store, "d", {file.name: file}, extra=facts)
    dataset = open_dataset(store, "d")
    assert dataset.method == "dpo" and dataset.column("chosen") == ["Decision: accept"] * 3
    place = tmp_path / "store" / manifest.path(file.name)
    place.write_bytes(place.read_bytes()[:-1])
    with pytest.raises(CorruptionError, match=r"pairs\."):
        open_dataset(store, "d")


def test_a_dataset_of_an_earlier_version_is_refused_by_name(tmp_path):
    old = to_table(made("supervised", 2)).drop_columns(["question_id", "tokens"])
    pq.write_table(old.replace_schema_metadata({"nip.schema_version": "1"}), tmp_path / "old")
    with pytest.raises(StoreError, match=r"old: schema version 1, .* reads 2 or 3 or 4; use"):
        Dataset(tmp_path / "old", "supervised", "old")


# The formats


def lines(tmp_path, method, examples):
    file = tmp_path / "lines.jsonl"
    count = write_jsonl(written(tmp_path, method, examples).rows(), method, file, "it")
    assert count == len(examples)
    return file


def test_the_supervised_lines_are_read_as_the_same_conversations(tmp_path):
    given_ = [*made("supervised", 12), example(12, HARD_TEXT)]
    file = lines(tmp_path, "supervised", given_)
    for ours, (_, theirs) in zip(given_, read_examples("supervised", file), strict=True):
        assert [(m.role, m.content, m.name) for m in theirs.messages] == [
            (m["role"], m["content"], m.get("name")) for m in ours.messages
        ]
        assert {m.weight for m in theirs.messages} == {1}
    first = json.loads(file.read_text().splitlines()[0])
    assert [("name" in m) for m in first["messages"]] == [False, False, True, False]


def test_the_preference_lines_are_read_as_the_same_pairs(tmp_path):
    given_ = [*made("dpo", 12), pair(12, HARD_TEXT)]
    for ours, (_, theirs) in zip(
        given_, read_examples("dpo", lines(tmp_path, "dpo", given_)), strict=True
    ):
        assert [m.content for m in theirs.input] == [m["content"] for m in ours.messages]
        assert theirs.preferred.content == ours.chosen
        assert theirs.rejected.content == ours.rejected


def test_the_trajectory_lines_are_read_as_the_same_tokens(tmp_path):
    given_ = made("trajectories", 12)
    read = read_examples("trajectories", lines(tmp_path, "trajectories", given_))
    for ours, (_, theirs) in zip(given_, read, strict=True):
        assert (theirs.group_id, theirs.advantage) == (ours.group_id, ours.advantage)
        assert theirs.reward == ours.reward and not theirs.messages
        for mine, turn in zip(ours.turns, theirs.turns, strict=True):
            assert list(turn.prompt_token_ids) == mine.prompt_token_ids
            assert list(turn.completion_token_ids) == mine.completion_token_ids
            expected = None if mine.logprobs is None else pytest.approx(mine.logprobs)
            assert turn.logprobs == expected


BROKEN = {
    "supervised": replace(example(3), messages=({"role": "judge", "content": "x"},)),
    "dpo": replace(pair(3), messages=({"role": "assistant", "content": "x"},)),
    "trajectories": replace(trajectory(3), turns=()),
}


@pytest.mark.parametrize("method", METHODS)
def test_what_the_receiver_would_refuse_is_refused_with_its_place(method, tmp_path):
    examples = [*made(method, 2), BROKEN[method]]
    dataset = written(tmp_path, method, examples)
    with pytest.raises(StageError, match=r"dataset of group g, iteration 4: line 3: .*uploaded"):
        write_jsonl(dataset.rows(), method, tmp_path / "x", "dataset of group g, iteration 4")


def test_a_number_that_is_none_is_refused_with_its_line(tmp_path):
    dataset = written(
        tmp_path, "trajectories", [trajectory(0), replace(trajectory(1), advantage=float("inf"))]
    )
    with pytest.raises(StageError, match="it: line 2: "):
        write_jsonl(dataset.rows(), "trajectories", tmp_path / "x", "it")


def test_every_method_has_its_lines():
    assert set(JSONL) == set(SCHEMAS) == set(FILES)


# What is held out


def test_a_share_of_the_questions_is_held_out_and_each_keeps_its_side():
    questions = [f"q{i}" for i in range(1000)]
    out = choose_held_out(questions, 0.2, seed=7)
    assert 150 < len(out) < 250
    assert choose_held_out(reversed(questions), 0.2, seed=7) == out
    assert choose_held_out(questions[:400], 0.2, seed=7) == out & set(questions[:400])
    assert choose_held_out(questions, 0.2, seed=8) != out
    assert out < choose_held_out(questions, 0.5, seed=7)


@settings(max_examples=60)
@given(
    questions=st.lists(st.sampled_from([f"q{i}" for i in range(9)]), max_size=9),
    fraction=st.sampled_from([0.0, 0.2, 0.9, 0.999999]),
    seed=st.integers(0, 9),
)
def test_training_is_never_left_without_a_question(questions, fraction, seed):
    out = choose_held_out(questions, fraction, seed)
    assert out <= set(questions)
    assert not questions or out != set(questions)
    assert fraction > 0 or not out
