"""Every protocol played on the engine by scripted players, round by round.

Checked in each: who is asked, every message that it sees, what is recorded and who is paid.
"""

import pytest
from scripted_play import bare_settings, own, play, said

V, P, P0, P1, P2 = "verifier", "prover", "prover0", "prover1", "prover2"
REJECT, ACCEPT, NO_DECISION = 0, 1, 2

expert, expert_1, expert_2 = "Expert", "Expert_1", "Expert_2"
verifier = "Verifier"


def texts(played):
    """Round, agent and text of the recorded answers; each the first and valid."""
    assert all(attempt == 0 and valid for _, _, attempt, _, _, valid in played.recorded)
    return [(round_, agent, text) for round_, agent, _, text, _, _ in played.recorded]


def script_texts(script, played):
    return [(r, agent, script[r][agent]) for r, agent in played.asked]


# nip, adp, solo_verifier


async def test_nip_with_the_verifier_first():
    script = {
        0: {V: "Question: a?"},
        1: {P: "Answer: b"},
        2: {V: "Question: c?"},
        3: {P: "Answer: d"},
        4: {V: "Decision: accept"},
    }
    played = await play(bare_settings("nip", nip_protocol={"max_message_rounds": 5}), script, y=0)
    assert played.asked == [(0, V), (1, P), (2, V), (3, P), (4, V)]
    assert played.saw(0, V) == []
    assert played.saw(1, P) == [*said(verifier, "Question: a?")]
    assert played.saw(2, V) == [own("Question: a?"), *said(expert, "Answer: b")]
    assert played.saw(3, P) == [
        *said(verifier, "Question: a?"),
        own("Answer: b"),
        *said(verifier, "Question: c?"),
    ]
    assert played.saw(4, V) == [
        own("Question: a?"),
        *said(expert, "Answer: b"),
        own("Question: c?"),
        *said(expert, "Answer: d"),
        played.last_round_message,
    ]
    assert texts(played) == script_texts(script, played)
    assert [decision for *_, decision, _ in played.recorded] == [2, 2, 2, 2, ACCEPT]
    assert played.verdict == ("finished", 5, ACCEPT, 1.0)
    assert played.rewards == {P: 1.0, V: -1.0}
    assert played.episode["protocol"] == "nip"


async def test_nip_with_the_prover_first():
    script = {
        0: {P: "Answer: a"},
        1: {V: "Question: b?"},
        2: {P: "Answer: c"},
        3: {V: "Decision: reject"},
    }
    played = await play(
        bare_settings(
            "nip",
            protocol_common={"verifier_first": False},
            nip_protocol={"max_message_rounds": 4},
        ),
        script,
    )
    assert played.saw(0, P) == []
    assert played.saw(1, V) == [*said(expert, "Answer: a")]
    assert played.saw(2, P) == [own("Answer: a"), *said(verifier, "Question: b?")]
    assert played.saw(3, V)[-1] == played.last_round_message
    assert played.verdict == ("finished", 4, REJECT, -1.0)
    assert played.rewards == {P: 0.0, V: -1.0}


async def test_nip_ends_with_the_verdict_and_the_prover_is_not_asked_again():
    played = await play(
        bare_settings("nip"),
        {0: {V: "Question: a?"}, 1: {P: "Answer: b"}, 2: {V: "Decision: reject"}},
        y=0,
    )
    assert played.verdict == ("finished", 3, REJECT, -1.0)
    assert played.rewards == {P: 0.0, V: 1.0}


async def test_an_early_verdict_says_nothing_and_the_game_goes_on():
    script = {
        0: {V: "Decision: accept"},
        1: {P: "Answer: b"},
        2: {V: "Question: c?"},
        3: {P: "Answer: d"},
        4: {V: "Decision: reject"},
    }
    played = await play(
        bare_settings(
            "nip",
            nip_protocol={"max_message_rounds": 5, "min_message_rounds": 4},
            protocol_common={"verifier_no_guess_reward": 0.25},
        ),
        script,
    )
    assert played.saw(1, P) == []
    assert played.saw(3, P) == [own("Answer: b"), *said(verifier, "Question: c?")]
    assert played.saw(4, V) == [
        own("Decision: accept"),
        *said(expert, "Answer: b"),
        own("Question: c?"),
        *said(expert, "Answer: d"),
        played.last_round_message,
    ]
    assert texts(played) == script_texts(script, played)
    assert [decision for *_, decision, _ in played.recorded] == [ACCEPT, 2, 2, 2, REJECT]
    assert played.verdict == ("finished", 5, REJECT, -1.0)
    assert played.rewards == {P: 0.0, V: -1.0 + 2 * 0.25}


