"""Which rollouts become examples, and that an example is what was asked plus what was answered."""

from collections import Counter
from itertools import pairwise

import pytest
from handmade import ACCEPT, REJECT, Rollouts, by_key, choice, choose, make_game
from hypothesis import given, settings
from hypothesis import strategies as st
from playing import agent_of, play, problems
from varied_games import GAMES, reply

from nip_core.errors import StageError
from nip_core.game.answer_rows import AnswerPlace
from nip_core.parameters import PureTextEiParameters, TextRlParameters, load_parameters
from nip_core.trainers.expert_iteration import (
    find_never_chosen,
    list_price_warnings,
    replacement_proportion,
    select,
)


def six_episodes():
    """Every way an episode can end."""
    asks, says = "Question: a?", "Answer: b"
    return (
        Rollouts()
        .add(0, 1, [asks, says, ACCEPT], (1.0, 1.0), invalid=[0, 1])
        .add(1, 0, [asks, says, ACCEPT], (1.0, -1.0))
        .add(2, 0, [asks, says, REJECT], (0.0, 1.0))
        .add(3, 1, [asks, says, REJECT], (0.0, -1.0))
        .add(4, 1, [asks, says, "Question: c?"], (0.0, -1.0), outcome="terminated")
        .add(5, 1, [asks], (0.0, 0.0), outcome="failed")
    )


