"""What counts as a decision and what is only talk about one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nip_core.protocols import ACCEPT, NO_DECISION, REJECT
from nip_core.scenarios.code_validation.parsing import InvalidResponse, parse_response

CHANNELS = ("main",)


@pytest.mark.parametrize(
    ("text", "decision"),
    [
        ("Decision: accept", ACCEPT),
        ("decision:reject", REJECT),
        ("**Decision:** Accept", ACCEPT),
        ("**Decision: reject.**", REJECT),
        ("  Decision :  ACCEPT \n", ACCEPT),
        ("```\nDecision: reject\n```", REJECT),
        ("The loop is off by one.\n\nDecision: reject", REJECT),
        ("Decision: accept, because the tests pass", ACCEPT),
        ("My final decision is: reject", REJECT),
        ("So my decision: accepted", ACCEPT),
        ("Decision: reject\nDecision: reject", REJECT),
        ("> Decision: accept\nWhy do you say that?", NO_DECISION),
        ('You wrote "Decision: accept". Why?', NO_DECISION),
        ("Question: what is your decision: accept or reject?", NO_DECISION),
        ("I will accept it later.", NO_DECISION),
        ("Decision: reject. The loop does not end at n.", REJECT),
        ("Decision: accept - every case, the empty one included, is handled", ACCEPT),
        ("Decision: reject, the result is not acceptable", REJECT),
        ("Decision: rejecting.", REJECT),
        ("My final decision is to accept.", ACCEPT),
        ("The decision is:\n\n**reject**", REJECT),
        ("The decision is hard. Does the loop end at n?", NO_DECISION),
        ("My decision is not made yet. Is f(0) right?", NO_DECISION),
        ("The decision is\nDecision: reject", REJECT),
        ("The decision isolates nothing. Why n?", NO_DECISION),
        ("Question: does it handle []?", NO_DECISION),
    ],
)
def test_real_answers_mean_what_a_reader_would_say(text, decision):
    move = parse_response(text, CHANNELS, may_decide=True)
    assert move.decision == decision
    assert move.messages == ({} if decision != NO_DECISION else {"main": text.strip()})


@pytest.mark.parametrize(
    "text",
    [
        "",
        " \n ",
        "Decision: maybe",
        "Decision:",
        "Decision: not accept",
        "Decision: accept\nDecision: reject",
        "Decision: reject but maybe Decision: accept",
        "Decision: accept or reject?",
        "Decision: accept/reject",
        "Decision: accept? No - reject.",
        "Decision: accept?",
        "Decision: ACCEPT, I see no reason for rejection",
        "Decision: accepting this would be wrong, so reject",
        "Decision: accepting this would be wrong",
        "Decision: accept only if n > 0; otherwise reject.",
        "Decision: do not accept",
        "Decision: not reject",
        "Decision: accept? I would not accept this",
        "Decision: reject\nDecision: accept or reject",
        "My decision is not to accept",
        "The decision is: accept or reject",
    ],
)
def test_unclear_answers_are_invalid(text):
    with pytest.raises(InvalidResponse):
        parse_response(text, CHANNELS, may_decide=True)


def test_a_prover_never_decides():
    move = parse_response("Decision: accept", CHANNELS, may_decide=False)
    assert move.decision == NO_DECISION and move.messages == {"main": "Decision: accept"}


@given(st.text(min_size=1).filter(str.strip))
def test_any_prover_text_is_a_message(text):
    assert parse_response(text, CHANNELS, may_decide=False).messages == {"main": text.strip()}


@given(st.text())
def test_any_verifier_text_is_a_message_a_decision_or_invalid(text):
    try:
        move = parse_response(text, CHANNELS, may_decide=True)
    except InvalidResponse:
        return
    assert (move.decision == NO_DECISION) == bool(move.messages)
