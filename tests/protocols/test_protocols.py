"""Who speaks when and where, who sees what, what ends an episode, who is paid: by hand.

Pure functions only; `tests/rollouts/test_scripted_*.py` play the same with the engine.
"""

import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nip_core.errors import SettingsError
from nip_core.parameters import load_parameters
from nip_core.protocols import (
    ACCEPT,
    NEITHER,
    NO_DECISION,
    REJECT,
    AgentSpec,
    Move,
    Protocol,
    Turn,
    find_protocol,
    make_protocol,
    protocol_names,
)

V, P, P0, P1, P2 = "verifier", "prover", "prover0", "prover1", "prover2"
MAIN, C0, C1 = ("main",), ("prover0_channel",), ("prover1_channel",)


def parameters(name="nip", **more):
    return load_parameters({"run_name": "a", "dataset": "x", "interaction_protocol": name, **more})


def protocol(name="nip", **more):
    return make_protocol(parameters(name, **more))


def verdict(round_, decision, value=None):
    return [Turn(round_, V, "", Move(decision=decision, value=value))]


def message(round_, agent):
    return [Turn(round_, agent, "hm", Move(messages={"main": "hm"}))]


def play_order(game, seed=0):
    return [dict(game.active(r, seed)) for r in range(game.max_message_rounds)]


# Order of play.

BOTH = {V: C0 + C1}
AT_ONCE = {P0: C0, P1: C1}


@pytest.mark.parametrize(
    ("name", "common", "own", "cycle"),
    [
        ("nip", {}, {}, [{V: MAIN}, {P: MAIN}]),
        ("nip", {"verifier_first": False}, {}, [{P: MAIN}, {V: MAIN}]),
        *(
            (name, common, own, cycle)
            for name in ("debate", "mnip")
            for common, own, cycle in [
                ({}, {}, [BOTH, AT_ONCE]),
                ({}, {"prover0_first": False}, [BOTH, AT_ONCE]),
                ({"verifier_first": False}, {}, [AT_ONCE, BOTH]),
                ({}, {"sequential": True}, [BOTH, {P0: C0}, {P1: C1}]),
                (
                    {},
                    {"sequential": True, "prover0_first": False},
                    [BOTH, {P1: C1}, {P0: C0}],
                ),
                ({"verifier_first": False}, {"sequential": True}, [{P0: C0}, {P1: C1}, BOTH]),
                (
                    {"verifier_first": False},
                    {"sequential": True, "prover0_first": False},
                    [{P1: C1}, {P0: C0}, BOTH],
                ),
            ]
        ),
    ],
)
@pytest.mark.parametrize("turns", [1, 3])
def test_the_cycle_of_play_is_that_of_the_settings(name, common, own, cycle, turns):
    """`turns` of the verifier; its questions are all of them but the last."""
    verifier_first = common.get("verifier_first", True)
    rounds = len(cycle) * (turns - 1) + 1 if verifier_first else len(cycle) * turns
    game = protocol(
        name, protocol_common=common, **{f"{name}_protocol": {"max_message_rounds": rounds, **own}}
    )
    assert play_order(game) == (cycle * turns)[:rounds]
    assert game.max_questions(0) == turns - 1
    assert [game.is_last_turn(V, r, 0) for r in range(rounds)] == [False] * (rounds - 1) + [True]


@pytest.mark.parametrize(
    ("name", "seed", "order"),
    [
        ("adp", 0, [{P: MAIN}, {V: MAIN}]),
        ("solo_verifier", 0, [{V: MAIN}]),
        ("merlin_arthur", 0, [{P0: MAIN}, {V: MAIN}]),
        ("merlin_arthur", 7, [{P1: MAIN}, {V: MAIN}]),
    ],
)
def test_the_short_protocols_have_rounds_of_their_own(name, seed, order):
    own_rounds = {"nip_protocol": {"max_message_rounds": 5, "min_message_rounds": 5}}
    game = protocol(name, protocol_common={"verifier_first": True}, **own_rounds)
    assert play_order(game, seed) == order
    assert (game.min_message_rounds, game.max_questions(seed)) == (1, 0)


