"""Zero-knowledge games by scripted players: two conversations, an imitation, and their payment."""

from math import log

import pytest
from scripted_play import bare_settings, own, play, said, with_tokens
from stored_rows import typed_tables

from nip_core.evaluation.episode_transcripts import transcripts_from_tables
from nip_core.protocols import make_protocol

V, A, S = "verifier", "adversarial_verifier", "simulator"
P, P0, P1 = "prover", "prover0", "prover1"
REJECT, ACCEPT, NO_DECISION = 0, 1, 2
ACCEPTS, REJECTS = "Decision: accept", "Decision: reject"


def zero_knowledge(name, rounds=5, common=None, zk=None, retries=0, **own_settings):
    own_settings |= {"max_message_rounds": rounds} if name not in ("adp", "merlin_arthur") else {}
    groups = {f"{name}_protocol": own_settings} if own_settings else {}
    return bare_settings(
        name,
        retries=retries,
        protocol_common={"zero_knowledge": True, **(common or {})},
        zk_protocol=zk or {},
        **groups,
    )


def to_both(one, two):
    return f"To Verifier_1: {one}\nTo Verifier_2: {two}"


def seed_where(parameters, first):
    """A seed with which this one of the two verifiers is Verifier_1."""
    game = make_protocol(parameters)
    return next(s for s in range(64) if game.human_name(first, s) == "Verifier_1")


@pytest.mark.parametrize("first", [V, A])
async def test_zk_nip_round_by_round_until_the_adversary_has_decided_too(first):
    parameters = zero_knowledge("nip")
    names = {V: "Verifier_1", A: "Verifier_2"}
    if first == A:
        names = {V: "Verifier_2", A: "Verifier_1"}
    to = {V: f"To {names[V]}: x", A: f"To {names[A]}: y"}
    order = (V, A) if first == V else (A, V)
    script = {
        0: {V: "Question: a?", A: "Question: b?", S: "Question: b?"},
        1: {P: "\n".join(to[who] for who in order)},
        2: {V: ACCEPTS, A: "Question: why c?", S: "Question: why d?"},
        3: {P: "Answer: z"},
        4: {A: REJECTS, S: REJECTS},
    }
    played = await play(parameters, script, y=REJECT, seed=seed_where(parameters, first))
    asks = {V: said(names[V], "Question: a?"), A: said(names[A], "Question: b?")}
    assert played.saw(0, V) == played.saw(0, A) == played.saw(0, S) == []
    # The prover reads both conversations, Verifier_1's first, and never the simulator's.
    both = [message for who in order for message in asks[who]]
    assert played.saw(1, P) == both
    assert played.saw(2, V) == [own("Question: a?"), *said("Expert", to[V])]
    assert played.saw(2, A) == [own("Question: b?"), *said("Expert", to[A])]
    assert played.saw(2, S) == [own("Question: b?")]
    # The verifier has decided: only the other conversation goes on, in which all is one message.
    assert played.saw(3, P) == [*both, own(script[1][P]), *said(names[A], "Question: why c?")]
    assert played.saw(4, A) == [
        own("Question: b?"),
        *said("Expert", to[A]),
        own("Question: why c?"),
        *said("Expert", "Answer: z"),
        played.last_round_message,
    ]
    assert played.saw(4, S) == [
        own("Question: b?"),
        own("Question: why d?"),
        played.last_round_message,
    ]
    assert {(r, a): t for r, a, _, t, _, _ in played.recorded} == {
        (r, a): t for r, turns in script.items() for a, t in turns.items()
    }
    assert played.verdict == ("finished", 5, ACCEPT, 1.0)
    assert played.episode["protocol"] == "zk_nip"
    tables = typed_tables([played.episode], reversed(played.generations))
    [told] = transcripts_from_tables(tables.episodes, tables.generations, 1, 0)
    rows = tables.generations.select(["round", "agent"]).to_pylist()
    order_of_play = [(r, a) for r, turns in script.items() for a in turns]
    assert [(row["round"], row["agent"]) for row in rows] == order_of_play
    assert [(message.round, message.agent) for message in told.messages] == order_of_play
    # "why c?" and "why d?" are somewhat alike, the other turns quite.
    alike = played.rewards[S] - 2
    assert 0.4 < alike < 0.6
    assert played.rewards == {P: 1.0 + 2 + alike, V: -1.0, A: -2 - alike, S: 2 + alike}