async def test_without_a_verdict_the_rounds_run_out():
    played = await play(
        bare_settings(
            "nip",
            nip_protocol={"max_message_rounds": 3},
            protocol_common={
                "verifier_terminated_penalty": -0.75,
                "verifier_no_guess_reward": 0.25,
            },
        ),
        {0: {V: "Question: a?"}, 1: {P: "Decision: accept"}, 2: {V: "Question: c?"}},
    )
    assert played.recorded[1] == (1, P, 0, "Decision: accept", NO_DECISION, True)
    assert played.verdict == ("terminated", 3, NO_DECISION, None)
    assert played.rewards == {P: 0.0, V: -0.75 + 0.25}


async def test_adp_is_one_message_and_a_verdict():
    script = {0: {P: "Answer: a"}, 1: {V: "Decision: accept"}}
    played = await play(bare_settings("adp"), script)
    assert played.saw(0, P) == []
    assert played.saw(1, V) == [*said(expert, "Answer: a")]
    assert texts(played) == script_texts(script, played)
    assert played.verdict == ("finished", 2, ACCEPT, 1.0)
    assert played.rewards == {P: 1.0, V: 1.0}


async def test_adp_without_a_verdict_is_terminated():
    played = await play(bare_settings("adp"), {0: {P: "Answer: a"}, 1: {V: "Hm."}})
    assert played.verdict == ("terminated", 2, NO_DECISION, None)
    assert played.rewards == {P: 0.0, V: -1.0}


@pytest.mark.parametrize(
    ("text", "verdict", "reward"),
    [
        ("Decision: reject", ("finished", 1, REJECT, -1.0), 1.0),
        ("Hm.", ("terminated", 1, NO_DECISION, None), -1.0),
    ],
)
async def test_the_solo_verifier_decides_at_once(text, verdict, reward):
    played = await play(bare_settings("solo_verifier"), {0: {V: text}}, y=0)
    assert played.saw(0, V) == []
    assert played.verdict == verdict
    assert played.rewards == {V: reward}


# debate and mnip


Q1, Q2 = "Question for Expert_1: one?", "Question for Expert_2: two?"
Q3, Q4 = "Question for Expert_1: three?", "Question for Expert_2: four?"
AT_ONCE = {
    0: {V: f"{Q1}\n{Q2}"},
    1: {P0: "Answer: p", P1: "Answer: q"},
    2: {V: f"{Q4}\n{Q3}"},  # in any order
    3: {P0: "Answer: r", P1: "Answer: s"},
    4: {V: "Decision: reject"},
}


def two_provers(name, rounds=5, common=None, **own_settings):
    return bare_settings(
        name,
        protocol_common=common or {},
        **{f"{name}_protocol": {"max_message_rounds": rounds, **own_settings}},
    )


async def test_debate_in_the_same_round_no_prover_sees_the_others_message():
    played = await play(two_provers("debate", randomize_channel_order=False), AT_ONCE, y=0)
    assert played.asked == [(0, V), (1, P0), (1, P1), (2, V), (3, P0), (3, P1), (4, V)]
    assert played.saw(0, V) == []
    # Each prover reads both channels, the other's first and its own last.
    assert played.saw(1, P0) == [*said(verifier, Q2, Q1)]
    assert played.saw(1, P1) == [*said(verifier, Q1, Q2)]
    assert played.saw(2, V) == [
        own(f"{Q1}\n{Q2}"),
        *said(expert_1, "Answer: p"),
        *said(expert_2, "Answer: q"),
    ]
    assert played.saw(3, P0) == [
        *said(verifier, Q2, Q1),
        own("Answer: p"),
        *said(expert_2, "Answer: q"),
        *said(verifier, Q4, Q3),
    ]
    assert played.saw(3, P1) == [
        *said(verifier, Q1, Q2),
        own("Answer: q"),
        *said(expert_1, "Answer: p"),
        *said(verifier, Q3, Q4),
    ]
    assert played.saw(4, V) == [
        own(f"{Q1}\n{Q2}"),
        *said(expert_1, "Answer: p"),
        *said(expert_2, "Answer: q"),
        own(f"{Q4}\n{Q3}"),
        *said(expert_1, "Answer: r"),
        *said(expert_2, "Answer: s"),
        played.last_round_message,
    ]
    assert texts(played) == script_texts(AT_ONCE, played)
    assert played.verdict == ("finished", 5, REJECT, -1.0)
    assert played.rewards == {P0: 1.0, P1: 0.0, V: 1.0}