@pytest.mark.parametrize("rounds", [2, 4])
def test_in_refereed_both_provers_speak_in_each_round_but_the_verifier_s_last(rounds):
    game = protocol("refereed", refereed_protocol={"max_message_rounds": rounds})
    assert play_order(game) == [AT_ONCE] * (rounds - 1) + [BOTH]
    assert game.max_questions(0) == 0
    assert [game.channel_order(agent, 0, 0) for agent in (P0, P1, V)] == [C1 + C0, C0 + C1, C0 + C1]


def test_multi_channel_test_fills_its_channels_in_a_cycle_of_three():
    game = protocol("multi_channel_test")
    cycle = [
        {P1: MAIN, P0: ("prover_chat",)},
        {P2: MAIN, P0: ("prover0_verifier",), P1: ("prover_chat",)},
        {V: ("main", "prover0_verifier"), P2: ("prover_chat",)},
    ]
    assert play_order(game) == (cycle * 3)[:8]
    assert (game.min_message_rounds, game.max_message_rounds) == (2, 8)


def test_each_protocol_uses_its_own_round_limits():
    limits = {
        "nip_protocol": {"max_message_rounds": 3, "min_message_rounds": 2},
        "debate_protocol": {"max_message_rounds": 5, "min_message_rounds": 4},
        "mnip_protocol": {"max_message_rounds": 7, "min_message_rounds": 6},
    }
    for name in ("nip", "debate", "mnip"):
        game = protocol(name, **limits)
        own = limits[f"{name}_protocol"]
        assert game.max_message_rounds == own["max_message_rounds"]
        assert game.min_message_rounds == own["min_message_rounds"]


# Visibility.


@pytest.mark.parametrize(
    ("name", "sees"),
    [
        ("nip", {P: MAIN, V: MAIN}),
        ("adp", {P: MAIN, V: MAIN}),
        ("solo_verifier", {V: MAIN}),
        ("merlin_arthur", {P0: MAIN, P1: MAIN, V: MAIN}),
        ("debate", {P0: C0 + C1, P1: C0 + C1, V: C0 + C1}),
        ("mnip", {P0: C0, P1: C1, V: C0 + C1}),
        ("refereed", {P0: C0 + C1, P1: C0 + C1, V: C0 + C1}),
        (
            "multi_channel_test",
            {
                P0: ("main", "prover0_verifier", "prover_chat"),
                P1: ("main", "prover_chat"),
                P2: ("main", "prover_chat"),
                V: ("main", "prover0_verifier"),
            },
        ),
    ],
)
def test_agents_and_what_they_see(name, sees):
    game = protocol(name)
    assert {a: game.visible_channels(a) for a in game.agent_names} == sees
    assert game.agent_names == tuple(sees)


def test_a_prover_is_shown_the_others_channel_first_and_its_own_last():
    game = protocol("debate")
    assert game.channel_order(P0, 3, 5) == C1 + C0
    assert game.channel_order(P1, 3, 5) == C0 + C1


def test_the_verifier_is_shown_the_channels_in_an_order_drawn_per_round():
    game = protocol("debate")
    orders = [game.channel_order(V, r, 5) for r in range(40)]
    assert set(orders) == {C0 + C1, C1 + C0}
    assert orders == [protocol("debate").channel_order(V, r, 5) for r in range(40)]
    assert orders != [game.channel_order(V, r, 6) for r in range(40)]
    fixed = protocol("debate", debate_protocol={"randomize_channel_order": False})
    assert {fixed.channel_order(V, r, 5) for r in range(40)} == {C0 + C1}


# Rewards. A row: verdict, label, what the verifier and then each prover gets.

