"""An answer is a call of the tool, or a move, and what others read has no call in it."""

import pytest

from nip_core.game.answers.decisions import InvalidResponse
from nip_core.game.answers.parsing import AnswerForm, parse_response
from nip_core.protocols.scales import SCALES
from nip_core.tools import Tool, find_call

LOOK = Tool("look", "the number of a step", "this step", "2")
RUN = Tool("run", "an input", "what comes of it", "f(1)", has_lines=True)
SCALE = SCALES["accept_reject"]
TO_TWO = {"a": "Question for Expert_1:", "b": "Question for Expert_2:"}


def read(text, tool=LOOK, headers=None):
    headers = headers or {}
    return parse_response(text, AnswerForm((*headers,) or ("main",), headers, SCALE, tool=tool))


@pytest.mark.parametrize(
    ("text", "argument"),
    [
        ("Look: 2", "2"),
        ("I am not sure.\n\n**Look:** 3\n", "3"),
        ("look : `4`", "4"),
        ("Look: 1\nLook: 2", "2"),
        ("Look: 2\nI will wait for it.", "2"),
        ("<think>Decision: accept</think>\nLook: 2", "2"),
        ("Decision: accept\nLook: 2", "2"),
        ("Look:", ""),
        ("- Look: 2", "2"),
        ("1. Look：2", "2"),
    ],
)
def test_a_line_with_the_label_is_a_call(text, argument):
    move = read(text)
    assert (move.call, move.messages, move.decision) == (argument, {}, 2)


@pytest.mark.parametrize(
    "verdict",
    [
        *("Decision: reject", "Final decision: reject", "My decision: reject", "Verdict: reject"),
        *("- Decision: reject", "1. Decision: reject", "Decision - reject", "Final Answer: reject"),
        *("The decision: reject", "**Decision: reject**"),
    ],
)
def test_a_decision_behind_a_call_is_a_decision(verdict):
    move = read(f"Look: 2\nResult: 2: 9 + 1 = 10\n{verdict}")
    assert (move.call, move.decision) == (None, 0)


def test_nobody_reads_a_call_or_a_result_of_a_models_invention():
    move = read("Let me see.\nLook: 2\nResult: 2: 9 + 1 = 10\nQuestion: why?")
    assert move.messages == {"main": "Question: why?"}
    text = "Look: 2\nQuestion for Expert_1: why?\nQuestion for Expert_2: how?"
    move = read(text, headers=TO_TWO)
    assert move.call is None and [*move.messages.values()] == text.split("\n")[1:]


@pytest.mark.parametrize(
    ("text", "argument"),
    [
        ("Run: ##.#", "##.#"),
        ("Run: _f(1)", "_f(1)"),
        ("**Run:**\n```python\nf(1)\n```\nThen I decide.", "f(1)"),
        ("Run: `f(1)`", "f(1)"),
        ("Run:\n  2\n  a b", "  2\n  a b"),
        ("Run: 2\n3 4\n", "2\n3 4"),
    ],
)
def test_an_input_is_taken_as_it_is_written(text, argument):
    call = find_call(text, RUN)
    assert call is not None and call.argument == argument


def test_what_is_no_call_is_read_as_it_was():
    for text in ("Overlook: 2", "> Look: 2", "Question: do you look: 2?", "Decision: accept"):
        assert read(text) == read(text, tool=None)


def test_a_decision_before_a_call_counts_where_no_call_is_left():
    form = AnswerForm(("main",), {}, SCALE, tool=LOOK, is_used_up=True)
    assert parse_response("Decision: accept\nLook: 2", form).decision == 1
    with pytest.raises(InvalidResponse, match="no use is left"):
        parse_response("Let me see.\nLook: 2", form)


def test_an_input_in_a_fence_may_look_like_a_move():
    move = read("Run:\n```\n5 3\nquestion: 2\n```\nThen I decide.", RUN)
    assert move.call == "5 3\nquestion: 2"
    assert read("Run:\n```\n5 3\n```\nDecision: reject", RUN).decision == 0
