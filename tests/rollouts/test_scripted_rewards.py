"""What settings of the rewards do to whole episodes, played by scripted players on the engine."""

import pytest
from scripted_play import bare_settings, own, play, said

V, P, P0, P1 = "verifier", "prover", "prover0", "prover1"
REJECT, ACCEPT, NO_DECISION, NEITHER = 0, 1, 2, 3

ASKS_BOTH = "Question for Expert_1: one?\nQuestion for Expert_2: two?"
EMPTY = "  \n"  # no valid answer of anybody


def nip_of_three(last, first="Question: a?"):
    return {0: {V: first}, 1: {P: "Answer: b"}, 2: {V: last}}


def of_two_provers(last):
    return {0: {V: ASKS_BOTH}, 1: {P0: "Answer: p", P1: "Answer: q"}, 2: {V: last}}


def settings(name, common, retries=0, **own_settings):
    rounds = {} if name in ("adp", "merlin_arthur") else {"max_message_rounds": 3}
    groups = {f"{name}_protocol": {**rounds, **own_settings}} if rounds or own_settings else {}
    return bare_settings(name, protocol_common=common, retries=retries, **groups)


# A drawn stance


@pytest.mark.parametrize("stance", [REJECT, ACCEPT])
@pytest.mark.parametrize(("word", "decision"), [("reject", REJECT), ("accept", ACCEPT)])
@pytest.mark.parametrize("name", ["nip", "mnip"])
async def test_provers_are_paid_for_the_drawn_stance(name, stance, word, decision):
    script = (nip_of_three if name == "nip" else of_two_provers)(f"Decision: {word}")
    parameters = settings(name, {"randomize_prover_stance": True})
    played = await play(parameters, script, y=ACCEPT, stance=stance)
    provers = [P] if name == "nip" else [P0, P1]
    assert played.rewards == {
        **dict.fromkeys(provers, float(stance == decision)),
        V: 1.0 if decision == ACCEPT else -1.0,
    }
    assert played.episode["prover_stance"] == stance


# A shared reward


@pytest.mark.parametrize("name", ["nip", "debate", "mnip", "merlin_arthur"])
@pytest.mark.parametrize(("word", "reward"), [("reject", 1.0), ("accept", -0.5), (None, -2.0)])
async def test_a_shared_reward_is_the_verifiers_for_all(name, word, reward):
    common = {
        "shared_reward": True,
        "verifier_incorrect_penalty": -0.5,
        "verifier_terminated_penalty": -2.0,
        "verifier_no_guess_reward": 0.125,
    }
    last = f"Decision: {word}" if word else ASKS_BOTH
    if name == "merlin_arthur":
        script, asked_before = {0: {P0: "Answer: p"}, 1: {V: last}}, 0
    else:
        script = nip_of_three(last) if name == "nip" else of_two_provers(last)
        asked_before = 1
    played = await play(settings(name, common), script, y=REJECT)
    assert set(played.rewards.values()) == {reward + asked_before * 0.125}


# Decision scales


@pytest.mark.parametrize(
    ("scale", "answer", "decision", "value"),
    [
        ("likert_scale_4", "agree", ACCEPT, 0.5),
        ("likert_scale_5", "Strongly disagree", REJECT, -1.0),
        ("likert_scale_5", "neither agree nor disagree", NEITHER, 0.0),
        ("likert_scale_6", "somewhat disagree", REJECT, -0.333),
        ("likert_scale_7", "somewhat agree", ACCEPT, 0.333),
        ("likert_int_scale_11", "10", ACCEPT, 1.0),
        ("likert_int_scale_11", "5", NEITHER, 0.0),
        ("out_of_10", "4", REJECT, -0.2),
        ("out_of_100", "75", ACCEPT, 0.5),
    ],
)
@pytest.mark.parametrize("y", [REJECT, ACCEPT])
@pytest.mark.parametrize("neither", [None, -0.5])
async def test_on_a_scale_the_verifier_is_paid_for_being_as_sure_as_it_may(
    scale, answer, decision, value, y, neither
):
    common = {
        "verifier_decision_scale": scale,
        "verifier_neither_accept_nor_reject_reward": neither,
        "verifier_reward": 2.0,
    }
    played = await play(settings("nip", common), nip_of_three(f"Decision: {answer}"), y=y)
    assert played.verdict == ("finished", 3, decision, value)
    assert [row[4] for row in played.recorded] == [NO_DECISION, NO_DECISION, decision]
    assert [g["decision_value"] for g in played.generations][-1] == value
    middle = 0.5 if neither is None else neither
    right = value if y == ACCEPT else -value
    reward = middle + right * (2.0 - middle) if right > 0 else middle - right * (-1.0 - middle)
    assert played.rewards[V] == pytest.approx(reward)
    assert played.rewards[P] == float(decision == ACCEPT)


