"""Every metric against numbers counted by hand, and the laws they obey."""

import json
import random

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nip_core.errors import DatasetError
from nip_core.evaluation.baseline_verifiers import believe_the_prover, majority
from nip_core.evaluation.baseline_words import believed_line, left_out_words
from nip_core.evaluation.confidence_intervals import wilson
from nip_core.evaluation.metrics import evaluate, mean_by_problem, paired_difference
from nip_core.evaluation.split_metrics import SplitMetrics
from nip_core.rollouts.storage.schema import EPISODES, GENERATIONS


@pytest.fixture(scope="module")
def dozen(episodes_of) -> pa.Table:
    """Twelve problems, each played once: 6 correct, 6 buggy; 4 + 3 of them judged right."""

    def row(y, decision, outcome="finished", rounds=4, **more):
        reward = 1.0 if outcome != "failed" and decision == y else -1.0
        rewards = {} if outcome == "failed" else {"prover": reward / 2, "verifier": reward}
        return {"y": y, "decision": decision, "outcome": outcome, "rounds": rounds,
                "rewards": rewards, **more}  # fmt: skip

    return episodes_of(
        row(1, 1, difficulty="easy"),
        row(1, 1, difficulty="easy"),
        row(1, 1, difficulty="hard"),
        row(1, 1, difficulty="hard", mutation="constant"),  # mutated, and still correct
        row(1, 0, difficulty="hard"),
        row(1, 2, "terminated", rounds=9, difficulty="hard"),
        row(0, 0, difficulty="easy", mutation="constant"),
        row(0, 0, difficulty="easy", mutation="boundary"),
        row(0, 0, difficulty="hard", mutation="boundary"),
        row(0, 1, difficulty="hard", mutation="boundary"),
        row(0, 1, mutation=None),
        row(0, 0, "failed", rounds=1, difficulty="hard", mutation="constant", error="HTTP 500"),
    )


def test_verdicts_are_counted_as_by_hand(dozen) -> None:
    found = evaluate(dozen, None)
    assert found.episodes == found.distinct_problems == 12
    assert found.accuracy == 7 / 12
    assert found.accuracy_ci95 == wilson(7, 12)
    assert found.completeness == 4 / 6
    assert found.completeness_ci95 == wilson(4, 6)
    assert found.soundness == 3 / 6
    assert found.soundness_ci95 == wilson(3, 6)
    assert found.precision == 4 / 6
    assert found.acceptance_rate == 6 / 12
    assert found.no_decision_rate == 2 / 12  # one terminated, one failed
    assert found.terminated_rate == 1 / 12
    assert found.failed_rate == 1 / 12
    assert found.always_fail_rate == 5 / 12
    assert found.neither_rate == 0
    assert found.agreement is None
    assert found.mean_rounds == (10 * 4 + 9) / 11
    assert found.agents["verifier"].mean_reward == pytest.approx((7 - 4) / 11)
    assert found.agents["prover"].mean_reward == pytest.approx((7 - 4) / 22)
    # Mean of squares 1, so the variance is 1 - mean squared.
    assert found.agents["verifier"].std_reward == pytest.approx((1 - (3 / 11) ** 2) ** 0.5)


def test_a_failed_episode_counts_as_wrong_though_its_decision_equals_the_label(episodes_of) -> None:
    found = evaluate(episodes_of({"y": 0, "decision": 0, "outcome": "failed"}), None)
    assert (found.accuracy, found.soundness, found.no_decision_rate) == (0.0, 0.0, 1.0)