PAID = [
    ("nip", REJECT, 1, -1, {P: 0}),
    ("nip", REJECT, 0, 1, {P: 0}),
    ("nip", ACCEPT, 1, 1, {P: 1}),
    ("nip", ACCEPT, 0, -1, {P: 1}),
    ("adp", ACCEPT, 0, -1, {P: 1}),
    ("debate", REJECT, 1, -1, {P0: 1, P1: 0}),
    ("debate", ACCEPT, 1, 1, {P0: 0, P1: 1}),
    ("mnip", REJECT, 0, 1, {P0: 0, P1: 0}),
    ("mnip", ACCEPT, 0, -1, {P0: 1, P1: 1}),
    ("merlin_arthur", REJECT, 0, 1, {P0: 1, P1: 0}),
    ("merlin_arthur", ACCEPT, 0, -1, {P0: 0, P1: 1}),
    ("solo_verifier", ACCEPT, 1, 1, {}),
    ("multi_channel_test", ACCEPT, 1, 1, {P0: 0, P1: 0, P2: 0}),
]


def last_turn(game, seed=0):
    rounds = range(game.max_message_rounds)
    return max(r for r in rounds if V in game.active(r, seed))


@pytest.mark.parametrize(("name", "decision", "y", "verifier", "provers"), PAID)
@pytest.mark.parametrize("scale", [1, 3])
def test_a_verdict_pays_the_verifier_for_truth_and_provers_for_their_stance(
    name, decision, y, verifier, provers, scale
):
    amounts = {
        "verifier_reward": 1.0 * scale,
        "verifier_incorrect_penalty": -1.0 * scale,
        "prover_reward": 1.0 * scale,
    }
    game = protocol(name, protocol_common=amounts)
    r = last_turn(game)
    result = game.judge(r, 0, y, None, verdict(r, decision))
    assert (result.done, result.terminated, result.decision) == (True, False, decision)
    paid = {V: verifier, **provers}
    assert result.rewards == {agent: reward * scale for agent, reward in paid.items()}


@pytest.mark.parametrize(("name", "decision", "y", "verifier", "provers"), PAID)
def test_a_shared_reward_pays_every_prover_what_the_verifier_gets(
    name, decision, y, verifier, provers
):
    game = protocol(name, protocol_common={"shared_reward": True, "prover_reward": 7.0})
    r = last_turn(game)
    result = game.judge(r, 0, y, None, verdict(r, decision))
    paid = 0 if name == "multi_channel_test" else verifier
    assert result.rewards == {V: verifier, **dict.fromkeys(provers, paid)}


@pytest.mark.parametrize("shared", [False, True])
def test_the_silent_prover_of_merlin_arthur_is_paid_if_the_settings_say_so(shared):
    def paid(pay, seed):
        game = protocol(
            "merlin_arthur",
            merlin_arthur_protocol={"pay_silent_prover": pay},
            protocol_common={"shared_reward": shared},
        )
        return game.judge(1, seed, 1, None, verdict(1, ACCEPT)).rewards

    accept = {P0: 1.0 if shared else 0.0, P1: 1.0, V: 1.0}
    assert paid(True, 0) == paid(True, 1) == accept
    assert paid(False, 0) == accept | {P1: 0.0}  # prover0 spoke
    assert paid(False, 1) == accept | {P0: 0.0}


@pytest.mark.parametrize("name", ["nip", "adp", "mnip"])
@pytest.mark.parametrize("stance", [REJECT, ACCEPT])
@pytest.mark.parametrize("decision", [REJECT, ACCEPT])
def test_a_drawn_stance_decides_what_all_provers_are_paid_for(name, stance, decision):
    game = protocol(name, protocol_common={"randomize_prover_stance": True})
    r = last_turn(game)
    rewards = game.judge(r, 0, 1, stance, verdict(r, decision)).rewards
    assert {rewards[p] for p in game.provers} == {float(stance == decision)}


def test_no_verdict_in_the_last_round_ends_the_game_with_the_penalty():
    game = protocol(
        nip_protocol={"max_message_rounds": 3},
        protocol_common={"verifier_terminated_penalty": -0.75, "verifier_no_guess_reward": 0.25},
    )
    result = game.judge(2, 0, 1, None, message(2, V))
    assert (result.done, result.terminated, result.decision) == (False, True, NO_DECISION)
    assert result.rewards == {V: -0.75, P: 0.0}


def test_rounds_without_verdict_pay_for_no_guess_on_the_verifiers_turns_only():
    game = protocol(protocol_common={"verifier_no_guess_reward": 0.25})
    assert game.judge(0, 0, 1, None, message(0, V)).rewards == {V: 0.25, P: 0.0}
    assert game.judge(1, 0, 1, None, message(1, P)).rewards == {V: 0.0, P: 0.0}