async def test_in_debate_nobody_is_paid_for_a_verdict_of_neither():
    common = {"verifier_decision_scale": "out_of_10"}
    played = await play(settings("debate", common), of_two_provers("Decision: 5"))
    assert played.verdict == ("finished", 3, NEITHER, 0.0)
    assert played.rewards == {P0: 0.0, P1: 0.0, V: 0.0}


# A prover without a valid answer


async def test_a_prover_without_a_valid_answer_is_silent_and_pays_the_penalty():
    parameters = settings("nip", {"prover_invalid_response_penalty": -0.25}, retries=2)
    script = {0: {V: "Question: a?"}, 1: {P: EMPTY}, 2: {V: "Decision: accept"}}
    played = await play(parameters, script)
    assert played.saw(2, V) == [own("Question: a?"), played.last_round_message]
    assert played.recorded == [
        (0, V, 0, "Question: a?", NO_DECISION, True),
        *((1, P, attempt, EMPTY, NO_DECISION, False) for attempt in range(3)),
        (2, V, 0, "Decision: accept", ACCEPT, True),
    ]
    assert played.verdict == ("finished", 3, ACCEPT, 1.0)
    assert played.rewards == {P: -0.25 + 1.0, V: 1.0}


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("name", ["debate", "mnip"])
async def test_one_silent_prover_of_two_does_not_stop_the_other(name, shared):
    common = {"prover_invalid_response_penalty": -0.25, "shared_reward": shared}
    script = {
        0: {V: ASKS_BOTH},
        1: {P0: [EMPTY, EMPTY], P1: [EMPTY, "Answer: q"]},
        2: {V: "Decision: accept"},
    }
    played = await play(settings(name, common, retries=1), script)
    assert played.saw(2, V)[1:-1] == [*said("Expert_2", "Answer: q")]
    first = 1.0 if shared or name == "mnip" else 0.0
    assert played.rewards == {P0: first - 0.25, P1: 1.0, V: 1.0}


async def test_after_a_silent_prover_the_verifier_of_adp_decides_alone():
    parameters = settings("adp", {"prover_invalid_response_penalty": -0.25})
    played = await play(parameters, {0: {P: EMPTY}, 1: {V: "Decision: reject"}})
    assert played.saw(1, V) == []
    assert played.rewards == {P: -0.25, V: -1.0}


async def test_a_prover_that_was_silent_is_asked_again_in_its_next_turn():
    parameters = bare_settings(
        "nip",
        protocol_common={"prover_invalid_response_penalty": -0.25},
        nip_protocol={"max_message_rounds": 5},
    )
    script = {
        0: {V: "Question: a?"},
        1: {P: EMPTY},
        2: {V: "Question: c?"},
        3: {P: EMPTY},
        4: {V: "Decision: reject"},
    }
    played = await play(parameters, script)
    assert played.saw(3, P) == [*said("Verifier", "Question: a?", "Question: c?")]
    assert played.rewards == {P: -0.5, V: -1.0}


@pytest.mark.parametrize(
    ("penalty", "script", "agent"),
    [
        (None, {0: {V: "Question: a?"}, 1: {P: EMPTY}}, P),
        (-0.25, {0: {V: EMPTY}}, V),  # a verifier is never silent
    ],
)
async def test_otherwise_no_valid_answer_fails_the_episode(penalty, script, agent):
    parameters = settings("nip", {"prover_invalid_response_penalty": penalty}, retries=1)
    played = await play(parameters, script)
    assert played.verdict[0] == "failed" and agent in played.episode["error"]
    assert played.rewards == {P: 0.0, V: 0.0}


# A forced guess


@pytest.mark.parametrize(
    ("forced", "y", "decision"),
    [
        ("zero", ACCEPT, REJECT),
        ("one", REJECT, ACCEPT),
        ("y", REJECT, REJECT),
        ("y", ACCEPT, ACCEPT),
    ],
)
@pytest.mark.parametrize("text", ["Question: a?", "Decision: accept", "Decision: reject"])
async def test_a_forced_guess_ends_the_game_at_the_verifiers_first_move(forced, y, decision, text):
    played = await play(settings("nip", {"force_guess": forced}), {0: {V: text}}, y=y)
    assert played.verdict == ("finished", 1, decision, 1.0 if decision == ACCEPT else -1.0)
    assert played.rewards == {P: float(decision == ACCEPT), V: 1.0 if decision == y else -1.0}


async def test_a_forced_guess_waits_for_the_first_round_in_which_verdicts_count():
    parameters = settings("nip", {"force_guess": "y"}, min_message_rounds=2)
    played = await play(parameters, nip_of_three("Question: c?"), y=REJECT)
    assert played.verdict == ("finished", 3, REJECT, -1.0)
    assert played.rewards == {P: 0.0, V: 1.0}