def test_neither_is_wrong_and_is_no_missing_decision(episodes_of) -> None:
    table = episodes_of(
        {"problem": "a", "y": 1, "decision": 3, "decision_value": 0.0},
        {"problem": "a", "y": 1, "decision": 1, "decision_value": 0.5, "sample": 1},
        {"problem": "b", "y": 0, "decision": 3, "decision_value": 0.0},
        {"problem": "b", "y": 0, "decision": 3, "decision_value": 0.0, "sample": 1},
        {"problem": "c", "y": 0, "decision": 0, "decision_value": -0.75},
        {"problem": "c", "y": 0, "decision": 2, "outcome": "terminated", "sample": 1},
        {"problem": "d", "y": 0, "decision": 3, "decision_value": 0.0, "outcome": "failed"},
    )
    found = evaluate(table, None)
    assert (found.accuracy, found.completeness, found.soundness) == (2 / 7, 1 / 2, 1 / 5)
    assert found.precision == 1.0
    assert (found.acceptance_rate, found.neither_rate) == (1 / 7, 3 / 7)
    assert found.no_decision_rate == 2 / 7  # one terminated, one failed
    assert found.always_fail_rate == 2 / 4
    assert found.mean_decision_value == (0.5 - 0.75) / 5
    # Neither twice is agreement; of the others, none.
    assert found.agreement == 1 / 3


def test_breakdowns_are_counted_as_by_hand(dozen) -> None:
    found = evaluate(dozen, None)
    assert set(found.by_difficulty) == {"easy", "hard", "unknown"}
    easy = found.by_difficulty["easy"]
    assert (easy.episodes, easy.distinct_problems, easy.accuracy) == (4, 4, 1.0)
    assert easy.accuracy_ci95 == wilson(4, 4)
    assert (easy.completeness, easy.soundness, easy.precision) == (1.0, 1.0, 1.0)
    assert easy.completeness_ci95 == wilson(2, 2)
    assert found.by_difficulty["hard"].accuracy == 3 / 7
    assert found.by_difficulty["unknown"].completeness is None
    mutations = {name: value.episodes for name, value in found.by_mutation.items()}
    assert mutations == {"boundary": 3, "constant": 3, "none": 5, "unknown": 1}
    assert found.by_mutation["boundary"].soundness == 2 / 3
    assert found.by_mutation["none"].accuracy == 3 / 5
    assert found.by_mutation["constant"].completeness == 1.0


def test_repeated_plays_give_agreement_always_fail_and_a_bootstrap(episodes_of) -> None:
    def plays(problem, y, *decisions):
        return [
            {"problem": problem, "y": y, "decision": decision, "sample": sample}
            for sample, decision in enumerate(decisions)
        ]

    table = episodes_of(
        *plays("a", 1, 1, 1, 0),  # pairs that agree: 1 of 3
        *plays("b", 0, 0, 0),  # 1 of 1
        *plays("c", 0, 1, 2),  # 0 of 1, and never right
        *plays("d", 1, 1),  # played once: no pair
    )
    found = evaluate(table, None, seed=3)
    assert found.distinct_problems == 4
    assert found.accuracy == 5 / 8
    assert found.agreement == pytest.approx((1 / 3 + 1 + 0) / 3)
    assert found.always_fail_rate == 1 / 4
    assert found.accuracy_ci95 != wilson(5, 8)
    assert evaluate(table, None, seed=3) == found


def test_generations_are_counted_by_agent(episodes_of, generations_of) -> None:
    generations = generations_of(
        {"agent": "verifier", "prompt_tokens": 100, "completion_tokens": 7},
        {"agent": "prover", "prompt_tokens": 120, "completion_tokens": 9, "invalid_reason": "no"},
        {"agent": "prover", "prompt_tokens": 120, "completion_tokens": 11, "attempt": 1},
        {"agent": "verifier", "prompt_tokens": 150, "completion_tokens": 50,
         "finish_reason": "length"},
    )  # fmt: skip
    found = evaluate(episodes_of({"rewards": {"verifier": 1.0}}), generations)
    assert found.generations == 4
    assert (found.retry_rate, found.token_limit_rate) == (1 / 4, 1 / 4)
    assert (found.prompt_tokens, found.completion_tokens) == (490, 77)
    # All of one problem: as sure as one trial is.
    half, none = list(wilson(0.5, 1)), list(wilson(0, 1))
    assert found.as_json()["agents"] == {
        "prover": {
            "mean_reward": None, "mean_reward_ci95": None, "std_reward": None,
            "generations": 2, "retry_rate": 0.5, "retry_rate_ci95": half,
            "token_limit_rate": 0.0, "token_limit_rate_ci95": none,
            "prompt_tokens": 240, "completion_tokens": 20,
        },
        "verifier": {
            "mean_reward": 1.0, "mean_reward_ci95": [1.0, 1.0], "std_reward": 0.0,
            "generations": 2, "retry_rate": 0.0, "retry_rate_ci95": none,
            "token_limit_rate": 0.5, "token_limit_rate_ci95": half,
            "prompt_tokens": 250, "completion_tokens": 57,
        },
    }  # fmt: skip


