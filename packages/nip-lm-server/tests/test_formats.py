"""The JSONL formats: what is accepted, and that every refusal names its line."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nip_base import formats
from nip_base.formats import (
    FormatError,
    JsonlError,
    Message,
    Problem,
    SupervisedExample,
    check_jsonl,
    read_jsonl,
    to_jsonl,
    validate,
)

ASSISTANT = {"role": "assistant", "content": "a"}
USER = {"role": "user", "content": "u"}


def examples_of(method: str, content: bytes) -> tuple[Any, ...]:
    return tuple(example for _, example in formats.read_examples(method, content))


def problems_of(*messages: Any) -> list[tuple[int, str]]:
    lines = [(7, {"messages": list(messages)})]
    return [(p.line, p.code) for p in validate("supervised", lines, min_examples=1)]


def test_blank_lines_and_a_byte_order_mark_are_skipped_and_lines_count_from_one() -> None:
    content = b'\xef\xbb\xbf{"a": 1}\n\n  \n{"b": "\xc3\xa4"}'
    assert list(read_jsonl(content)) == [(1, {"a": 1}), (4, {"b": "ä"})]


def test_a_file_reads_as_its_bytes_do(tmp_path: Path) -> None:
    content = b'{"a": 1}\r\n{"b": 2}\r\n'
    (tmp_path / "x.jsonl").write_bytes(content)
    assert list(read_jsonl(tmp_path / "x.jsonl")) == list(read_jsonl(content))


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (b'{"a": 1}\n{"a": \n', 2),
        (b'{"a": 1}\n\xff\xfe\n', 2),
        (b"[1]\n", 1),
        (b'"text"\n', 1),
        (b"", 0),
        (b"\n \n", 0),
        (b"[" * 100_000, 1),
    ],
)
def test_what_is_not_jsonl_is_refused_with_its_line(content: bytes, line: int) -> None:
    with pytest.raises(JsonlError) as caught:
        check_jsonl(content)
    assert caught.value.line == line


@pytest.mark.parametrize(
    ("messages", "code"),
    [
        ([{"role": "robot", "content": "x"}, ASSISTANT], "invalid_role"),
        ([{"content": "x"}, ASSISTANT], "invalid_role"),
        ([USER], "missing_assistant_message"),
        ([USER, ASSISTANT, USER], "last_message_not_assistant"),
        ([ASSISTANT, USER, ASSISTANT], "nothing_before_answer"),
        ([USER, {**ASSISTANT, "content": ""}], "empty_answer"),
        ([USER, {**ASSISTANT, "content": [{"type": "text", "text": ""}]}], "empty_answer"),
        ([USER, {**ASSISTANT, "weight": 0}], "nothing_to_learn"),
        ([USER, {**ASSISTANT, "weight": 0.5}], "invalid_weight"),
        ([USER, {**ASSISTANT, "weight": True}], "invalid_weight"),
        ([{**USER, "weight": 1}, ASSISTANT], "invalid_weight"),
        ([USER, {"role": "assistant", "content": None}], "invalid_content"),
        ([USER, {"role": "assistant"}], "invalid_content"),
        ([USER, {**ASSISTANT, "content": [{"type": "image_url"}]}], "invalid_content"),
        ([USER, {**ASSISTANT, "tool_calls": [{"id": "1"}]}], "unknown_key"),
        ([USER, {**ASSISTANT, "refusal": "no"}], "unknown_key"),
        ([{**USER, "name": 3}, ASSISTANT], "invalid_name"),
        (["text", ASSISTANT], "invalid_message"),
    ],
)
def test_a_broken_rule_is_named_with_its_line(messages: list[Any], code: str) -> None:
    assert problems_of(*messages) == [(7, code)]


@pytest.mark.parametrize(
    ("value", "code"),
    [
        ({}, "missing_messages"),
        ({"messages": []}, "invalid_messages"),
        ({"messages": "x"}, "invalid_messages"),
        ([], "invalid_example"),
        ({"messages": [USER, ASSISTANT], "tools": [{}]}, "tools_unsupported"),
        (
            {"messages": [USER, ASSISTANT], "parallel_tool_calls": "no"},
            "invalid_parallel_tool_calls",
        ),
        ({"messages": [USER, ASSISTANT], "temperature": 1}, "unknown_key"),
    ],
)
def test_an_example_without_messages_is_refused(value: Any, code: str) -> None:
    assert [p.code for p in validate("supervised", [(1, value)], 1)] == [code]


def test_an_answer_of_chat_is_an_example_as_it_is() -> None:
    empty = {"refusal": None, "tool_calls": None, "function_call": None, "audio": None}
    row = {
        "messages": [
            {"role": "developer", "content": "d"},
            {**ASSISTANT, "content": "", "weight": 0},
            USER,
            {**ASSISTANT, **empty, "annotations": []},
        ],
        "tools": [],
        "parallel_tool_calls": True,
    }
    (example,) = examples_of("supervised", json.dumps(row).encode())
    assert example.messages == (
        Message("system", "d"),
        Message("assistant", "", weight=0),
        Message("user", "u"),
        Message("assistant", "a"),
    )


def test_text_parts_and_names_and_weights_are_kept() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    row = {
        "messages": [
            {"role": "user", "content": parts, "name": "Bob"},
            {"role": "assistant", "content": "first", "weight": 0},
            {"role": "assistant", "content": "second", "weight": 1},
        ]
    }
    (example,) = examples_of("supervised", json.dumps(row).encode())
    assert example.messages == (
        Message("user", "ab", name="Bob"),
        Message("assistant", "first", weight=0),
        Message("assistant", "second", weight=1),
    )


def test_nine_examples_are_too_few_and_ten_are_enough() -> None:
    rows = [(i + 1, {"messages": [USER, ASSISTANT]}) for i in range(10)]
    assert formats.MIN_EXAMPLES == 10
    assert validate("supervised", rows) == []
    (problem,) = validate("supervised", rows[:9])
    assert (problem.line, problem.code) == (0, "too_few_examples")
    assert "9 example(s)" in problem.message


def test_a_file_that_is_wrong_throughout_gives_a_bounded_report() -> None:
    problems = validate("supervised", ((i + 1, {}) for i in range(10**6)))
    assert [p.line for p in problems] == list(range(1, formats.MAX_PROBLEMS + 1))
    text = formats.describe_problems(problems)
    assert text.startswith("line 1: ") and text.endswith("and 15 more")


def test_reading_checks_too() -> None:
    with pytest.raises(FormatError, match=r"line 2: .*'robot'") as caught:
        examples_of(
            "supervised",
            to_jsonl(
                [{"messages": [ASSISTANT]}, {"messages": [{**USER, "role": "robot"}, ASSISTANT]}]
            ),
        )
    assert isinstance(caught.value.problems[0], Problem)


text = st.text(st.characters(codec="utf-8"), max_size=20)
messages = st.builds(
    Message, st.sampled_from(formats.ROLES), text, name=st.none() | text.filter(bool)
)
answered = st.builds(Message, st.sampled_from(["system", "user"]), text)
learned = st.builds(Message, st.just("assistant"), text.filter(bool), weight=st.just(1))


@given(
    st.lists(
        st.builds(
            lambda first, between, last: SupervisedExample((first, *between, last)),
            answered,
            st.lists(answered | learned, max_size=4),
            learned,
        ),
        min_size=1,
        max_size=5,
    )
)
def test_what_is_written_is_read_back(rows: list[SupervisedExample]) -> None:
    assert examples_of("supervised", to_jsonl(rows)) == tuple(rows)


# Method dpo

PAIR = {
    "input": {"messages": [USER]},
    "preferred_output": [{**ASSISTANT, "content": "good"}],
    "non_preferred_output": [{**ASSISTANT, "content": "bad"}],
}


def codes(method: str, *rows: Any, **options: Any) -> list[tuple[int, str]]:
    """Problems of rows on lines 7, 8, ..."""
    lines = list(enumerate(rows, start=7))
    return [(p.line, p.code) for p in formats.validate(method, lines, 1, **options)]


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"input": None}, "invalid_input"),
        ({"input": {}}, "missing_messages"),
        ({"input": {"messages": []}}, "invalid_messages"),
        ({"input": {"messages": [USER, ASSISTANT]}}, "last_message_is_assistant"),
        ({"input": {"messages": [{**ASSISTANT, "weight": 0}, USER]}}, "unknown_key"),
        ({"input": {"messages": [USER], "tools": [{}]}}, "tools_unsupported"),
        (
            {"input": {"messages": [USER], "parallel_tool_calls": "no"}},
            "invalid_parallel_tool_calls",
        ),
        ({"preferred_output": [{**ASSISTANT, "content": ""}]}, "empty_answer"),
        ({"input": {"messages": [USER], "temperature": 1}}, "unknown_key"),
        ({"preferred_output": []}, "invalid_preferred_output"),
        ({"preferred_output": [ASSISTANT, ASSISTANT]}, "invalid_preferred_output"),
        ({"non_preferred_output": ASSISTANT}, "invalid_non_preferred_output"),
        ({"preferred_output": [USER]}, "invalid_role"),
        ({"preferred_output": [{"role": "robot", "content": ""}]}, "invalid_role"),
        ({"preferred_output": [{**ASSISTANT, "content": None}]}, "invalid_content"),
        ({"non_preferred_output": [{**ASSISTANT, "weight": 1}]}, "unknown_key"),
        ({"non_preferred_output": [{"role": "assistant", "content": "good"}]}, "equal_outputs"),
        ({"messages": [USER, ASSISTANT]}, "unknown_key"),
    ],
)
def test_a_broken_rule_of_a_pair_is_named_with_its_line(change: Any, code: str) -> None:
    assert codes("dpo", {**PAIR, **change}) == [(7, code)]


@pytest.mark.parametrize("key", ["input", "preferred_output", "non_preferred_output"])
def test_a_pair_without_one_of_its_parts_is_refused(key: str) -> None:
    assert codes("dpo", {k: v for k, v in PAIR.items() if k != key}) == [(7, f"missing_{key}")]
    assert codes("dpo", [PAIR]) == [(7, "invalid_example")]


def test_a_pair_as_openai_documents_it_is_accepted() -> None:
    row = {
        "input": {"messages": [USER], "tools": [], "parallel_tool_calls": True},
        "preferred_output": [{"role": "assistant", "content": "It is cold."}],
        "non_preferred_output": [{"role": "assistant", "content": "No idea."}],
    }
    (example,) = examples_of("dpo", json.dumps(row).encode())
    assert example == formats.PreferenceExample(
        input=(Message("user", "u"),),
        preferred=Message("assistant", "It is cold."),
        rejected=Message("assistant", "No idea."),
    )


# Method trajectories

EPISODE = {"messages": [USER, ASSISTANT], "group_id": "g", "reward": 1}
TURN = {"prompt_token_ids": [1, 2], "completion_token_ids": [3, 4], "logprobs": [-0.5, 0]}
IN_TOKENS = {"turns": [TURN], "group_id": "g", "reward": 0.5}


def acted(**fields: Any) -> dict[str, Any]:
    return {**EPISODE, "messages": [USER, {**ASSISTANT, **fields}]}


def turned(**fields: Any) -> dict[str, Any]:
    return {**IN_TOKENS, "turns": [TURN, {**TURN, **fields}]}


@pytest.mark.parametrize(
    ("row", "code"),
    [
        ([], "invalid_example"),
        ({"group_id": "g", "reward": 1}, "messages_or_turns"),
        ({**EPISODE, **IN_TOKENS}, "messages_or_turns"),
        ({**EPISODE, "advantages": 1}, "unknown_key"),
        ({**EPISODE, "group_id": 3}, "invalid_group_id"),
        ({**EPISODE, "group_id": ""}, "invalid_group_id"),
        ({**EPISODE, "messages": [ASSISTANT]}, "nothing_before_answer"),
        ({**EPISODE, "reward": "1"}, "invalid_reward"),
        ({**EPISODE, "reward": True}, "invalid_reward"),
        ({**EPISODE, "reward": float("inf")}, "invalid_reward"),
        ({**EPISODE, "reward": 10**400}, "invalid_reward"),
        ({**EPISODE, "advantage": float("nan")}, "invalid_advantage"),
        ({**EPISODE, "messages": [USER]}, "missing_assistant_message"),
        (acted(weight=0), "nothing_to_learn"),
        (acted(role="wizard"), "invalid_role"),
        (acted(token_ids=[1, 2], logprobs=[-1.0]), "lengths_differ"),
        (acted(token_ids=[]), "invalid_token_ids"),
        (acted(token_ids=[1.0]), "invalid_token_ids"),
        (acted(token_ids=[-1]), "invalid_token_ids"),
        (acted(logprobs=[0.1]), "invalid_logprobs"),
        (acted(logprobs=[-9999.0]), "invalid_logprobs"),
        (acted(logprobs=-1.0), "invalid_logprobs"),
        ({**EPISODE, "messages": [{**USER, "logprobs": [-1]}, ASSISTANT]}, "not_an_action"),
        ({**IN_TOKENS, "turns": []}, "invalid_turns"),
        ({**IN_TOKENS, "turns": [[1, 2]]}, "invalid_turns"),
        (turned(prompt_token_ids=[]), "invalid_token_ids"),
        (turned(prompt_token_ids=[True]), "invalid_token_ids"),
        (turned(completion_token_ids=None), "invalid_token_ids"),
        (turned(completion_token_ids=[2**40]), "invalid_token_ids"),
        (turned(logprobs=[-0.5]), "lengths_differ"),
        (turned(logprobs=[-0.5, None]), "invalid_logprobs"),
        (turned(text="x"), "unknown_key"),
    ],
)
def test_a_broken_rule_of_an_episode_is_named_with_its_line(row: Any, code: str) -> None:
    assert codes("trajectories", EPISODE, row)[0] == (8, code)


def test_episodes_as_text_and_as_tokens_are_read() -> None:
    action = {**ASSISTANT, "token_ids": [5, 6], "logprobs": [-0.25, 0.0005]}
    rows = [
        {"messages": [USER, action], "group_id": "g", "reward": 1, "advantage": 2},
        {**IN_TOKENS, "turns": [TURN, {**TURN, "logprobs": None}], "advantage": -1.5},
    ]
    assert examples_of("trajectories", to_jsonl(rows)) == (
        formats.Trajectory(
            group_id="g",
            reward=1.0,
            advantage=2.0,
            messages=(
                Message("user", "u"),
                Message("assistant", "a", token_ids=(5, 6), logprobs=(-0.25, 0.0005)),
            ),
        ),
        formats.Trajectory(
            group_id="g",
            reward=0.5,
            advantage=-1.5,
            turns=(formats.Turn((1, 2), (3, 4), (-0.5, 0.0)), formats.Turn((1, 2), (3, 4))),
        ),
    )


def test_a_group_of_one_has_nothing_to_be_compared_with() -> None:
    alone = {**EPISODE, "group_id": "alone"}
    assert codes("trajectories", EPISODE, EPISODE, alone) == [(9, "group_of_one")]
    given = [{**row, "advantage": 0.5} for row in (EPISODE, alone)]
    assert codes("trajectories", *given) == []
    assert codes("trajectories", *given, advantage="given") == []
    for mode in ("group", "group_std"):
        found = codes("trajectories", *given, advantage=mode)
        assert found == [(7, "group_of_one"), (8, "group_of_one")]


def test_advantages_are_in_all_lines_or_in_none() -> None:
    given = {**EPISODE, "advantage": 0.5}
    assert codes("trajectories", EPISODE, given, EPISODE, given) == [(8, "mixed_advantages")]
    assert codes("trajectories", given, given, EPISODE) == [(9, "mixed_advantages")]
    assert codes("trajectories", given, EPISODE, advantage="given") == [(8, "missing_advantage")]
    assert codes("trajectories", given, EPISODE, advantage="group") == []


# All methods


@pytest.mark.parametrize(
    ("method", "row"), [("supervised", {"messages": [USER, ASSISTANT]}), ("dpo", PAIR),
                        ("trajectories", EPISODE)]
)  # fmt: skip
def test_every_method_wants_the_same_number_of_examples(method: str, row: Any) -> None:
    rows = [(i + 1, row) for i in range(10)]
    assert formats.validate(method, rows) == []
    assert [(p.line, p.code) for p in formats.validate(method, rows[:9])] == [
        (0, "too_few_examples")
    ]
    broken = formats.validate(method, [(i + 1, {}) for i in range(99)])
    assert len(broken) == formats.MAX_PROBLEMS
    assert {p.line for p in broken} >= {1, 2, 3}


def test_what_is_missing_is_said_to_be_missing() -> None:
    rows = [{k: v for k, v in EPISODE.items() if k != key} for key in ("group_id", "reward")]
    problems = formats.validate("trajectories", list(enumerate(rows, start=1)), 1)
    assert [str(problem) for problem in problems] == [
        "line 1: 'group_id' must be a string, got nothing",
        "line 2: 'reward' must be a finite number, got nothing",
    ]


def test_an_unknown_method_is_an_error() -> None:
    with pytest.raises(KeyError):
        formats.validate("reinforcement", [])


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "9" * 5000])
def test_what_is_no_json_number_is_refused(number: str) -> None:
    with pytest.raises(JsonlError, match="line 1: not JSON"):
        check_jsonl(f'{{"reward": {number}}}'.encode())


def test_half_a_surrogate_pair_is_no_text() -> None:
    row = json.loads('{"messages": [{"role": "assistant", "content": "\\ud83d"}]}')
    assert codes("supervised", row) == [(7, "invalid_content")]


plain = st.builds(Message, st.sampled_from(formats.ROLES), text, name=st.none() | text)
finite = st.floats(-1e6, 1e6)
logprobs = st.floats(-100, 0)


@st.composite
def answers(draw: Any) -> Message:
    ids = draw(st.none() | st.lists(st.integers(0, 999), min_size=1, max_size=4))
    size = len(ids) if ids is not None else draw(st.integers(1, 4))
    values = draw(st.none() | st.lists(logprobs, min_size=size, max_size=size))
    return Message(
        "assistant",
        draw(text),
        token_ids=None if ids is None else tuple(ids),
        logprobs=None if values is None else tuple(values),
    )


@st.composite
def turns(draw: Any) -> formats.Turn:
    ids = st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=5)
    completion = draw(ids)
    size = len(completion)
    values = draw(st.none() | st.lists(logprobs, min_size=size, max_size=size))
    return formats.Turn(
        tuple(draw(ids)), tuple(completion), None if values is None else tuple(values)
    )


def given_episode(
    before: list[Message], last: Message, turns: list[formats.Turn], advantage: float
) -> formats.Trajectory:
    messages = () if turns else (Message("user", "q"), *before, last)
    return formats.Trajectory("g", advantage / 2, advantage, messages, tuple(turns))


@given(
    st.lists(
        st.builds(given_episode, st.lists(plain, max_size=3), answers(),
                  st.lists(turns(), max_size=3), finite),
        min_size=1,
        max_size=5,
    )
)  # fmt: skip
def test_episodes_that_are_written_are_read_back(rows: list[formats.Trajectory]) -> None:
    assert examples_of("trajectories", to_jsonl(rows)) == tuple(rows)


@given(
    st.lists(
        st.builds(
            lambda before, question, one, other: formats.PreferenceExample(
                (*before, question), Message("assistant", other + one), Message("assistant", one)
            ),
            st.lists(plain, max_size=3),
            st.builds(Message, st.just("user"), text),
            text,
            text.filter(bool),
        ),
        min_size=1,
        max_size=5,
    )
)
def test_pairs_that_are_written_are_read_back(rows: list[formats.PreferenceExample]) -> None:
    assert examples_of("dpo", to_jsonl(rows)) == tuple(rows)


KEYS = ["messages", "input", "preferred_output", "non_preferred_output", "turns", "role", "content"]
KEYS += ["weight", "group_id", "reward", "advantage", "logprobs", "token_ids", "prompt_token_ids"]
KEYS += ["completion_token_ids", "name", "tools", "x"]
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(KEYS), inner | st.sampled_from(["assistant", "user"]), max_size=5
        )
    ),
    max_leaves=20,
)


@given(st.sampled_from(formats.METHODS), st.lists(json_values, max_size=4))
def test_whatever_is_in_a_file_problems_have_its_lines_or_it_can_be_read(
    method: str, rows: list[Any]
) -> None:
    lines = list(enumerate(rows, start=1))
    problems = formats.validate(method, lines, 0)
    assert all(1 <= problem.line <= len(rows) for problem in problems)
    if not problems:
        content = "".join(json.dumps(row) + "\n" for row in rows).encode()
        assert len(formats.read_examples(method, content, 0)) == len(rows)