async def test_mnip_provers_never_see_the_others_channel():
    played = await play(
        two_provers("mnip", randomize_channel_order=False),
        {**AT_ONCE, 4: {V: "Decision: accept"}},
        y=0,
    )
    assert played.saw(1, P0) == [*said(verifier, Q1)]
    assert played.saw(1, P1) == [*said(verifier, Q2)]
    assert played.saw(3, P0) == [*said(verifier, Q1), own("Answer: p"), *said(verifier, Q3)]
    assert played.saw(3, P1) == [*said(verifier, Q2), own("Answer: q"), *said(verifier, Q4)]
    assert played.saw(4, V)[1:3] == [*said(expert_1, "Answer: p"), *said(expert_2, "Answer: q")]
    assert played.verdict == ("finished", 5, ACCEPT, 1.0)
    assert played.rewards == {P0: 1.0, P1: 1.0, V: -1.0}  # both provers, for acceptance


@pytest.mark.parametrize("name", ["debate", "mnip"])
@pytest.mark.parametrize("first", [P0, P1])
async def test_a_sequential_prover_sees_the_whole_earlier_history(name, first):
    second = P1 if first == P0 else P0
    script = {
        0: {V: f"{Q1}\n{Q2}"},
        1: {first: "Answer: first"},
        2: {second: "Answer: second"},
        3: {V: f"{Q3}\n{Q4}"},
        4: {first: "Answer: third"},
        5: {second: "Answer: fourth"},
        6: {V: "Decision: accept"},
    }
    played = await play(
        two_provers(
            name, 7, sequential=True, prover0_first=first == P0, randomize_channel_order=False
        ),
        script,
    )
    assert played.asked == [
        (0, V), (1, first), (2, second), (3, V), (4, first), (5, second), (6, V)
    ]  # fmt: skip
    human = {P0: expert_1, P1: expert_2}
    asked_first, asked_then = {P0: Q1, P1: Q2}, {P0: Q3, P1: Q4}
    if name == "debate":
        assert played.saw(4, first) == [
            *said(verifier, asked_first[second], asked_first[first]),
            own("Answer: first"),
            *said(human[second], "Answer: second"),
            *said(verifier, asked_then[second], asked_then[first]),
        ]
        assert played.saw(5, second) == [
            *said(verifier, asked_first[first], asked_first[second]),
            *said(human[first], "Answer: first"),
            own("Answer: second"),
            *said(verifier, asked_then[first], asked_then[second]),
            *said(human[first], "Answer: third"),
        ]
        assert played.rewards == {P0: 0.0, P1: 1.0, V: 1.0}
    else:
        assert played.saw(4, first) == [
            *said(verifier, asked_first[first]),
            own("Answer: first"),
            *said(verifier, asked_then[first]),
        ]
        assert played.saw(5, second) == [
            *said(verifier, asked_first[second]),
            own("Answer: second"),
            *said(verifier, asked_then[second]),
        ]
        assert played.rewards == {P0: 1.0, P1: 1.0, V: 1.0}
    assert played.saw(6, V) == [
        own(f"{Q1}\n{Q2}"),
        *said(human[first], "Answer: first"),
        *said(human[second], "Answer: second"),
        own(f"{Q3}\n{Q4}"),
        *said(human[first], "Answer: third"),
        *said(human[second], "Answer: fourth"),
        played.last_round_message,
    ]
    assert texts(played) == script_texts(script, played)


