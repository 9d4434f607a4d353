"""Verdicts in common words: read where they are unmistakable, and never as their opposite."""

import re
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from thorough import examples

from nip_core.game.answers import parsing
from nip_core.game.answers.decisions import InvalidResponse
from nip_core.game.answers.parsing import AnswerForm, parse_response
from nip_core.protocols import ACCEPT, REJECT
from nip_core.protocols.scales import SCALES

SETS = yaml.safe_load((Path(__file__).parent / "verdicts.yaml").read_text(encoding="utf-8"))
CLEAR = [(verdict, text) for verdict, texts in SETS["clear"].items() for text in texts]
OTHER = {"accept": "reject", "reject": "accept"}
FORM = AnswerForm(("main",), {}, SCALES["accept_reject"], must_decide=True)


def read(text, form=FORM):
    """The verdict; None for a message and for what is asked again."""
    try:
        decision = parse_response(text, form).decision
    except InvalidResponse:
        return None
    return {ACCEPT: "accept", REJECT: "reject"}.get(decision)


def test_the_sets_are_large_and_have_no_text_twice():
    assert len({text for _, text in CLEAR}) == len(CLEAR) >= 120
    assert len({*SETS["tricky"]}) == len(SETS["tricky"]) >= 120


def test_three_of_four_clear_verdicts_are_read_at_once():
    is_read = [read(text) == verdict for verdict, text in CLEAR]
    assert sum(is_read) >= 0.75 * len(CLEAR)


@pytest.mark.parametrize(
    "text",
    [
        "Sure, here is the decision you asked for: accept",
        '{"decision": "accept", "reason": "I see no reason to reject"}',
        "Decision: accept, not reject",
        "Decision: accept. I reject the idea that the loop is off by one.",
        "I see no bug, so I accept",
        "Decision: Strong accept",
        "**Decision**\n\nThe solution should be accepted.",
        "[x] accept [ ] reject",
        "| Decision | accept |",
        "Entscheidung: accept",
    ],
)
def test_a_verdict_of_each_common_form_is_read(text):
    assert read(text) == "accept"


@pytest.mark.parametrize("verdict", OTHER)
def test_no_clear_verdict_is_read_as_its_opposite(verdict):
    wrong = [text for v, text in CLEAR if v == verdict and read(text) == OTHER[verdict]]
    assert wrong == []


def test_no_text_that_decides_nothing_is_read_as_a_decision():
    assert {text: read(text) for text in SETS["tricky"] if read(text)} == {}


NEGATED = ["not {}", "do not {}", "cannot {}", "never {}", "hardly {}", "anything but {}"]
UNDONE = ["{}?", "'{}', says the expert,", "{} or {other}", "~~{}~~", "{other} or {}"]


@pytest.mark.parametrize("form", [*NEGATED, *UNDONE])
def test_a_verdict_that_is_negated_asked_or_given_to_others_is_not_read(form):
    for verdict, text in CLEAR:
        put = form.replace("{other}", OTHER[verdict])
        changed = re.sub(
            rf"(?i)\b{verdict}", lambda word, put=put: put.replace("{}", word[0]), text
        )
        assert read(changed) != verdict, changed


AROUND = [
    *("If n is never 0, {}", "Expert_1: {}", "The expert says: {}", "You wrote:\n{}", "> {}"),
    *("I would never say: {}", "Once it is proven: {}", "The format is:\n{}", "{}\nWait, no."),
    *(
        "{}?",
        "{}\n\nNo, I take that back.",
        "{}\nThis is not final.",
        "{}\n\n{}",
        "<think>x</think>{}",
    ),
    *("Question for Expert_1: {}", "Answer: {}", "```\n{}\n```", '"{}"', "{}\n\nIs that so?"),
]


@settings(max_examples=examples(400), deadline=None)
@given(
    st.sampled_from(CLEAR),
    st.sampled_from(AROUND),
    st.booleans(),
    st.sampled_from([None, {"a": "Question for Expert_1:", "b": "Question for Expert_2:"}]),
)
def test_whatever_stands_around_a_clear_verdict_its_opposite_is_not_read(
    entry, frame, reasoning, headers
):
    verdict, text = entry
    form = AnswerForm(tuple(headers or ("main",)), headers or {}, FORM.scale, reasoning)
    assert read(frame.replace("{}", text), form) != OTHER[verdict]
    if frame.endswith(("Wait, no.", "back.", "not final.")):
        assert read(frame.replace("{}", text), form) is None


@pytest.mark.parametrize(
    "text", ["I see no bug, so I accept", "Decision: accept, not reject", "[x] accept [ ] reject"]
)
def test_a_verdict_beside_a_message_has_no_second_look(text):
    headers = {"a": "Question for Expert_1:", "b": "Question for Expert_2:"}
    both = AnswerForm(tuple(headers), headers, FORM.scale)
    assert (
        read(f"Question for Expert_1: explain line 3\nQuestion for Expert_2: x\n{text}", both)
        is None
    )
    assert read(f"Question: explain line 3\n{text}") is None
    assert read(f"{text}\nAnswer: it holds", AnswerForm(("m",), {}, FORM.scale, True)) is None


WORDS = st.sampled_from(
    [*SETS["tricky"], *(text for _, text in CLEAR), "\n", " ", "Question: why", "The loop ends. "]
)


@settings(max_examples=examples(300), deadline=None)
@given(st.lists(WORDS, max_size=3).map("".join), st.booleans())
def test_what_the_first_look_takes_is_never_read_otherwise(text, reasoning):
    """So recorded answers, all of which it took, mean what they meant when they were recorded."""
    form = AnswerForm(("main",), {}, FORM.scale, reasoning)
    try:
        first = parsing._first_look(text, form)
    except InvalidResponse:
        return
    assert parse_response(text, form) == first


@pytest.mark.parametrize("scale", [name for name in SCALES if name != "accept_reject"])
def test_other_scales_have_no_second_look(scale):
    form = AnswerForm(("main",), {}, SCALES[scale])
    for answer in SCALES[scale].values:
        assert parsing._second_look(f"Sure, here is my decision: {answer}", form) is None


PIECES = [
    *(
        "Decision: accept, not reject. ",
        "I see no bug, so ",
        "| accept ",
        "[x] accept ",
        "{",
        "(",
        "*",
    ),
    *('{"decision": ', "no reason to reject ", "because x, ", "after all ", " ", "so I accept; "),
]


@pytest.mark.timeout(10)  # what takes quadratic time would take much longer
@pytest.mark.parametrize("piece", PIECES)
def test_the_longest_unclear_answers_come_to_an_end(piece):
    for before, after in (("", "\nI see no bug, so I accept"), ("Decision: accept. ", " reject}")):
        read(before + piece * (40_000 // len(piece)) + after)
        read(before + (piece + "\n") * (40_000 // len(piece)) + after)
