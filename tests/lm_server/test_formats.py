"""The JSONL formats: what is accepted, and that every refusal names its line."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nip_core.lm_server import formats
from nip_core.lm_server.formats import (
    FormatError,
    JsonlError,
    Message,
    Problem,
    SupervisedExample,
    check_jsonl,
    read_jsonl,
    read_supervised,
    to_jsonl,
    validate_supervised,
)

ASSISTANT = {"role": "assistant", "content": "a"}
USER = {"role": "user", "content": "u"}


def problems_of(*messages: Any) -> list[tuple[int, str]]:
    lines = [(7, {"messages": list(messages)})]
    return [(p.line, p.code) for p in validate_supervised(lines, min_examples=1)]


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
        ([ASSISTANT, USER], "last_message_not_assistant"),
        ([USER, {**ASSISTANT, "weight": 0}], "nothing_to_learn"),
        ([USER, {**ASSISTANT, "weight": 0.5}], "invalid_weight"),
        ([USER, {**ASSISTANT, "weight": True}], "invalid_weight"),
        ([{**USER, "weight": 1}, ASSISTANT], "invalid_weight"),
        ([USER, {"role": "assistant", "content": None}], "invalid_content"),
        ([USER, {"role": "assistant"}], "invalid_content"),
        ([USER, {**ASSISTANT, "content": [{"type": "image_url"}]}], "invalid_content"),
        ([USER, {**ASSISTANT, "tool_calls": []}], "unknown_key"),
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
        ({"messages": [ASSISTANT], "tools": []}, "unknown_key"),
    ],
)
def test_an_example_without_messages_is_refused(value: Any, code: str) -> None:
    assert [p.code for p in validate_supervised([(1, value)], 1)] == [code]


def test_text_parts_and_names_and_weights_are_kept() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    row = {
        "messages": [
            {"role": "user", "content": parts, "name": "Bob"},
            {"role": "assistant", "content": "first", "weight": 0},
            {"role": "assistant", "content": "second", "weight": 1},
        ]
    }
    (example,) = read_supervised(json.dumps(row).encode())
    assert example.messages == (
        Message("user", "ab", name="Bob"),
        Message("assistant", "first", weight=0),
        Message("assistant", "second", weight=1),
    )


def test_nine_examples_are_too_few_and_ten_are_enough() -> None:
    rows = [(i + 1, {"messages": [USER, ASSISTANT]}) for i in range(10)]
    assert formats.MIN_EXAMPLES == 10
    assert validate_supervised(rows) == []
    (problem,) = validate_supervised(rows[:9])
    assert (problem.line, problem.code) == (0, "too_few_examples")
    assert "9 example(s)" in problem.message


def test_a_file_that_is_wrong_throughout_gives_a_bounded_report() -> None:
    problems = validate_supervised((i + 1, {}) for i in range(10**6))
    assert [p.line for p in problems] == list(range(1, formats.MAX_PROBLEMS + 1))
    text = formats.describe_problems(problems)
    assert text.startswith("line 1: ") and text.endswith("and 15 more")


def test_reading_checks_too() -> None:
    with pytest.raises(FormatError, match=r"line 2: .*'robot'") as caught:
        read_supervised(
            to_jsonl(
                [{"messages": [ASSISTANT]}, {"messages": [{**USER, "role": "robot"}, ASSISTANT]}]
            )
        )
    assert isinstance(caught.value.problems[0], Problem)


text = st.text(st.characters(codec="utf-8"), max_size=20)
messages = st.builds(
    Message, st.sampled_from(formats.ROLES), text, name=st.none() | text.filter(bool)
)
learned = st.builds(Message, st.just("assistant"), text, weight=st.just(1))


@given(
    st.lists(
        st.builds(
            lambda before, last: SupervisedExample((*before, last)),
            st.lists(messages, max_size=4),
            learned,
        ),
        min_size=1,
        max_size=5,
    )
)
def test_what_is_written_is_read_back(rows: list[SupervisedExample]) -> None:
    assert read_supervised(to_jsonl(rows)) == tuple(rows)