def test_a_generation_of_no_episode_is_refused(episodes_of, generations_of) -> None:
    with pytest.raises(DatasetError, match="episode e7, which is not among"):
        evaluate(episodes_of({}), generations_of({"episode": "e7"}))


@pytest.fixture(scope="module")
def ten_problems(episodes_of, generations_of) -> tuple[pa.Table, pa.Table]:
    """Ten problems, each played twice; those of half of them all went badly."""
    plays = [
        {"problem": f"p{i // 2}", "y": 1, "decision": int(i < 10), "rounds": 3 + (i < 10),
         "rewards": {"verifier": float(i < 10)}, "difficulty": "easy" if i < 10 else "hard"}
        for i in range(20)
    ]  # fmt: skip
    spoken = [
        {"episode": f"e{i}", "invalid_reason": "no" if i < 10 else None,
         "finish_reason": "stop" if i < 10 else "length"}
        for i in range(20)
    ]  # fmt: skip
    return episodes_of(*plays), generations_of(*spoken)


def test_plays_of_one_problem_count_as_one_in_every_interval(ten_problems) -> None:
    """All these are the share k/10 of problems: percentiles of Binomial(10, 0.5) / 10, where
    twenty independent plays would have given 6 and 14 of 20."""
    found = evaluate(*ten_problems)
    of_problems = (0.2, 0.8)
    plain = found.as_json()
    for name in ("accuracy", "acceptance_rate", "retry_rate", "token_limit_rate"):
        assert (plain[name], plain[f"{name}_ci95"]) == (0.5, [*of_problems]), name
    assert found.agents["verifier"].mean_reward_ci95 == of_problems
    assert found.mean_rounds == 3.5
    assert found.mean_rounds_ci95 == pytest.approx((3.2, 3.8))
    assert (found.always_fail_rate, found.agreement) == (0.5, 1.0)
    assert found.always_fail_rate_ci95 == wilson(5, 10)
    assert found.agreement_ci95 == wilson(10, 10)


def test_every_metric_is_also_given_by_difficulty_and_by_mutation(ten_problems) -> None:
    found = evaluate(*ten_problems)
    nested = {"by_difficulty", "by_mutation"}
    for part in (*found.by_difficulty.values(), *found.by_mutation.values()):
        assert set(part.as_json()) == set(found.as_json()) - nested
    easy, hard = found.by_difficulty["easy"], found.by_difficulty["hard"]
    assert (easy.accuracy, hard.accuracy) == (1.0, 0.0)
    assert (easy.retry_rate, hard.retry_rate) == (1.0, 0.0)
    assert (easy.agents["prover"].generations, easy.generations) == (10, 10)
    assert (easy.agents["verifier"].mean_reward, hard.mean_rounds) == (1.0, 3.0)


def test_every_rate_and_mean_has_an_interval_around_it(ten_problems) -> None:
    found = evaluate(*ten_problems)
    for part in (of.as_json() for of in (found, *found.agents.values())):
        named = {"accuracy", "completeness", "soundness", "precision", "agreement"} & set(part)
        named |= {name for name in part if name.endswith("_rate")}
        named |= {"mean_reward", "mean_rounds", "mean_decision_value"} & set(part)
        assert {f"{name}_ci95" for name in named} == {n for n in part if n.endswith("_ci95")}
        for name in named:
            interval = part[f"{name}_ci95"]
            assert (part[name] is None) == (interval is None), name
            assert interval is None or interval[0] <= part[name] <= interval[1], name


def test_a_mean_by_problem_is_what_a_paired_difference_compares(episodes_of) -> None:
    plays = [{"problem": "a", "decision": d} for d in (1, 1, 1)] + [{"problem": "b", "decision": 0}]
    assert mean_by_problem(episodes_of(*plays)) == 0.5
    assert mean_by_problem(EPISODES.empty_table()) is None
    paid = episodes_of(
        {"problem": "a", "rewards": {"verifier": 1.0}}, {"problem": "a", "outcome": "failed"},
        {"problem": "b", "rewards": {"verifier": -1.0, "prover": 9.0}},
    )  # fmt: skip
    assert mean_by_problem(paid, "verifier") == -0.25