def test_an_early_verdict_is_not_registered():
    game = protocol(nip_protocol={"max_message_rounds": 5, "min_message_rounds": 3})
    early = game.judge(0, 0, 1, None, verdict(0, ACCEPT))
    assert (early.done, early.terminated, early.decision) == (False, False, NO_DECISION)
    assert early.rewards == {V: 0.0, P: 0.0}
    assert game.judge(2, 0, 1, None, verdict(2, ACCEPT)).done


def test_only_the_verifier_decides():
    turns = [Turn(1, P, "", Move(decision=ACCEPT)), *message(0, V)]
    assert not protocol().judge(1, 0, 1, None, turns).done


@pytest.mark.parametrize(
    ("forced", "y", "decision"),
    [("zero", 1, REJECT), ("one", 0, ACCEPT), ("y", 0, REJECT), ("y", 1, ACCEPT)],
)
def test_a_forced_guess_replaces_the_verdict_and_what_is_paid_for_it(forced, y, decision):
    game = protocol(protocol_common={"force_guess": forced}, nip_protocol={"min_message_rounds": 2})
    for turns in (message(2, V), verdict(2, 1 - decision)):
        result = game.judge(2, 0, y, None, turns)
        assert (result.done, result.decision) == (True, decision)
        assert result.value == (1.0 if decision == ACCEPT else -1.0)
        assert result.rewards == {V: 1.0 if decision == y else -1.0, P: float(decision == ACCEPT)}
    assert not game.judge(0, 0, y, None, message(0, V)).done
    assert not game.judge(1, 0, y, None, message(1, P)).done


@pytest.mark.parametrize("neither", [None, -0.8])
def test_on_a_scale_the_verifier_is_paid_linearly_between_wrong_neither_and_right(neither):
    game = protocol(
        protocol_common={
            "verifier_decision_scale": "out_of_10",
            "verifier_reward": 2.0,
            "verifier_incorrect_penalty": -1.0,
            "verifier_neither_accept_nor_reject_reward": neither,
        }
    )
    middle = 0.5 if neither is None else neither
    for value, y, reward in [
        (1.0, 1, 2.0),
        (-1.0, 0, 2.0),
        (1.0, 0, -1.0),
        (0.0, 0, middle),
        (0.0, 1, middle),
        (0.5, 1, middle + 0.5 * (2.0 - middle)),
        (0.5, 0, middle + 0.5 * (-1.0 - middle)),
        (-0.2, 0, middle + 0.2 * (2.0 - middle)),
    ]:
        decision = NEITHER if value == 0 else ACCEPT if value > 0 else REJECT
        result = game.judge(2, 0, y, None, verdict(2, decision, value))
        assert (result.done, result.decision, result.value) == (True, decision, value)
        assert result.rewards[V] == pytest.approx(reward)
        assert result.rewards[P] == float(value > 0)


def test_a_silent_prover_pays_the_penalty_besides_what_the_round_pays():
    common = {"prover_invalid_response_penalty": -0.5, "verifier_no_guess_reward": 0.25}
    game = protocol("debate", protocol_common=common)
    rewards = game.judge(1, 0, 1, None, message(1, P0), silent={P1}).rewards
    assert rewards == {P0: 0.0, P1: -0.5, V: 0.0}
    rewards = game.judge(2, 0, 1, None, verdict(2, ACCEPT), silent={P1}).rewards
    assert rewards == {P0: 0.0, P1: 1.0 - 0.5, V: 1.0}


# The bounds of what an episode pays.


