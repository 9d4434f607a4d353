"""Whole episodes with a verifier that gives its verdict in other words than it was asked for."""

import pytest
from scripted_play import bare_settings, play

V, P, P0, P1 = "verifier", "prover", "prover0", "prover1"
REJECT, ACCEPT, NO_DECISION = 0, 1, 2
READ = {
    "Accept": ACCEPT,
    "**Verdict:** Reject": REJECT,
    "It holds for all n. Decision: accept": ACCEPT,
    "\\boxed{reject}": REJECT,
    '{"decision": "accept", "reason": "it holds"}': ACCEPT,
    "After all this my decision is to accept.": ACCEPT,
    "f(0) is 1, so I reject.": REJECT,
    "Decision: reject. I cannot accept this because f(0) is 1.": REJECT,
}
ASKED_AGAIN = [
    "Expert_1: Verdict: accept",
    "Verdict: accept. This is not final.",
    "If all this holds, my decision is to accept.",
    "It holds.\n```\nDecision: accept\n```",
]
QUESTION = "Question: should I accept, or reject?"
BOTH = "Question for Expert_1: should I accept?\nQuestion for Expert_2: should I reject?"


def game(name, last, retries=2, **more):
    """Settings and a script in which the verifier says `last` where only a decision is of use."""
    before = {
        "solo_verifier": {},
        "adp": {0: {P: "Answer: it holds"}},
        "merlin_arthur": {0: {P0: "Answer: it fails"}},
        "nip": {0: {V: QUESTION}, 1: {P: "Answer: it holds"}},
        "debate": {0: {V: BOTH}, 1: {P0: "Answer: it fails", P1: "Answer: it holds"}},
    }[name]
    rounds = {f"{name}_protocol": {"max_message_rounds": 3}} if name in ("nip", "debate") else {}
    return bare_settings(name, retries=retries, **rounds, **more), {
        **before,
        len(before): {V: last},
    }


PROTOCOLS = ["solo_verifier", "adp", "merlin_arthur", "nip", "debate"]


@pytest.mark.parametrize("name", PROTOCOLS)
async def test_a_verdict_in_other_words_is_the_verdict(name):
    for text, decision in READ.items():
        settings, script = game(name, text)
        played = await play(settings, script)
        assert played.verdict[2] == decision and played.verdict[0] == "finished", text
        assert played.recorded[-1] == (len(script) - 1, V, 0, text, decision, True)


@pytest.mark.parametrize("name", PROTOCOLS)
async def test_where_only_a_decision_is_of_use_everything_else_is_asked_again(name):
    message = BOTH if name == "debate" else QUESTION
    for text in (*ASKED_AGAIN, message, "Hm."):
        settings, script = game(name, [text, "Decision: reject"])
        played = await play(settings, script)
        assert played.verdict[2] == REJECT, text
        last = len(script) - 1
        assert played.recorded[-2:] == [
            (last, V, 0, text, NO_DECISION, False),
            (last, V, 1, "Decision: reject", REJECT, True),
        ]


@pytest.mark.parametrize("name", PROTOCOLS)
async def test_who_never_decides_has_a_message_in_the_end_and_no_verdict(name):
    message = BOTH if name == "debate" else QUESTION
    settings, script = game(name, message)
    played = await play(settings, script)
    assert played.verdict == ("terminated", len(script), NO_DECISION, None)
    assert played.rewards[V] == -1.0
    valid = [
        (attempt, ok)
        for round_, _, attempt, _, _, ok in played.recorded
        if round_ == len(script) - 1
    ]
    assert valid == [(0, False), (1, False), (2, True)]
    why = {g["invalid_reason"] for g in played.generations if g["invalid_reason"]}
    assert why == {"no decision, where nothing else is of use"}


@pytest.mark.parametrize("text", [*READ, *ASKED_AGAIN])
async def test_no_verdict_reaches_the_prover_as_a_question(text):
    settings = bare_settings("nip", retries=1, nip_protocol={"max_message_rounds": 3})
    if text in READ:
        played = await play(settings, {0: {V: text}})
        assert played.verdict == ("finished", 1, READ[text], 1.0 if READ[text] else -1.0)
        return
    script = {0: {V: [text, QUESTION]}, 1: {P: "Answer: it holds"}, 2: {V: "Decision: accept"}}
    played = await play(settings, script)
    assert [content for _, _, content in played.saw(1, P)] == [QUESTION]


async def test_a_forced_guess_and_the_other_verifiers_of_zero_knowledge_need_no_decision():
    settings, script = game("solo_verifier", QUESTION, protocol_common={"force_guess": "y"})
    assert (await play(settings, script)).verdict == ("finished", 1, ACCEPT, 1.0)
    settings = bare_settings("adp", retries=2, protocol_common={"zero_knowledge": True})
    both = "To Verifier_1: it holds\nTo Verifier_2: it holds"
    others = {"adversarial_verifier": "It holds.", "simulator": "It holds."}
    played = await play(settings, {0: {P: both}, 1: {V: "Decision: accept", **others}})
    assert played.verdict == ("finished", 2, ACCEPT, 1.0)
    assert all(valid for *_, valid in played.recorded)