@pytest.mark.parametrize("name", ["debate", "mnip"])
async def test_two_provers_who_speak_before_the_verifier(name):
    script = {0: {P0: "Answer: p", P1: "Answer: q"}, 1: {V: "Decision: accept"}}
    played = await play(
        two_provers(name, 2, {"verifier_first": False}, randomize_channel_order=False), script
    )
    assert played.saw(0, P0) == played.saw(0, P1) == []
    assert played.saw(1, V) == [
        *said(expert_1, "Answer: p"),
        *said(expert_2, "Answer: q"),
        played.last_round_message,
    ]
    assert played.rewards == {P0: float(name == "mnip"), P1: 1.0, V: 1.0}


@pytest.mark.parametrize("name", ["debate", "mnip"])
async def test_two_sequential_provers_who_speak_before_the_verifier(name):
    script = {0: {P1: "Answer: q"}, 1: {P0: "Answer: p"}, 2: {V: "Decision: reject"}}
    played = await play(
        two_provers(name, 3, {"verifier_first": False}, sequential=True, prover0_first=False),
        script,
    )
    assert played.saw(1, P0) == ([*said(expert_2, "Answer: q")] if name == "debate" else [])
    assert played.saw(2, V) == [
        *said(expert_2, "Answer: q"),
        *said(expert_1, "Answer: p"),
        played.last_round_message,
    ]
    assert played.rewards == {P0: float(name == "debate"), P1: 0.0, V: -1.0}


@pytest.mark.parametrize("name", ["debate", "mnip"])
async def test_the_order_in_which_the_verifier_sees_the_channels_is_drawn_per_round(name):
    """The same for the same seed, both orders over seeds and rounds, and only for the verifier."""
    orders = set()
    for seed in range(12):
        parameters = two_provers(name, randomize_channel_order=True)
        plays = [await play(parameters, AT_ONCE, seed=seed) for _ in range(2)]
        chats = [p.saw(4, V) for p in plays]
        assert chats[0] == chats[1]
        rounds = [tuple(text for *_, text in chats[0][i : i + 2]) for i in (1, 4)]
        assert [sorted(r) for r in rounds] == [
            ["Answer: p", "Answer: q"],
            ["Answer: r", "Answer: s"],
        ]
        orders.add(tuple(r == tuple(sorted(r)) for r in rounds))
        assert plays[0].saw(3, P1)[-1] == said(verifier, Q4)[0]
    assert len(orders) == 4


@pytest.mark.parametrize("name", ["debate", "mnip"])
async def test_a_verifier_that_asks_only_one_of_two_is_asked_again(name):
    settings = bare_settings(name, retries=1, **{f"{name}_protocol": {"max_message_rounds": 3}})
    script = {
        0: {V: [Q1, f"{Q1}\n{Q2}"]},
        1: {P0: "Answer: p", P1: "Answer: q"},
        2: {V: "Decision: accept"},
    }
    played = await play(settings, script)
    assert played.saw(0, V, 0) == played.saw(0, V, 1) == []
    assert played.recorded[:2] == [
        (0, V, 0, Q1, NO_DECISION, False),
        (0, V, 1, f"{Q1}\n{Q2}", NO_DECISION, True),
    ]
    assert played.verdict == ("finished", 3, ACCEPT, 1.0)


@pytest.mark.parametrize("name", ["debate", "mnip"])
async def test_two_provers_may_say_the_same(name):
    script = {0: {V: f"{Q1}\n{Q2}"}, 1: {P0: "Yes", P1: "Yes"}, 2: {V: "Decision: accept"}}
    played = await play(two_provers(name, 3), script)
    assert sorted(played.saw(2, V)[1:3]) == [*said(expert_1, "Yes"), *said(expert_2, "Yes")]


# merlin_arthur