def test_nothing_divided_by_nothing_is_null() -> None:
    found = json.loads(
        json.dumps(
            evaluate(EPISODES.empty_table(), GENERATIONS.empty_table()).as_json(), allow_nan=False
        )
    )
    assert found.pop("by_difficulty") == found.pop("by_mutation") == found.pop("agents") == {}
    counts = ("episodes", "distinct_problems", "generations", "prompt_tokens", "completion_tokens")
    assert all(found.pop(name) == 0 for name in counts)
    assert all(value is None for value in found.values())


def test_precision_without_an_acceptance_is_null(episodes_of) -> None:
    found = evaluate(episodes_of({"y": 0, "decision": 0}), None)
    assert found.precision is found.precision_ci95 is found.completeness is None


_rows = st.lists(
    st.fixed_dictionaries(
        {
            "problem": st.sampled_from("abcdef"),
            "y": st.integers(0, 1),
            "decision": st.integers(0, 3),
            "decision_value": st.none() | st.floats(-1, 1, allow_subnormal=False),
            "outcome": st.sampled_from(["finished", "terminated", "failed"]),
            "rounds": st.integers(1, 9),
            "difficulty": st.sampled_from([None, "easy", "hard"]),
            "mutation": st.sampled_from([None, "constant"]),
            "rewards": st.dictionaries(
                st.sampled_from(["prover", "verifier"]),
                st.floats(-1, 1, allow_subnormal=False),
            ),
        }
    ),
    max_size=20,
)


@settings(max_examples=20, deadline=None)
@given(_rows, st.randoms(use_true_random=False))
def test_rates_are_within_0_and_1_and_the_order_of_rows_does_not_matter(
    episodes_of, rows: list[dict], shuffler: random.Random
) -> None:
    table = episodes_of(*rows)
    found = evaluate(table, None, seed=1)
    order = list(range(len(rows)))
    shuffler.shuffle(order)
    assert evaluate(table.take(pa.array(order, pa.int64())), None, seed=1) == found
    pieces = pa.concat_tables([table.slice(i, 1) for i in range(len(rows))] or [table])
    assert evaluate(pieces, None, seed=1) == found
    plain = found.as_json()
    for name, value in plain.items():
        if name.endswith("_ci95") and value is not None:
            rate = plain[name.removesuffix("_ci95")]
            assert value[0] <= value[1]
            if not name.startswith("mean_"):
                assert 0 <= value[0] <= value[1] <= 1
                assert 0 <= rate <= 1
        elif name.endswith("_rate") and value is not None:
            assert 0 <= value <= 1
    if rows:
        decided = sum(r["decision"] == 0 and r["outcome"] != "failed" for r in rows) / len(rows)
        parts = found.acceptance_rate + found.no_decision_rate + decided
        parts += found.neither_rate
        assert parts == pytest.approx(1)


def test_a_paired_difference_is_the_mean_over_problems(episodes_of) -> None:
    before = episodes_of(
        *[{"problem": f"p{i}", "decision": int(i < 4), "rewards": {"prover": 0.0}}
          for i in range(10)]
    )  # fmt: skip
    after = episodes_of(
        *[{"problem": f"p{i}", "decision": int(i < 9), "rewards": {"prover": 0.5}}
          for i in reversed(range(10))]
    )  # fmt: skip
    found = paired_difference(before, after, 0)
    assert found.difference == 0.5
    assert found.problems == 10
    # Five problems of ten changed, all for the better: one of sixteen ways is as extreme.
    assert found.p == pytest.approx(1 / 16)
    assert found.ci95 == (0.0, pytest.approx(0.5 + 2.2622 * (0.25 / 9) ** 0.5, abs=1e-4))
    assert paired_difference(after, before, 0).difference == -0.5
    assert paired_difference(before, before, 0).as_json() == {
        "difference": 0.0,
        "ci95": [0.0, 0.0],
        "problems": 10,
        "questions": 10,
        "p": 1.0,
    }
    assert paired_difference(before, after, 0, reward_of="prover").difference == 0.5