async def test_the_adversarial_conversation_closes_when_its_verifier_has_decided():
    parameters = zero_knowledge("nip")
    script = {
        0: {V: "Question: a?", A: ACCEPTS, S: "Question: b?"},
        1: {P: "Answer: x"},
        2: {V: "Question: c?"},
        3: {P: "Answer: z"},
        4: {V: REJECTS},
    }
    played = await play(parameters, script, y=REJECT)
    name = played.game.protocol.human_name(V, 0)
    assert played.saw(1, P) == [*said(name, "Question: a?")]
    assert played.saw(2, V) == [own("Question: a?"), *said("Expert", "Answer: x")]
    assert played.verdict == ("finished", 5, REJECT, -1.0)
    assert played.rewards == {P: 0.0, V: 1.0, A: 0.0, S: 0.0}


@pytest.mark.parametrize(
    ("adversary", "simulator", "similarity"),
    [(ACCEPTS, ACCEPTS, 1.0), (ACCEPTS, REJECTS, 0.0), (ACCEPTS, "Question: a?", 0.0)],
)
async def test_both_decide_and_the_game_is_done(adversary, simulator, similarity):
    zk = {"simulator_reward_coefficient": 2.0, "aux_prover_reward_coefficient": 0.25}
    script = {
        0: {P: "To Verifier_1: x\nTo Verifier_2: x"},
        1: {V: ACCEPTS, A: adversary, S: simulator},
    }
    played = await play(zero_knowledge("adp", zk=zk), script)
    assert played.verdict == ("finished", 2, ACCEPT, 1.0)
    paid = 2.0 * similarity
    assert played.rewards == {P: 1.0 + 0.25 * paid, V: 1.0, A: -paid, S: paid}


async def test_an_adversary_that_never_decides_does_not_undo_the_verdict():
    ask = "Question: b?"
    script = {
        0: {V: ACCEPTS, A: ask, S: ask},
        1: {P: "Answer: x"},
        2: {A: ask, S: ask},
    }
    played = await play(zero_knowledge("nip", 3), script)
    assert played.verdict == ("finished", 3, ACCEPT, 1.0)
    assert played.rewards == {P: 1.0 + 2, V: 1.0, A: -2.0, S: 2.0}


async def test_a_verifier_that_never_decides_ends_the_game_without_a_verdict():
    script = {
        0: {V: "Question: a?", A: ACCEPTS, S: ACCEPTS},
        1: {P: "Answer: x"},
        2: {V: "Question: c?"},
    }
    played = await play(zero_knowledge("nip", 3), script)
    assert played.verdict == ("terminated", 3, NO_DECISION, None)
    assert played.rewards == {P: 1.0, V: -1.0, A: -1.0, S: 1.0}


async def test_a_simulator_that_has_decided_is_not_asked_again_and_earns_no_more():
    script = {
        0: {V: "Question: a?", A: "Question: b?", S: ACCEPTS},
        1: {P: to_both("x", "y")},
        2: {V: ACCEPTS, A: ACCEPTS},
    }
    played = await play(zero_knowledge("nip", 3), script)
    assert played.rewards == {P: 1.0, V: 1.0, A: 0.0, S: 0.0}


async def test_an_early_verdict_closes_no_conversation():
    script = {
        0: {V: ACCEPTS, A: ACCEPTS, S: ACCEPTS},
        1: {P: to_both("x", "y")},
        2: {V: REJECTS, A: REJECTS, S: ACCEPTS},
    }
    played = await play(zero_knowledge("nip", 3, min_message_rounds=2), script)
    assert played.saw(1, P) == []
    assert played.verdict == ("finished", 3, REJECT, -1.0)
    assert played.rewards == {P: 1.0, V: -1.0, A: -1.0, S: 1.0}


async def test_a_forced_guess_is_the_verifiers_and_ends_both_conversations():
    script = {0: {V: "Question: a?", A: "Question: b?", S: "Question: b?"}}
    played = await play(zero_knowledge("nip", common={"force_guess": "y"}), script, y=REJECT)
    assert played.verdict == ("finished", 1, REJECT, -1.0)
    assert played.rewards == {P: 1.0, V: 1.0, A: -1.0, S: 1.0}


async def test_a_prover_that_is_silent_after_the_verdict_still_pays_the_penalty():
    ask = "Question: b?"
    script = {0: {V: ACCEPTS, A: ask, S: ACCEPTS}, 1: {P: " "}, 2: {A: REJECTS}}
    common = {"prover_invalid_response_penalty": -0.25}
    played = await play(zero_knowledge("nip", 3, common=common), script)
    assert played.saw(2, A) == [own(ask), played.last_round_message]
    assert played.rewards == {P: 1.0 - 0.25, V: 1.0, A: 0.0, S: 0.0}