def test_mid_point_and_bounds_of_the_rewards():
    game = protocol()
    assert [f(V) for f in (game.min_reward, game.reward_mid_point, game.max_reward)] == [-1, 0, 1]
    assert [f(P) for f in (game.min_reward, game.reward_mid_point, game.max_reward)] == [0, 0.5, 1]
    shared = protocol(protocol_common={"shared_reward": True, "verifier_terminated_penalty": -3})
    for f, reward in [
        (shared.min_reward, -3),
        (shared.reward_mid_point, 0),
        (shared.max_reward, 1),
    ]:
        assert f(P) == f(V) == reward
    # Of the five turns the first can't bring a verdict; each without one pays.
    for reward, bounds in [(0.5, (-1 + 0.5, 1 + 4 * 0.5)), (-0.5, (-1 - 4 * 0.5, 1 - 0.5))]:
        waiting = protocol(
            nip_protocol={"max_message_rounds": 9, "min_message_rounds": 2},
            protocol_common={"verifier_no_guess_reward": reward},
        )
        assert (waiting.min_reward(V), waiting.max_reward(V)) == bounds
    unpaid = protocol("multi_channel_test")
    for f in (unpaid.min_reward, unpaid.reward_mid_point, unpaid.max_reward):
        assert f(P0) == 0


amounts = st.sampled_from([-2.0, -1.0, -0.25, 0.0, 0.5, 1.0, 3.0])


@st.composite
def games(draw):
    """A protocol with settings that make a game, whatever they pay."""
    name = draw(st.sampled_from(protocol_names()))
    common = {
        key: draw(amounts)
        for key in (
            "prover_reward",
            "verifier_reward",
            "verifier_incorrect_penalty",
            "verifier_terminated_penalty",
            "verifier_no_guess_reward",
        )
    }
    common["verifier_neither_accept_nor_reject_reward"] = draw(st.none() | amounts)
    common["prover_invalid_response_penalty"] = draw(st.sampled_from([None, -0.5]))
    common["verifier_first"] = draw(st.booleans())
    common["shared_reward"] = draw(st.booleans())
    common["force_guess"] = draw(st.sampled_from([None, None, "zero", "one", "y"]))
    common["verifier_decision_scale"] = draw(st.sampled_from(["accept_reject", "out_of_10"]))
    common["zero_knowledge"] = draw(st.booleans()) and find_protocol(name).can_be_zero_knowledge
    rounds = {"max_message_rounds": draw(st.integers(1, 13))}
    rounds["min_message_rounds"] = draw(st.integers(1, rounds["max_message_rounds"]))
    two = {
        **rounds,
        "sequential": draw(st.booleans()),
        "prover0_first": draw(st.booleans()),
        "randomize_channel_order": draw(st.booleans()),
    }
    try:
        return protocol(
            name,
            protocol_common=common,
            nip_protocol=rounds,
            debate_protocol=two,
            mnip_protocol=two,
            merlin_arthur_protocol={"pay_silent_prover": draw(st.booleans())},
            zk_protocol={
                "simulator_reward_coefficient": draw(amounts),
                "aux_prover_reward_coefficient": draw(amounts),
            },
        )
    except SettingsError as error:
        assert "the last turn to" in str(error) or "no turn in which a verdict counts" in str(error)
        return None


def random_turn(game, round_, agent, channels, random):
    scale = game.scale.values
    if game.may_decide(agent) and random.random() < 0.4:
        value = random.choice(list(scale.values()))
        decision = NEITHER if value == 0 else ACCEPT if value > 0 else REJECT
        return Turn(round_, agent, "", Move(decision=decision, value=value))
    texts = {channel: random.choice(["yes", "no", "why is that"]) for channel in channels}
    return Turn(round_, agent, "", Move(messages=texts))