def test_a_paired_difference_averages_repeated_plays_first(episodes_of) -> None:
    before = episodes_of({"problem": "a", "decision": 0}, {"problem": "b", "decision": 0})
    plays = [{"problem": "a", "decision": d} for d in (1, 1, 1)] + [{"problem": "b", "decision": 0}]
    assert paired_difference(before, episodes_of(*plays), 0).difference == 0.5


def test_a_paired_difference_of_rewards_does_not_depend_on_the_order_of_rows(episodes_of) -> None:
    rows = [{"problem": "ab"[i % 2], "rewards": {"prover": r}} for i, r in
            enumerate([0.1, 1e16, 0.2, 1.0, 0.3, -1e16])]  # fmt: skip
    before = episodes_of({"problem": "a"}, {"problem": "b"})
    found = paired_difference(before, episodes_of(*rows), 0, reward_of="prover")
    assert found == paired_difference(before, episodes_of(*rows[::-1]), 0, reward_of="prover")


def test_a_paired_difference_of_other_problems_is_refused(episodes_of) -> None:
    with pytest.raises(DatasetError, match=r"1 are only in the first \(such as \['b'\]\)"):
        paired_difference(
            episodes_of({"problem": "a"}, {"problem": "b"}), episodes_of({"problem": "a"}), 0
        )


CLAIMS = {"they match": 1, "they differ": 0, "they do not match": 0}


@pytest.mark.parametrize(
    ("text", "decision"),
    [
        ("They MATCH .", 1),
        ("they differ", 0),
        ("no idea", 2),
        ("they differ . no , they match", 1),
        ("they do not match", 0),
    ],
)
def test_the_prover_is_believed_to_the_letter(episodes_of, generations_of, text, decision) -> None:
    episodes = episodes_of({"y": 1, "decision": 2, "rewards": {"prover": 1.0}}, {"y": 0})
    generations = generations_of(
        {"round": 3, "text": text},
        {"round": 1, "text": "they match" if decision == 0 else "they differ"},
        {"round": 5, "text": "they match", "invalid_reason": "too long"},
        {"round": 4, "text": "they match", "agent": "verifier"},
        {"round": 0, "text": "they differ", "episode": "e1"},
    )
    found = believe_the_prover(episodes, generations, CLAIMS)
    assert found.completeness == (1.0 if decision == 1 else 0.0)
    assert found.no_decision_rate == (0.5 if decision == 2 else 0.0)
    assert found.soundness == 1.0
    assert found.agents == {}


def test_where_no_prover_spoke_there_is_nobody_to_believe(episodes_of, generations_of) -> None:
    """As where the verifier rejects before the prover's turn: that is no mistake of believing."""
    episodes = episodes_of({"y": 1}, {"y": 0}, {"y": 0}, {"y": 0})
    spoken = generations_of(
        {"episode": "e0", "text": "they match"},
        {"episode": "e1", "text": "they differ"},
        {"episode": "e2", "agent": "verifier", "text": "Decision: reject"},
        {"episode": "e3", "text": "", "invalid_reason": "empty answer"},
    )
    found = believe_the_prover(episodes, spoken, CLAIMS)
    assert (found.episodes, found.without_prover) == (2, 2)
    assert (found.accuracy, found.soundness, found.no_decision_rate) == (1.0, 1.0, 0.0)
    assert left_out_words(found) == "2 episodes in which no prover spoke left out"
    # What is on record in metrics-<split>.json keeps its count.
    before = believe_the_prover(episodes, spoken, CLAIMS, counts_silence=True)
    assert (before.episodes, before.accuracy) == (4, 0.5) and before.without_prover is None
    assert "counted as wrong" in left_out_words(before)


def test_of_provers_that_never_spoke_nothing_is_known(episodes_of, generations_of) -> None:
    found = believe_the_prover(episodes_of({"decision": 1}), generations_of(), CLAIMS)
    assert (found.accuracy, found.without_prover) == (None, 1)
    assert believed_line(SplitMetrics(believe_the_prover=found)) is None