def many(count, run="a", iteration=0):
    """Episodes with all labels, verdicts and rewards."""
    rollouts = Rollouts(run)
    for i in range(count):
        accepts, y = (i // 2) % 3 > 0, i % 2
        rewards = (float(accepts), 1.0 if accepts == y else -1.0)
        texts = [f"Question: {i}?", f"Answer: {i}", ACCEPT if accepts else REJECT]
        rollouts.add(i, y, texts, rewards, iteration=iteration, invalid=[1] if i % 5 == 0 else [])
    return rollouts


def chosen(examples):
    return sorted((e.agent, e.problem, e.reason) for e in examples)


# Selection, by hand


def test_threshold_keeps_for_each_agent_the_episodes_that_paid_it():
    game, tables = make_game(), six_episodes().tables()
    assert chosen(choose(game, "verifier", 0, *tables)) == [
        ("verifier", "p0", "threshold"),
        ("verifier", "p2", "threshold"),
    ]
    assert chosen(choose(game, "prover", 0, *tables)) == [
        ("prover", "p0", "threshold"),
        ("prover", "p1", "threshold"),
    ]


def test_a_shared_group_gets_the_examples_of_its_agents_together():
    agents = {"_default": {"shared_model_group": "all"}}
    tables = six_episodes().tables()
    assert chosen(choose(make_game(agents=agents), "all", 0, *tables)) == [
        ("prover", "p0", "threshold"),
        ("prover", "p1", "threshold"),
        ("verifier", "p0", "threshold"),
        ("verifier", "p2", "threshold"),
    ]


def test_the_examples_come_in_the_order_of_play():
    agents = {"_default": {"shared_model_group": "all"}}
    tables = six_episodes().tables(shuffle_seed=1)
    played = tables[0]["key"].to_pylist()
    examples = choose(make_game(agents=agents), "all", 0, *tables)
    places = [played.index(example.episode) for example in examples]
    assert places == sorted(places) and len(set(places)) > 2


def test_the_examples_come_neither_agent_by_agent_nor_verdict_by_verdict():
    agents = {"_default": {"shared_model_group": "all"}}
    examples = choose(make_game(agents=agents), "all", 0, *many(60).tables())

    def changes(values):
        return sum(a != b for a, b in pairwise(values))

    verifiers = [e for e in examples if e.agent == "verifier"]
    assert changes([e.agent for e in examples]) > len(examples) / 4
    assert changes([e.messages[-1]["content"] for e in verifiers]) > len(verifiers) / 4


def test_an_example_holds_the_conversation_of_its_agent_and_where_it_came_from():
    game, tables = make_game(), six_episodes().tables()
    facts = {"question": "Return x plus 0.", "solution": "x + 0"}
    [verifier] = [e for e in choose(game, "verifier", 0, *tables) if e.problem == "p0"]
    assert list(verifier.messages) == [
        {"role": "system", "content": game.prompts.filled("verifier", None, 0).fill(facts)},
        {"role": "assistant", "content": "Question: a?"},
        {"role": "user", "content": "Answer: b", "name": "Expert"},
        {"role": "system", "content": game.prompts.last_round_message},
        {"role": "assistant", "content": "Decision: accept"},
    ]
    assert (verifier.episode, verifier.iteration, verifier.y, verifier.reward) == (
        "a-e0-0",
        0,
        1,
        1,
    )
    # The agent's own valid answers, in the order of play; round 0 took a second attempt.
    assert verifier.generations == ("a-e0-0-g0-1", "a-e0-0-g2-0")
    [prover] = [e for e in choose(game, "prover", 0, *tables) if e.problem == "p0"]
    assert list(prover.messages) == [
        {"role": "system", "content": game.prompts.filled("prover", None, 0).fill(facts)},
        {"role": "user", "content": "Question: a?", "name": "Verifier"},
        {"role": "assistant", "content": "Answer: b"},
    ]
    assert prover.generations == ("a-e0-0-g1-1",)


@pytest.mark.parametrize("method", ["threshold", "weighted_sampling"])
def test_failed_episodes_are_left_out_however_low_the_threshold(method):
    ei = {
        "rollout_selection_method": method,
        "reward_threshold": -9.0,
        "weighting_sample_size_factor": 1.0,
        "weighting_use_replacement": False,
    }
    text_rl = {"verifier_guess_replacement_proportion": 0.4}
    game = make_game(ei=ei, text_rl=text_rl)
    for group in ("prover", "verifier"):
        examples = choose(game, group, 0, *six_episodes().tables())
        assert sorted(e.problem for e in examples) == ["p0", "p1", "p2", "p3", "p4"]


def test_an_agent_that_never_spoke_gives_no_example():
    rollouts = Rollouts().add(0, 1, [ACCEPT], (1.0, 1.0))
    game = make_game()
    assert choose(game, "prover", 0, *rollouts.tables()) == []
    assert len(choose(game, "verifier", 0, *rollouts.tables())) == 1


def test_rollouts_that_another_version_read_otherwise_are_refused():
    rollouts = Rollouts().add(0, 1, ["Decision: accept, or reject"], (1.0, 1.0))
    with pytest.raises(StageError, match=r"episode a-e0-0: an answer that counted as valid"):
        choose(make_game(), "verifier", 0, *rollouts.tables())


def test_no_rollouts_give_no_examples():
    for ei in ({}, {"rollout_selection_method": "weighted_sampling", "balance_decisions": True}):
        for group in ("prover", "verifier"):
            assert choose(make_game(ei=ei), group, 0, *Rollouts().tables()) == []


def test_rollouts_of_several_iterations_are_chosen_from_together():
    rollouts = many(4)
    later = many(4, iteration=1)
    rollouts.episodes += later.episodes
    rollouts.generations += later.generations
    examples = choose(make_game(), "verifier", 1, *rollouts.tables())
    assert Counter(e.iteration for e in examples) == {0: 2, 1: 2}
    assert len({e.key for e in examples}) == 4


# Weighted sampling


def weighted(**changes):
    return PureTextEiParameters(rollout_selection_method="weighted_sampling", **changes)


def names(count):
    return [f"k{i:04d}" for i in range(count)]


def draw_shares(rewards, **changes):
    """How often each of `rewards` is drawn, over 400 copies of the list and 40 seeds."""
    copies, count = 400, Counter()
    asked = weighted(weighting_sample_size_factor=1.0, **changes)
    for seed in range(40):
        drawn = select(rewards * copies, names(len(rewards) * copies), asked, seed)
        count.update(i % len(rewards) for i, _ in drawn)
    total = count.total()
    return [count[i] / total for i in range(len(rewards))]


@pytest.mark.parametrize(
    ("rewards", "changes", "expected"),
    [
        # 0 : 1 : 2 above the minimum, then 1 % spread evenly.
        ([-1.0, 0.0, 1.0], {}, [0.0033, 0.3333, 0.6634]),
        # Two of four get all the weight; epsilon 1 halves the difference to even shares.
        ([1.0, 1.0, -1.0, -1.0], {"weighting_epsilon": 1.0}, [0.375, 0.375, 0.125, 0.125]),
        # Below the given minimum everything counts alike.
        ([-1.0, 0.25, 0.5, 1.0], {"weighting_minimum": 0.0}, [0.0025, 0.1439, 0.2854, 0.5682]),
    ],
)
def test_the_probability_grows_linearly_with_the_reward(rewards, changes, expected):
    # 48,000 draws or more: three standard deviations are below 0.007.
    assert draw_shares(rewards, **changes) == pytest.approx(expected, abs=0.008)


@pytest.mark.parametrize("reward", [-1.0, 0.0, 1.0])
@pytest.mark.parametrize("minimum", [None, 2.0])
def test_equal_rewards_are_drawn_evenly_and_nothing_becomes_nan(reward, minimum):
    asked = weighted(weighting_minimum=minimum)
    assert len(select([reward] * 9, names(9), asked, 3)) == round(9 * 0.5)
    shares = draw_shares([reward] * 4, weighting_minimum=minimum)
    assert shares == pytest.approx([0.25] * 4, abs=0.008)


def test_without_replacement_nothing_is_drawn_twice():
    asked = weighted(weighting_sample_size_factor=1.0, weighting_use_replacement=False)
    drawn = select([1.0, -1.0, 0.5, 0.5], names(4), asked, 1)
    assert sorted(drawn) == [(0, 0), (1, 0), (2, 0), (3, 0)]


def test_one_rollout_drawn_twice_makes_two_examples_with_keys_of_their_own():
    ei = {"rollout_selection_method": "weighted_sampling", "weighting_sample_size_factor": 1.0}
    examples = choose(make_game(ei=ei), "verifier", 0, *many(12).tables())
    assert len(examples) == len({e.key for e in examples}) == 12
    repeated = Counter(e.episode for e in examples)
    assert max(repeated.values()) > 1
    assert {e.reason for e in examples} == {"weighted"}


ROLLOUTS = st.lists(st.sampled_from([-1.0, -0.5, 0.0, 0.9, 1.0]), min_size=0, max_size=30)


@pytest.mark.parametrize("threshold", [0.9, 0.9 - 1e-12, 0.1 + 0.1 + 0.7])
def test_a_rounding_error_decides_nothing_at_the_threshold(threshold):
    """Two questions at 0.1 each and a verdict at 0.7: the sum is a little less than 0.9."""
    earned = 0.1 + 0.1 + 0.7
    asked = PureTextEiParameters(reward_threshold=threshold)
    assert select([earned, 0.9, earned - 1e-6], names(3), asked, 0) == [(0, 0), (1, 0)]


def test_an_agent_that_can_just_earn_the_threshold_is_trained_and_not_warned_of():
    common = {"verifier_no_guess_reward": 0.1, "verifier_reward": 0.7, "prover_reward": 0.3}
    parameters = load_parameters(
        {
            "run_name": "a",
            "dataset": "x",
            "nip_protocol": {"max_message_rounds": 5},
            "protocol_common": common,
        }
    )
    assert find_never_chosen(parameters) == {"prover": 0.3}


def test_rewards_that_differ_by_rounding_are_drawn_evenly():
    rewards = [0.9, 0.1 + 0.1 + 0.7, 0.9, 0.1 + 0.1 + 0.7]
    assert draw_shares(rewards) == pytest.approx([0.25] * 4, abs=0.008)


@settings(max_examples=150, deadline=None)
@given(
    rewards=ROLLOUTS,
    factor=st.sampled_from([0.1, 0.5, 1.0]),
    replacement=st.booleans(),
    minimum=st.sampled_from([None, -2.0, 0.0, 5.0]),
    seed=st.integers(0, 2**31 - 1),
    shuffle=st.randoms(use_true_random=False),
)
def test_sampling_draws_as_many_as_asked_from_what_is_there_in_whatever_order(
    rewards, factor, replacement, minimum, seed, shuffle
):
    asked = weighted(
        weighting_sample_size_factor=factor,
        weighting_use_replacement=replacement,
        weighting_minimum=minimum,
    )
    keys = names(len(rewards))
    drawn = select(rewards, keys, asked, seed)
    assert len(drawn) == round(len(rewards) * factor)
    assert set(i for i, _ in drawn) <= set(range(len(rewards)))
    times = Counter(i for i, _ in drawn)
    assert sorted(drawn) == sorted((i, n) for i, count in times.items() for n in range(count))
    order = list(range(len(rewards)))
    shuffle.shuffle(order)
    again = select([rewards[i] for i in order], [keys[i] for i in order], asked, seed)
    assert [(keys[order[i]], n) for i, n in again] == [(keys[i], n) for i, n in drawn]


@given(rewards=ROLLOUTS, threshold=st.sampled_from([-1.0, 0.0, 0.9, 2.0]))
def test_the_threshold_takes_exactly_what_reaches_it(rewards, threshold):
    asked = PureTextEiParameters(reward_threshold=threshold)
    taken = select(rewards, names(len(rewards)), asked, 0)
    assert taken == [(i, 0) for i in range(len(rewards)) if rewards[i] >= threshold]


# Laws of the whole choice

EVERYTHING = {
    "ei": {
        "rollout_selection_method": "weighted_sampling",
        "weighting_sample_size_factor": 0.7,
        "balance_decisions": True,
    },
    "text_rl": {"verifier_guess_replacement_proportion": 0.3},
}
WAYS = [{}, {"ei": {"balance_decisions": True}}, EVERYTHING]


@pytest.mark.parametrize("way", WAYS, ids=["threshold", "balanced", "everything"])
def test_neither_the_order_of_the_rows_nor_the_runs_name_matters(way):
    for group in ("prover", "verifier"):
        usual = choose(make_game(**way), group, 0, *many(40).tables())
        assert len(usual) > 5
        for seed in range(3):
            shuffled = many(40).tables(shuffle_seed=seed)
            assert by_key(choose(make_game(**way), group, 0, *shuffled)) == by_key(usual)
        renamed = choose(make_game(**way), group, 0, *many(40, run="b").tables())
        assert [(e.problem, e.reason, e.messages) for e in renamed] == [
            (e.problem, e.reason, e.messages) for e in usual
        ]
        assert not {e.key for e in renamed} & {e.key for e in usual}


def test_another_seed_or_iteration_draws_anew():
    def draw(iteration=0, **more):
        game = make_game(**EVERYTHING, **more)
        return chosen(choose(game, "verifier", iteration, *many(40).tables()))

    assert draw() == draw()
    assert draw() != draw(seed=7)
    assert draw() != draw(iteration=1)


@settings(max_examples=40, deadline=None)
@given(
    episodes=st.lists(
        st.tuples(
            st.integers(0, 1),
            st.sampled_from(
                [
                    (["Question: a?", "Answer: b", ACCEPT], "finished"),
                    (["Question: a?", "Answer: b", "Question: c?"], "terminated"),
                    ([REJECT], "finished"),
                    (["Question: a?", "Answer: b"], "failed"),
                ]
            ),
            st.sampled_from([-1.0, 0.0, 1.0]),
            st.sampled_from([(), (0,), (0, 1)]),
        ),
        max_size=12,
    ),
    way=st.sampled_from(WAYS),
    group=st.sampled_from(["prover", "verifier"]),
)
def test_the_choice_invents_nothing(episodes, way, group):
    rollouts = Rollouts()
    for i, (y, (texts, outcome), reward, invalid) in enumerate(episodes):
        rollouts.add(i, y, texts, (reward, reward), outcome, invalid=invalid)
    played = {e["key"]: e for e in rollouts.episodes if e["outcome"] != "failed"}
    for example in choose(make_game(**way), group, 0, *rollouts.tables()):
        episode = played[example.episode]
        assert (example.problem, example.y) == (episode["problem"], episode["y"])
        assert example.agent == group
        assert {"agent": group, "reward": example.reward} in episode["rewards"]
        own = [
            g
            for g in rollouts.generations
            if g["episode"] == example.episode
            and g["agent"] == group
            and g["invalid_reason"] is None
        ]
        assert list(example.generations) == [g["key"] for g in own]
        said = [m["content"] for m in example.messages if m["role"] == "assistant"]
        assert said[:-1] == [g["text"] for g in own][:-1]
        if example.reason != "true_label":
            assert said[-1] == own[-1]["text"]
        assert example.messages[-1]["role"] == "assistant"


# The true label in place of the verifier's last message


def replaced(examples):
    return [e for e in examples if e.reason == "true_label"]


@pytest.mark.parametrize(
    ("proportion", "count", "expected"),
    [(0.0, 10, 0), (0.5, 7, 3), (0.35, 10, 3), (0.29, 100, 29), (1.0, 10, 10), (0.5, 1, 0)],
)
def test_as_many_verdicts_as_asked_become_the_true_label(proportion, count, expected):
    game = make_game(text_rl={"verifier_guess_replacement_proportion": proportion})
    examples = choose(game, "verifier", 0, *many(count).tables())
    assert len(replaced(examples)) == expected
    for example in replaced(examples):
        last = example.messages[-1]
        assert last == {"role": "assistant", "content": ACCEPT if example.y else REJECT}
        assert example.messages[1]["content"].startswith("Question: ")
        assert len(example.messages) == 5
    # An episode is used once: the others are chosen from those that were not replaced.
    assert len({e.episode for e in examples}) == len(examples)
    assert all(e.reward >= 0.9 for e in examples if e.reason == "threshold")
    left = {e["key"] for e in many(count).episodes if e["rewards"][1]["reward"] >= 0.9}
    assert {e.episode for e in examples if e.reason == "threshold"} == left - {
        e.episode for e in replaced(examples)
    }


def test_the_prover_is_never_given_a_label():
    plain, replacing = (
        make_game(text_rl={"verifier_guess_replacement_proportion": p}) for p in (0.0, 1.0)
    )
    tables = many(10).tables()
    assert choose(replacing, "prover", 0, *tables) == choose(plain, "prover", 0, *tables)


def test_a_last_question_becomes_the_true_label_too():
    game = make_game(text_rl={"verifier_guess_replacement_proportion": 1.0})
    texts = ["Question: a?", "Answer: b", "Question: c?"]
    rollouts = Rollouts().add(0, 0, texts, (0.0, -1.0), outcome="terminated")
    [example] = choose(game, "verifier", 0, *rollouts.tables())
    assert [m["content"] for m in example.messages[1:]] == [
        "Question: a?",
        "Answer: b",
        game.prompts.last_round_message,
        REJECT,
    ]


@pytest.mark.parametrize(
    ("annealing", "shares"),
    [
        ("none", [0.5, 0.5, 0.5, 0.5]),
        ("linear", [0.5, 0.3, 0.1, 0.0]),
        ("exponential", [0.5, 0.4, 0.32, 0.256]),
    ],
)
def test_the_share_of_labels_falls_over_the_iterations(annealing, shares):
    asked = TextRlParameters(
        verifier_guess_replacement_proportion=0.5,
        verifier_guess_replacement_annealing=annealing,
        verifier_guess_replacement_annealing_rate=0.2,
    )
    assert [replacement_proportion(asked, i) for i in range(4)] == pytest.approx(shares)


def test_a_rounding_error_of_the_share_costs_no_label():
    annealed = {
        "verifier_guess_replacement_proportion": 0.5,
        "verifier_guess_replacement_annealing": "linear",
        "verifier_guess_replacement_annealing_rate": 0.1,
    }
    game = make_game(text_rl=annealed)
    counts = [len(replaced(choose(game, "verifier", i, *many(10).tables()))) for i in range(6)]
    assert counts == [5, 4, 3, 2, 1, 0]


# Balance


def test_balance_keeps_as_many_accepting_as_rejecting_examples():
    rollouts = Rollouts()
    for i in range(9):  # five right accepts, two right rejects, two undecided that were paid
        texts = ["Question: a?", "Answer: b", ACCEPT if i < 5 else REJECT]
        if i >= 7:
            texts[-1] = "Question: c?"
        outcome = "terminated" if i >= 7 else "finished"
        rollouts.add(i, int(i < 5), texts, (1.0, 1.0), outcome)
    for way in ({}, {"weighting_use_replacement": False}):
        game = make_game(ei={"balance_decisions": True, **way})
        examples = choose(game, "verifier", 0, *rollouts.tables())
        verdicts = Counter(e.messages[-1]["content"] for e in examples)
        assert verdicts == {ACCEPT: 2, REJECT: 2}
        # The prover's examples are no decisions.
        assert len(choose(game, "prover", 0, *rollouts.tables())) == 9


def test_balance_leaves_nothing_when_one_verdict_is_missing():
    rollouts = Rollouts().add(0, 1, [ACCEPT], (1.0, 1.0)).add(1, 1, [ACCEPT], (1.0, 1.0))
    game = make_game(ei={"balance_decisions": True})
    assert choose(game, "verifier", 0, *rollouts.tables()) == []


@pytest.mark.parametrize(
    ("scale", "right"),
    [
        ("likert_scale_7", ("strongly disagree", "strongly agree")),
        ("out_of_100", ("0", "100")),
    ],
)
@pytest.mark.parametrize("version", ["v1", "v2"])
def test_the_true_label_is_written_on_the_scale_and_is_a_valid_answer(scale, right, version):
    game = make_game(
        text_rl={"verifier_guess_replacement_proportion": 1.0},
        protocol_common={"verifier_decision_scale": scale},
        code_validation={"system_prompt_version": version},
    )
    rollouts = Rollouts()
    for y in (0, 1):
        rollouts.add(y, y, ["Question: a?", "Answer: b", "I see.\nQuestion: c?"], (0.0, -1.0))
    examples = choose(game, "verifier", 0, *rollouts.tables())
    last = {e.y: e.messages[-1] for e in examples}
    assert last == {y: {"role": "assistant", "content": f"Decision: {right[y]}"} for y in (0, 1)}
    moves = {y: game.parse("verifier", 2, y, last[y]["content"], []) for y in last}
    assert {y: (move.decision, move.value) for y, move in moves.items()} == {
        0: (0, -1.0),
        1: (1, 1.0),
    }


def labels(examples):
    return Counter(e.y for e in examples)


def test_balanced_labels_leave_out_the_surplus_of_each_agent():
    # Reached by the verifier: y = 1 in p0 to p3, y = 0 in p4 and p5; by the prover: p0 to p3.
    rollouts = Rollouts()
    for i in range(6):
        y = int(i < 4)
        texts = ["Question: a?", "Answer: b", ACCEPT if y else REJECT]
        rollouts.add(i, y, texts, (float(y), 1.0))
    agents = {"_default": {"shared_model_group": "all"}}
    game = make_game(ei={"balance_labels": True}, agents=agents)
    found = choice(game, "all", 0, rollouts.tables())
    examples = list(found.examples)
    assert {e.agent for e in examples} == {"verifier"}
    assert labels(examples) == {0: 2, 1: 2}
    assert found.counts == {"candidates": 12, "below_threshold": 2, "surplus": 6}
    kept = {e.problem for e in examples if e.y}
    again = choose(game, "all", 0, *rollouts.tables(shuffle_seed=3))
    assert {e.problem for e in again if e.y} == kept


def test_with_both_balances_both_verdicts_and_both_labels_are_even():
    rollouts = Rollouts()
    outcomes = [(1, ACCEPT)] * 5 + [(0, REJECT)] * 3 + [(1, REJECT)] * 1 + [(0, ACCEPT)] * 4
    for i, (y, verdict) in enumerate(outcomes):
        rollouts.add(i, y, ["Question: a?", "Answer: b", verdict], (1.0, 1.0))
    game = make_game(ei={"balance_labels": True, "balance_decisions": True})
    examples = choose(game, "verifier", 0, *rollouts.tables())
    cells = Counter((e.y, e.messages[-1]["content"]) for e in examples)
    assert cells == {(1, ACCEPT): 3, (0, REJECT): 3, (1, REJECT): 1, (0, ACCEPT): 1}


def twins():
    """p0 and p1 are the same problem with the same conversation; p2 ends otherwise."""
    rollouts = Rollouts()
    for i, verdict in enumerate([ACCEPT, ACCEPT, REJECT]):
        rollouts.add(i, 1, ["Question: a?", "Answer: b", verdict], (1.0, 1.0))
        rollouts.episodes[-1] |= {"question": "Return x.", "solution": "x"}
    return rollouts


def test_of_equal_conversations_of_an_agent_one_is_kept_if_asked_for():
    game = make_game(ei={"deduplicate": True})
    for group, count in (("verifier", 2), ("prover", 1)):
        found = choice(game, group, 0, twins().tables())
        examples = list(found.examples)
        assert len(examples) == count
        assert found.counts == {"candidates": 3, "duplicates": 3 - count}
        for seed in range(3):
            again = choose(game, group, 0, *twins().tables(shuffle_seed=seed))
            assert by_key(again) == by_key(examples)
    assert len(choose(make_game(), "verifier", 0, *twins().tables())) == 3


def test_what_was_left_out_is_counted_by_its_reason():
    found = choice(make_game(), "verifier", 0, six_episodes().tables())
    assert found.method == "supervised"
    assert len(list(found.examples)) == 2
    assert found.counts == {"candidates": 6, "failed": 1, "below_threshold": 3}
    silent = Rollouts().add(0, 1, [ACCEPT], (1.0, 1.0)).tables()
    assert choice(make_game(), "prover", 0, silent).counts == {"candidates": 1, "silent": 1}


def test_the_tokens_are_those_of_the_last_answer_and_what_came_before_it():
    rollouts = Rollouts().add(0, 1, ["Question: a?", "Answer: b", ACCEPT], (1.0, 1.0), invalid=[2])
    for row in rollouts.generations:
        row |= {"prompt_tokens": 100 * (row["round"] + 1), "completion_tokens": 7 + row["attempt"]}
    [example] = choose(make_game(), "verifier", 0, *rollouts.tables())
    assert example.tokens == 300 + 8
    rollouts.generations[-1]["prompt_tokens"] = 0  # the server reported none
    [example] = choose(make_game(), "verifier", 0, *rollouts.tables())
    assert example.tokens is None


# What is trained is what was asked


@pytest.mark.parametrize("name", list(GAMES))
async def test_every_example_is_a_request_that_was_made_and_the_answer_to_it(name):
    parameters = load_parameters(
        {
            "run_name": "a",
            "dataset": "x",
            "rl": {"rollouts_per_iteration": None},
            "pure_text_ei": {"reward_threshold": -9.0},
            "nip_protocol": {"max_message_rounds": 5},
            "code_validation": {"system_prompt_version": "short"},
            **GAMES[name],
        }
    )
    played = await play(parameters, reply, on=problems(20))
    asked = {(agent_of(b), b["seed"]): b["messages"] for b in played.server.bodies}
    assert len(asked) == len(played.server.bodies)
    seeds = {spec.key: spec for spec in played.specs}
    rows = {row["key"]: row for row in played.shard.generations}
    tables = played.tables()
    spoke = {(g["episode"], g["agent"]) for g in rows.values() if g["invalid_reason"] is None}
    assert {e["outcome"] for e in played.episodes} <= {"finished", "terminated"}
    assert parameters.groups
    for group in parameters.groups:
        examples = choose(played.game, group, 0, tables.episodes, tables.generations)
        # One for each episode in which the agent spoke, and for no other one.
        assert Counter(e.episode for e in examples) == Counter(
            episode for episode, agent in spoke if agent == group
        )
        assert len(examples) > 5
        for example in examples:
            last = rows[example.generations[-1]]
            assert last["agent"] == group and last["episode"] == example.episode
            place = (last["round"], last["agent"], last["attempt"])
            seed = seeds[example.episode].generation_seed(parameters.seed, AnswerPlace(*place))
            *prompt, answer = example.messages
            # Who is asked again is told why, and is trained as if there had been no need to.
            was_told = last["attempt"] > 0 and parameters.gives_hint(group)
            assert prompt == asked[group, seed][: -1 if was_told else None]
            assert answer == {"role": "assistant", "content": last["text"]}


# Thoughts


def thoughtful(rollouts):
    """The same with a thought before each answer."""
    for row in rollouts.generations:
        row |= {"reasoning": f"thought {row['round']} of {row['episode']}"}
    return rollouts.tables()


def keeping(*names, **more):
    hosted = {"model_provider": "SelfHosted", "model_name": "m"}
    keeps = {name: {"train_reasoning": "keep"} for name in names}
    return make_game(agents={"_default": hosted, **keeps}, **more)


def test_recorded_thoughts_are_dropped_unless_they_are_asked_for():
    asked = choice(keeping(), "verifier", 0, thoughtful(six_episodes()))
    assert not asked.has_reasoning
    plain = choose(keeping(), "verifier", 0, *six_episodes().tables())
    assert list(asked.examples) == plain
    assert all(example.reasoning is None for example in plain)


def test_thoughts_stand_beside_the_agent_s_own_answers_and_nobody_else_s():
    game, tables = keeping("verifier"), thoughtful(six_episodes())
    asked = choice(game, "verifier", 0, tables)
    examples = list(asked.examples)
    assert asked.has_reasoning and [e.problem for e in examples] == ["p0", "p2"]
    for example in examples:
        by_role = zip(example.messages, example.reasoning, strict=True)
        before = [thought for message, thought in by_role if message["role"] == "assistant"]
        assert before == [f"thought {r} of {example.episode}" for r in (0, 2)]
        assert sum(thought is not None for thought in example.reasoning) == 2
        assert example.tokens == 4  # each turn is read by itself: two prompts and two answers
    # The text is that of an example without thoughts, and of another agent's nothing is read.
    plain = choose(keeping(), "verifier", 0, *six_episodes().tables())
    assert [e.messages for e in examples] == [e.messages for e in plain]
    assert all(e.reasoning is None for e in choose(game, "prover", 0, *tables))


def test_an_answer_that_became_the_true_label_has_no_thought_before_it():
    text_rl = {"verifier_guess_replacement_proportion": 1.0}
    examples = choose(
        keeping("verifier", text_rl=text_rl), "verifier", 0, *thoughtful(six_episodes())
    )
    assert len(examples) == 5
    for example in examples:
        assert example.messages[-1]["content"].startswith("Decision: ")
        assert example.reasoning[-1] is None
        if len(example.messages) > 2:
            assert example.reasoning[1] is not None


def test_equal_conversations_with_other_thoughts_are_not_duplicates():
    twice = Rollouts()
    for i in (0, 1):
        twice.add(i, 1, ["Question: a?", "Answer: b", ACCEPT], (1.0, 1.0))
        twice.episodes[-1] |= {"question": "q", "solution": "s", "seed": 3}
    deduplicate = {"deduplicate": True}
    tables = thoughtful(twice)
    assert len(choose(keeping(ei=deduplicate), "verifier", 0, *tables)) == 1
    assert len(choose(keeping("verifier", ei=deduplicate), "verifier", 0, *tables)) == 2


@pytest.mark.parametrize(
    ("tool", "changes", "words"),
    [
        ({"per_turn": 2, "price": 0.02}, {}, ["10 calls", "0.8", "more than 5 calls"]),
        ({"per_turn": 2, "per_episode": 5, "price": 0.02}, {}, []),
        ({"per_turn": 1, "per_episode": 6, "price": 0.02}, {}, []),
        ({"per_turn": 2, "per_episode": 6, "price": 0.02}, {}, ["6 calls", "more than 5 calls"]),
        ({"per_turn": 2, "price": 0.2}, {}, ["more than 0 calls"]),
        ({"per_turn": 2, "price": 0.2}, {"pure_text_ei": {"reward_threshold": -1}}, []),
        ({"per_turn": 2}, {}, []),
        ({"per_turn": 2, "price": 0.2}, {"trainer": "pure_text_malt"}, []),
        (
            {"per_turn": 2, "price": 0.2},
            {"text_rl": {"verifier_guess_replacement_proportion": 1.0}},
            [],
        ),
        ({"per_turn": 2, "price": 0.2}, {"agents": {"verifier": {"freeze_agent": True}}}, []),
    ],
)
def test_a_price_that_costs_a_right_verdict_its_training_is_warned_of(tool, changes, words):
    model = {"model_provider": "SelfHosted", "model_name": "m"}
    values = {
        "run_name": "a",
        "dataset": "chains",
        "scenario": "arithmetic",
        "tool": tool,
        **changes,
    }
    values["agents"] = {"_default": model, **changes.get("agents", {})}
    values["interaction_protocol"] = "nip"
    values["nip_protocol"] = {"max_message_rounds": 9}
    lines = list_price_warnings(load_parameters(values))
    assert len(lines) == bool(words) and all(word in lines[0] for word in words)