@pytest.mark.parametrize(("seed", "speaker"), [(6, P0), (7, P1)])
@pytest.mark.parametrize(("decision", "word"), [(REJECT, "reject"), (ACCEPT, "accept")])
async def test_in_merlin_arthur_one_prover_speaks_and_nobody_learns_which(
    seed, speaker, decision, word
):
    script = {0: {speaker: "Answer: a"}, 1: {V: f"Decision: {word}"}}
    played = await play(bare_settings("merlin_arthur"), script, seed=seed)
    assert played.saw(0, speaker) == []
    assert played.saw(1, V) == [*said(None, "Answer: a")]
    assert "name" not in played.bodies[1, V, 0]["messages"][1]
    assert texts(played) == script_texts(script, played)
    value = 1.0 if decision == ACCEPT else -1.0
    assert played.verdict == ("finished", 2, decision, value)
    assert played.rewards == {
        P0: float(decision == REJECT),
        P1: float(decision == ACCEPT),
        V: value,
    }


async def test_in_merlin_arthur_only_the_speaker_is_paid_if_the_settings_say_so():
    settings = bare_settings("merlin_arthur", merlin_arthur_protocol={"pay_silent_prover": False})
    for seed, speaker in [(6, P0), (7, P1)]:
        script = {0: {speaker: "Answer: a"}, 1: {V: "Decision: reject"}}
        played = await play(settings, script, seed=seed)
        assert played.rewards == {P0: float(speaker == P0), P1: 0.0, V: -1.0}


# multi_channel_test


async def test_multi_channel_test_over_all_its_channels():
    to_all, to_one = "To everyone: v", "To Expert_1 alone: w"
    cycle = [
        {P0: "a chat", P1: "a main"},
        {P0: "b alone", P1: "b chat", P2: "b main"},
        {V: f"{to_one}\n{to_all}", P2: "c chat"},
    ]
    script = {
        **dict(enumerate(cycle)),
        3: {P0: "d chat", P1: "d main"},
        4: {P0: "e alone", P1: "e chat", P2: "e main"},
        5: {V: "Decision: accept", P2: "f chat"},
    }
    played = await play(bare_settings("multi_channel_test"), script)
    names = {P0: "Expert_1", P1: "Expert_2", P2: "Expert_3"}

    def by(agent, *said_texts):
        return [*said(names[agent], *said_texts)]

    # Round 0 is over; channels in the order main, prover0_verifier, prover_chat.
    assert played.saw(1, P0) == [own("a chat"), *by(P1, "a main")]
    assert played.saw(1, P1) == [own("a main"), *by(P0, "a chat")]
    assert played.saw(1, P2) == [*by(P1, "a main"), *by(P0, "a chat")]
    assert played.saw(2, V) == [*by(P1, "a main"), *by(P2, "b main"), *by(P0, "b alone")]
    assert played.saw(3, P0) == [
        own("a chat"),
        *by(P1, "a main"),
        own("b alone"),
        *by(P2, "b main"),
        *by(P1, "b chat"),
        *said(verifier, to_all, to_one),
        *by(P2, "c chat"),
    ]
    assert played.saw(3, P1) == [
        own("a main"),
        *by(P0, "a chat"),
        own("b chat"),
        *by(P2, "b main"),
        *said(verifier, to_all),
        *by(P2, "c chat"),
    ]
    assert played.saw(5, V)[-4:] == [
        *by(P1, "d main"),
        *by(P2, "e main"),
        *by(P0, "e alone"),
        played.last_round_message,
    ]
    assert texts(played) == script_texts(script, played)
    assert played.verdict == ("finished", 6, ACCEPT, 1.0)
    assert played.rewards == {P0: 0.0, P1: 0.0, P2: 0.0, V: 1.0}


async def test_multi_channel_test_goes_on_for_two_rounds_after_the_verifiers_last_turn():
    talk = {
        r: {agent: f"{r} {agent}" for agent in agents}
        for r, agents in enumerate([(P0, P1), (P0, P1, P2), (P2,)] * 2 + [(P0, P1), (P0, P1, P2)])
    }
    asks = "To everyone: v\nTo Expert_1 alone: w"
    for r in (2, 5):
        talk[r][V] = asks
    played = await play(bare_settings("multi_channel_test"), talk)
    assert played.verdict == ("terminated", 8, NO_DECISION, None)
    assert played.rewards == {P0: 0.0, P1: 0.0, P2: 0.0, V: -1.0}