ONE, TWO = "Question for Expert_1:", "Question for Expert_2:"


@pytest.mark.parametrize("name", ["debate", "mnip"])
async def test_with_two_provers_both_conversations_keep_the_rules_of_the_protocol(name):
    parameters = zero_knowledge(name, 3, randomize_channel_order=False)
    seed = seed_where(parameters, V)
    script = {
        0: {
            V: f"{ONE} a?\n{TWO} b?",
            A: f"{ONE} c?\n{TWO} d?",
            S: f"{ONE} c?\n{TWO} e?",
        },
        1: {P0: to_both("p", "q"), P1: to_both("r", "s")},
        2: {V: ACCEPTS, A: ACCEPTS, S: ACCEPTS},
    }
    played = await play(parameters, script, seed=seed)
    v, a = "Verifier_1", "Verifier_2"
    if name == "debate":  # the other's channel first, in each conversation
        assert played.saw(1, P0) == [
            *said(v, f"{TWO} b?", f"{ONE} a?"),
            *said(a, f"{TWO} d?", f"{ONE} c?"),
        ]
        assert played.saw(1, P1) == [
            *said(v, f"{ONE} a?", f"{TWO} b?"),
            *said(a, f"{ONE} c?", f"{TWO} d?"),
        ]
    else:
        assert played.saw(1, P0) == [*said(v, f"{ONE} a?"), *said(a, f"{ONE} c?")]
        assert played.saw(1, P1) == [*said(v, f"{TWO} b?"), *said(a, f"{TWO} d?")]
    for verifier, header, first, second in [(V, v, "p", "r"), (A, a, "q", "s")]:
        assert played.saw(2, verifier) == [
            own(script[0][verifier]),
            *said("Expert_1", f"To {header}: {first}"),
            *said("Expert_2", f"To {header}: {second}"),
            played.last_round_message,
        ]
    assert played.saw(2, S) == [own(script[0][S]), played.last_round_message]
    sim = played.rewards[S]
    assert sim == pytest.approx(1.5)  # of the first turn one of two messages is the same
    first = 0.0 if name == "debate" else 1.0
    assert played.rewards == {P0: first + sim, P1: 1.0 + sim, V: 1.0, A: -sim, S: sim}


@pytest.mark.parametrize(("seed", "speaker"), [(0, P0), (1, P1)])
async def test_zk_merlin_arthur_has_one_anonymous_speaker(seed, speaker):
    script = {0: {speaker: to_both("x", "x")}, 1: {V: REJECTS, A: REJECTS, S: REJECTS}}
    played = await play(zero_knowledge("merlin_arthur"), script, seed=seed)
    for verifier in (V, A):
        name = played.game.protocol.human_name(verifier, seed)
        assert played.saw(1, verifier) == [*said(None, f"To {name}: x")]
    assert played.rewards == {P0: 1.0 + 1, P1: 1.0, V: -1.0, A: -1.0, S: 1.0}


def choice(**probabilities):
    return {token: log(p) for token, p in probabilities.items()}


async def test_similarity_by_the_probabilities_of_tokens():
    common_start = ("Yes", choice(Yes=0.5, No=0.5))
    imitation = ("Yes", choice(Yes=0.75, No=0.25))
    script = {
        0: {P: to_both("x", "x")},
        1: {
            V: ACCEPTS,
            A: with_tokens(common_start, ("!", choice(**{"!": 1.0}))),
            S: with_tokens(imitation, ("?", choice(**{"?": 0.75, "!": 0.25}))),
        },
    }
    parameters = zero_knowledge("adp", zk={"similarity": "log_probs", "top_logprobs": 5})
    played = await play(parameters, script)
    for agent in (A, S):
        body = played.bodies[1, agent, 0]
        assert (body["logprobs"], body["top_logprobs"]) == (True, 5)
    assert "logprobs" not in played.bodies[1, V, 0] and "logprobs" not in played.bodies[0, P, 0]
    # Shared mass: 0.5 + 0.25 of the first token, 0.25 of the second.
    sim = (0.75 + 0.25) / 2
    assert played.rewards == pytest.approx({P: 1.0 + sim, V: 1.0, A: -sim, S: sim})
    by_agent = {g["agent"]: g["token_logprobs"] for g in played.generations}
    assert by_agent[V] is None and by_agent[P] is None
    assert [entry["token"] for entry in by_agent[S]] == ["Yes", "?"]
    assert by_agent[A][0]["top"] == [
        {"token": "Yes", "logprob": log(0.5)},
        {"token": "No", "logprob": log(0.5)},
    ]