@settings(max_examples=150, deadline=None)
@given(game=games(), seed=st.integers(0, 2**31 - 1), random=st.randoms(use_true_random=False))
def test_whatever_is_played_keeps_the_rules(game, seed, random):
    """Writers see where they write, one per channel; the end comes; pay is within its bounds."""
    if game is None:
        return
    y, stance = random.randrange(2), random.choice([None, 0, 1])
    turns, totals = [], dict.fromkeys(game.agent_names, 0.0)
    for r in range(game.max_message_rounds):
        movers = game.movers(r, seed, turns)
        written = [channel for channels in movers.values() for channel in channels]
        assert len(set(written)) == len(written)
        assert movers.keys() <= game.active(r, seed).keys()
        silent = set()
        now = []
        for agent, channels in movers.items():
            assert channels and set(channels) <= set(game.visible_channels(agent))
            assert len(set(game.headers(agent, channels, seed).values())) in (0, len(channels))
            penalty = game.common.prover_invalid_response_penalty
            if penalty and game.is_prover(agent) and random.random() < 0.3:
                silent.add(agent)
            else:
                now.append(random_turn(game, r, agent, channels, random))
        turns += now
        result = game.judge(r, seed, y, stance, turns, silent)
        assert result.rewards.keys() == totals.keys()
        for agent, reward in result.rewards.items():
            totals[agent] += reward
        assert not (result.done and result.terminated)
        assert (result.decision != NO_DECISION) == (result.value is not None) == result.done
        if result.done or result.terminated:
            break
    assert result.done or (result.terminated and game.is_last_round(r))
    if game.verifier_is_last:
        assert V in game.active(game.max_message_rounds - 1, seed)
    for agent, total in totals.items():
        assert game.min_reward(agent) - 1e-9 <= total <= game.max_reward(agent) + 1e-9, agent


# Settings that make no game.


@pytest.mark.parametrize(
    ("name", "more", "message"),
    [
        (
            "nip",
            {"nip_protocol": {"max_message_rounds": 8}},
            "nip_protocol.max_message_rounds: 8 rounds give the last turn to prover instead of the "
            "verifier, who could not decide then; use 7 or 9",
        ),
        (
            "nip",
            {"nip_protocol": {"max_message_rounds": 64}},
            "nip_protocol.max_message_rounds: 64 rounds give the last turn to prover instead of "
            "the verifier, who could not decide then; use 63 or 61",
        ),
        (
            "nip",
            {"protocol_common": {"verifier_first": False}},
            "nip_protocol.max_message_rounds: 9 rounds give the last turn to prover instead of the "
            "verifier, who could not decide then; use 8 or 10",
        ),
        (
            "debate",
            {"debate_protocol": {"sequential": True}},
            "debate_protocol.max_message_rounds: 9 rounds give the last turn to prover1 instead of "
            "the verifier, who could not decide then; use 10 or 7",
        ),
        (
            "mnip",
            {"mnip_protocol": {"max_message_rounds": 4, "min_message_rounds": 4}},
            "mnip_protocol.max_message_rounds: with 4 the verifier has no turn in which a verdict "
            "counts; use at least 5",
        ),
        (
            "mnip",
            {"mnip_protocol": {"max_message_rounds": 3, "min_message_rounds": 4}},
            "mnip_protocol.min_message_rounds: 4 is more than max_message_rounds, 3, so no verdict "
            "could count; use at most 3",
        ),
        *(
            (
                name,
                {"protocol_common": {"randomize_prover_stance": True}},
                f"protocol_common.randomize_prover_stance: in protocol {name!r} {reason}; set it "
                "to false",
            )
            for name, reason in [
                ("debate", "each prover's verdict is fixed"),
                ("merlin_arthur", "each prover's verdict is fixed"),
                ("multi_channel_test", "each prover's verdict is fixed"),
                ("solo_verifier", "there is no prover"),
            ]
        ),
        *(
            (
                name,
                {"protocol_common": {"zero_knowledge": True}},
                f"protocol_common.zero_knowledge: protocol {name!r} has no zero-knowledge variant; "
                "set it to false or use another protocol",
            )
            for name in ("solo_verifier", "multi_channel_test")
        ),
        (
            "nip",
            {
                "protocol_common": {"zero_knowledge": True},
                "zk_protocol": {"similarity": "log_probs"},
                "agents": {"simulator": {"is_random": True}},
            },
            "zk_protocol.similarity: agents.simulator is random and gives no log-probabilities; "
            "use text",
        ),
    ],
)
def test_settings_that_make_no_game_are_refused_with_what_to_use(name, more, message):
    with pytest.raises(SettingsError) as refused:
        parameters(name, **more)
    assert str(refused.value) == f"configuration: {message}"