@pytest.mark.parametrize(
    ("claims", "decision"),
    [
        (["they match", "they match"], 1),
        (["they match", "no idea"], 1),
        (["they match", "they differ"], 2),
        (["no idea", "no idea"], 2),
        (["they differ", None], 0),
    ],
)
def test_two_provers_are_believed_unless_they_contradict_each_other(
    episodes_of, generations_of, claims, decision
) -> None:
    episodes = episodes_of({"decision": 3, "decision_value": 0.25, "y": 0})
    said = [
        {"round": r, "agent": f"prover{r}", "text": text}
        for r, text in enumerate(claims)
        if text is not None
    ]
    earlier = [{"round": 0, "agent": "prover1", "text": "they match"}] if len(said) == 2 else []
    both = ("prover0", "prover1")
    found = believe_the_prover(episodes, generations_of(*said, *earlier), CLAIMS, provers=both)
    assert found.acceptance_rate == (decision == 1)
    assert found.no_decision_rate == (decision == 2)
    assert found.accuracy == (decision == 0)
    assert found.mean_decision_value is None  # that of the real verdict is not theirs


@pytest.mark.parametrize("claims", [{"x": 2}, {"(": 1}])
def test_a_claim_that_means_nothing_is_refused(episodes_of, generations_of, claims) -> None:
    with pytest.raises(ValueError, match="the claim"):
        believe_the_prover(episodes_of({}), generations_of({}), claims)


# Trees of responses


def tree(problem, y=1, sample=0, **verdicts):
    """Leaves of a tree: by path ("r0_1" is "0.1") the verdict, 2 for one that failed."""
    return [
        {
            "problem": problem,
            "y": y,
            "sample": sample,
            "branch_path": name[1:].replace("_", "."),
            "decision": verdict,
            "outcome": "failed" if verdict == 2 else "finished",
            "rounds": name.count("_") + 1,
            "rewards": {"verifier": 1.0 if verdict == y else -1.0},
            "decision_value": 1.0 if verdict == 1 else -1.0,
        }
        for name, verdict in verdicts.items()
    ]


def one_answer_of_three():
    """The first of three answers leads to right verdicts, in two of nine leaves."""
    return tree(
        "t",
        **{"r0_0": 1, "r0_1": 1},
        **{f"r1_{i}": 0 for i in range(4)},
        **{f"r2_{i}": 0 for i in range(3)},
    )


def test_in_a_tree_every_answer_counts_the_same_however_many_leaves_it_has(episodes_of) -> None:
    found = evaluate(episodes_of(*one_answer_of_three()), None)
    third = pytest.approx(1 / 3)
    assert (found.episodes, found.distinct_problems) == (9, 1)
    assert (found.accuracy, found.completeness, found.acceptance_rate) == (third,) * 3
    assert found.mean_decision_value == pytest.approx(-1 / 3)
    assert found.agents["verifier"].mean_reward == pytest.approx(-1 / 3)
    assert found.agents["verifier"].std_reward == pytest.approx((1 - 1 / 9) ** 0.5)
    assert found.precision == 1.0 and found.soundness is None
    assert mean_by_problem(episodes_of(*one_answer_of_three())) == third


def test_a_tree_counts_as_much_as_an_episode_and_its_depth_for_nothing(episodes_of) -> None:
    table = episodes_of(
        *one_answer_of_three(),
        *tree("u", y=0, r0=0, r1_0=1, r1_1_0=1, r1_1_1=2),  # right at once; else wrong or failed
        {"problem": "v", "y": 1, "decision": 1, "rounds": 1},
    )
    found = evaluate(table, None)
    assert found.accuracy == pytest.approx((1 / 3 + 1 / 2 + 1) / 3)
    assert found.completeness == pytest.approx((1 / 3 + 1) / 2)
    assert found.soundness == pytest.approx(1 / 2)
    assert found.precision == pytest.approx((1 / 3 + 1) / (1 / 3 + 3 / 8 + 1))
    assert found.failed_rate == pytest.approx(1 / 8 / 3)
    assert found.mean_rounds == pytest.approx((2 + (1 / 2 + 2 / 4 + 3 / 8) + 1) / (3 - 1 / 8))
    low, high = found.accuracy_ci95
    assert 0 <= low < found.accuracy < high <= 1