def variant(**changes):
    """A protocol of two rounds, with something changed."""
    data = {
        "name": "own",
        "agents": {P: AgentSpec("Expert", stance=1), V: AgentSpec("Verifier", decides=True)},
        "max_message_rounds": 2,
        "active": lambda self, round_, seed: {P if round_ == 0 else V: MAIN},
        **changes,
    }
    return type("Own", (Protocol,), data)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"agents": {P: AgentSpec("Expert")}}, "no agent 'verifier' that decides"),
        ({"agents": {V: AgentSpec("Verifier")}}, "no agent 'verifier' that decides"),
        ({"hidden": {(P, "main")}}, "round 0: prover writes to main, which it can't see"),
        ({"hidden": {("verifer", "main")}}, "hidden has ('verifer', 'main'), and there is no"),
        ({"hidden": {(P, "mane")}}, "there is no 'mane'; there are prover, verifier, main"),
        ({"active": lambda *_: {}}, "round 0: it is nobody's turn"),
        ({"active": lambda *_: {"judge": MAIN}}, "round 0: judge is not among its agents"),
        ({"active": lambda *_: {P: MAIN, V: MAIN}}, "verifier and prover both write to main"),
        (
            {"channels": ("a", "b"), "active": lambda *_: {V: ("a", "b")}},
            "verifier writes to a, b without a header of its own for each",
        ),
        ({"max_message_rounds": 1}, "1 the verifier has no turn in which a verdict counts; give"),
        ({"max_message_rounds": 3, "active": lambda _, r, __: {(P, V)[r % 2]: MAIN}}, "last turn"),
        ({"active": lambda _, r, seed: {P if r == 0 or seed else V: MAIN}}, "no turn in which"),
    ],
)
def test_a_class_that_makes_no_game_is_refused(changes, message):
    variant()(parameters()).check()
    with pytest.raises(ValueError) as refused:
        variant(**changes)(parameters()).check()
    assert message in str(refused.value)


def test_what_a_class_raises_is_told_with_its_file_and_line(tmp_path):
    (tmp_path / "short.py").write_text(
        "from nip_core.protocols import AgentSpec, Protocol\n"
        "class Short(Protocol):\n"
        "    name = 'short'\n"
        "    agents = {'verifier': AgentSpec('Verifier', decides=True)}\n"
        "    max_message_rounds = 2\n"
        "    def active(self, round_, seed):\n"
        "        return {('verifier',)[round_]: self.channels}\n"
    )
    with pytest.raises(SettingsError) as refused:
        parameters(f"{tmp_path}/short.py:Short")
    expected = f"protocol 'short' raised IndexError: tuple index out of range ({tmp_path}/short.py, line 7)"
    assert expected in str(refused.value)
    with pytest.raises(SettingsError, match="it has no 'Shrt'; it defines Short"):
        parameters(f"{tmp_path}/short.py:Shrt")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("chess", "there is no protocol 'chess'; there are adp, debate, merlin_arthur, mnip"),
        ("scales", "there is no protocol 'scales'"),
        ("no_such_package:Chess", "can't be imported (No module named 'no_such_package')"),
        ("nip_core.protocols.nip:Chess", "can't be imported"),
        ("nul\0.py:Chess", "can't be imported (ValueError: embedded null byte)"),
        (f"{'a' * 300}.py:Chess", "File name too long"),
        ("pathlib:Path", "'pathlib:Path' is not a subclass of nip_core.protocols.Protocol"),
    ],
)
def test_a_protocol_that_is_none_is_refused(name, message):
    with pytest.raises(SettingsError) as refused:
        parameters(name)
    assert message in str(refused.value)


def test_a_protocol_in_a_pipe_is_refused_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "chess.py")
    with pytest.raises(SettingsError, match=r"can't be imported \(.*chess\.py is no file\)"):
        parameters(f"{tmp_path}/chess.py:Chess")


def test_the_protocols_are_those_of_the_settings_page():
    assert protocol_names() == (
        "adp",
        "debate",
        "merlin_arthur",
        "mnip",
        "multi_channel_test",
        "nip",
        "refereed",
        "solo_verifier",
    )
    for name in protocol_names():
        assert find_protocol(name).name == name
    assert find_protocol("nip_core.protocols.nip:NipProtocol") is find_protocol("nip")