def test_trees_that_are_right_throughout_have_wilson_s_interval(episodes_of) -> None:
    right = [row for p in "abc" for row in tree(p, r0_0=1, r0_1=1, r0_2=1, r1=1, r2_0=1, r2_1=1)]
    found = evaluate(episodes_of(*right), None)
    assert (found.accuracy, found.agreement) == (1.0, 1.0)
    assert found.accuracy_ci95 == wilson(3, 3)
    half = evaluate(episodes_of(*tree("a", r0=1, r1_0=0, r1_1=0)), None)
    # Of all pairs of leaves those of "1" agree: 1/4 * 1/4 of 1/4 * 1/4 + 2 * 1/2 * 1/4.
    assert half.agreement == pytest.approx((1 / 16) / (1 / 16 + 1 / 4))


def test_the_figures_of_trees_do_not_depend_on_the_order_of_the_rows(episodes_of) -> None:
    rows = [*one_answer_of_three(), *tree("u", y=0, r0=0, r1_0=1, r1_1_0=1, r1_1_1=2)]
    keyed = [{**row, "key": f"k{i}", "seed": i, "question_id": "q"} for i, row in enumerate(rows)]
    shuffled = random.Random(3).sample(keyed, len(keyed))
    assert evaluate(episodes_of(*keyed), None) == evaluate(episodes_of(*shuffled), None)


def test_believing_the_prover_follows_every_leaf_of_a_tree(episodes_of, generations_of) -> None:
    leaves = tree("a", r0_0=0, r0_1=0, r1_0=0)
    keyed = [{**leaf, "key": f"e{i}"} for i, leaf in enumerate(leaves)]
    spoken = [
        {"key": "g0", "episode": "e0", "branch_path": "0", "text": "they match"},
        {"key": "g1", "episode": "e2", "branch_path": "1", "text": "they differ"},
    ]
    claims = {"they match": 1, "they differ": 0}
    found = believe_the_prover(episodes_of(*keyed), generations_of(*spoken), claims)
    assert (found.accuracy, found.no_decision_rate) == (0.5, 0.0)


# Repeated tests


def test_the_worst_problem_is_the_one_with_the_lowest_accuracy_of_those_played_again(
    episodes_of,
) -> None:
    def plays(problem, *decisions):
        return [{"problem": problem, "decision": d, "sample": i} for i, d in enumerate(decisions)]

    table = episodes_of(*plays("a", 1, 1, 0, 1), *plays("b", 1, 0, 2, 1), *plays("c", 0))
    assert evaluate(table, None).worst_problem_accuracy == 0.5  # c was played once
    once = episodes_of(*plays("a", 1), *plays("b", 0))
    assert evaluate(once, None).worst_problem_accuracy is None
    failed = {"problem": "d", "decision": 1, "outcome": "failed"}
    never = episodes_of({**failed, "sample": 0}, {**failed, "sample": 1}, *plays("a", 1, 1))
    assert evaluate(never, None).worst_problem_accuracy == 0.0


def test_the_majority_of_the_plays_of_a_problem_decides(episodes_of) -> None:
    def plays(problem, y, *decisions, outcome="finished"):
        return [
            {"problem": problem, "y": y, "decision": d, "outcome": outcome, "decision_value": 0.5}
            for d in decisions
        ]

    rows = [
        *plays("right", 1, 1, 0, 1),
        *plays("wrong", 0, 0, 1, 1),
        *plays("even", 1, 1, 0),
        *plays("once", 0, 0),
        *plays("failed", 1, 1, 1, outcome="failed"),
        *plays("undecided", 0, 2, 2, 0),
    ]
    voted = majority(episodes_of(*rows))
    assert voted.episodes == voted.distinct_problems == 6
    assert voted.accuracy == 3 / 6  # right, once, undecided
    assert voted.completeness == 1 / 3 and voted.soundness == 2 / 3
    assert voted.no_decision_rate == 2 / 6 and voted.failed_rate == 0
    assert voted.mean_decision_value is None and voted.agents == {}
    assert majority(episodes_of(*plays("a", 1, 1), *plays("b", 0, 1))) is None
