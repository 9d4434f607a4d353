"""`bags`: neither list tells the label, and on a false claim nothing tells a prover of the coins."""

import json
import re
from collections import Counter, defaultdict
from itertools import pairwise, product

import pytest

from nip_core.errors import DatasetError, SettingsError
from nip_core.game.render import Game, Situation
from nip_core.parameters import load_parameters
from nip_core.scenarios import find_scenario
from nip_core.scenarios.checked import draw_columns, draw_columns_again
from nip_core.scenarios.datasets import check_splits, load_problems
from nip_core.scenarios.scripts import ScriptedTurn
from nip_games.bags.answers import (
    always_name_a,
    answer_nothing,
    guess,
    repeat_coins,
    tell_apart,
)
from nip_games.bags.challenges import (
    count_agreeing,
    make_challenges,
    read_challenges,
    read_names,
    toss_coins,
    toss_coins_again,
    write_coins,
    write_names,
)
from nip_games.bags.lists import in_order, read_lists

CLAIM = "The lists A and B are not rearrangements of each other."
CASES = {
    "as it is": {},
    "few digits": {"length": 12, "digits": 3},
    "short": {"length": 3, "digits": 10},
    "all of them differ": {"length": 4, "differences": 4},
    "no digit twice": {"length": 5, "repeated_digits": False},
}


def settings(protocol="adp", **own):
    return load_parameters(
        {
            "run_name": "a",
            "scenario": "bags",
            "dataset": "lists",
            "interaction_protocol": protocol,
            "scenario_settings": own,
            "agents": {"_default": {"model_provider": "SelfHosted", "model_name": "m"}},
        }
    )


def scenario(**own):
    kind = find_scenario("bags")
    return kind(kind.Settings(**own))


def problems(split="train", path="lists", **own):
    return load_problems(scenario(**{"train_size": 60, "test_size": 30, **own}), path, split)


# Problems.


@pytest.mark.parametrize("case", CASES)
def test_problems_are_balanced_labelled_rightly_new_and_the_same_again(case):
    splits = {split: problems(split, **CASES[case]) for split in ("train", "validation", "test")}
    check_splits(splits)
    differences = CASES[case].get("differences", 1)
    for found in splits.values():
        assert sum(p.y for p in found) * 2 == len(found)
        for problem in found:
            first, second = (Counter(digits) for digits in read_lists(problem.question))
            assert (first - second).total() == (second - first).total() == problem.y * differences
            if case == "no digit twice":
                assert max(first.values()) == max(second.values()) == 1
    bags = {
        split: {in_order(digits) for p in found for digits in read_lists(p.question)}
        for split, found in splits.items()
    }
    assert not bags["train"] & bags["test"] and not bags["train"] & bags["validation"]
    assert not bags["validation"] & bags["test"]
    assert problems("test", **CASES[case]) == splits["test"]
    assert problems("test", seed=1, **CASES[case]) != splits["test"]


OF_ONE_LIST = {
    "its digits": lambda digits: in_order(digits),
    "its sum": sum,
    "different digits": lambda digits: len({*digits}),
    "the most frequent": lambda digits: max(Counter(digits).values()),
    "the largest": max,
    "first and last": lambda digits: (digits[0], digits[-1]),
    "neighbours that ascend": lambda d: sum(a < b for a, b in pairwise(d)),
    "neighbours alike": lambda d: sum(a == b for a, b in pairwise(d)),
}
"""What may be counted in one list: it must tell nothing of the label."""


def accuracy(rows, see):
    """Learn from one half of the rows which label goes with what is seen; test on the other."""
    seen = defaultdict(Counter)
    for question, y in rows[: len(rows) // 2]:
        seen[see(question)][y] += 1
    asked = rows[len(rows) // 2 :]
    return sum((seen[see(q)][1] > seen[see(q)][0]) == y for q, y in asked) / len(asked)


@pytest.mark.parametrize("case", CASES)
def test_nothing_that_is_counted_in_one_list_tells_the_label(case):
    size = 1200
    made = scenario(train_size=size, **CASES[case]).generate("lists", "train")
    rows = [(read_lists(row["question"]), row["y"]) for row in made]
    four_deviations = 4 * 0.5 / (size / 2) ** 0.5
    told = {
        (name, which): abs(accuracy(rows, lambda lists, s=see, w=which: s(lists[w])) - 0.5)
        for name, see in OF_ONE_LIST.items()
        for which in (0, 1)
    }
    assert max(told.values()) < four_deviations, told
    assert {len(digits) for lists, _ in rows for digits in lists} == {CASES[case].get("length", 8)}
    # Both together do tell it: the rules are no blind ones.
    assert accuracy(rows, lambda lists: sum(lists[0]) == sum(lists[1])) > 0.75


@pytest.mark.parametrize(
    ("question", "solution", "y", "words"),
    [
        ("A: 1 2", CLAIM, None, ['"A: 3 1 4" and "B: 1 5 3"']),
        ("A: 1 2\nB: 1 x", CLAIM, None, ['"A: 3 1 4" and "B: 1 5 3"']),
        ("B: 1 2\nA: 2 1", CLAIM, None, ['"A: 3 1 4" and "B: 1 5 3"']),
        ("A: 1 2\nB: 1 2 3", CLAIM, None, ["list A has 2 digits and list B has 3"]),
        ("A: 1 2\nB: 2 1", "They differ.", None, ["the solution must be"]),
        ("A: 1 2\nB: 2 1", CLAIM, 1, ["y is 1", "says 0"]),
    ],
)
def test_a_dataset_of_ones_own_is_labelled_or_the_row_named(tmp_path, question, solution, y, words):
    path = tmp_path / "own.jsonl"
    row = {"question": question, "solution": solution, "split": "train"}
    path.write_text(json.dumps(row if y is None else {**row, "y": y}) + "\n")
    with pytest.raises(DatasetError) as refused:
        problems(path=str(path))
    assert all(word in str(refused.value) for word in ["line 1", *words]), refused.value


def test_a_dataset_of_ones_own_needs_no_labels(tmp_path):
    path = tmp_path / "own.jsonl"
    texts = ["A: 1 2 2\nB: 2 1 2", "A: 1 2 2\nB: 1 2 1"]
    rows = [{"question": text, "solution": CLAIM, "split": "train"} for text in texts]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert [p.y for p in problems(path=str(path))] == [0, 1]


@pytest.mark.parametrize(
    ("own", "words"),
    [
        ({"challenges": -1}, ["scenario_settings.challenges"]),
        ({"challenges": 17}, ["scenario_settings.challenges"]),
        ({"coins": "hidden"}, ["scenario_settings.coins", "'private' or 'public'"]),
        ({"length": 3, "differences": 4}, ["differences (4)", "length (3)"]),
        ({"repeated_digits": False, "length": 10}, ["length (10)", "digits (10) together"]),
        ({"digits": 11}, ["scenario_settings.digits"]),
        ({"coin": "public"}, ["scenario_settings.coin"]),
    ],
)
def test_settings_that_make_no_game_are_refused(own, words):
    with pytest.raises(SettingsError) as refused:
        settings(**own)
    assert all(word in str(refused.value) for word in words), refused.value


def test_too_few_lists_are_an_error_that_says_what_to_change():
    with pytest.raises(
        DatasetError, match=r"length 2 and digits 2 only 0 .*raise length or digits"
    ):
        problems("test", length=2, digits=2)


# Coins and challenges.


def drawn_games(y, challenges, count=24):
    found = [p for p in problems(challenges=challenges) if p.y == y]
    for number in range(count):
        question = found[number % len(found)].question
        yield question, read_lists(question), number


def test_on_a_false_claim_a_challenge_is_the_same_whichever_way_the_coin_fell():
    """So whatever a prover makes of it, exactly one of 2^k outcomes of the coins agrees."""
    every = list(product((0, 1), repeat=3))
    for question, lists, seed in drawn_games(0, 3):
        made = {tuple(make_challenges(lists, coins, question, seed)) for coins in every}
        assert len(made) == 1
    for answer in every:
        said = f"Answer: {write_names(answer)}"
        agree = [count_agreeing(write_coins(coins), said) == 3 for coins in every]
        assert sum(agree) == 1


def test_on_a_true_claim_each_challenge_is_the_list_of_its_coin_in_another_order():
    for question, lists, seed in drawn_games(1, 16):
        coins = toss_coins(16, question, seed)
        challenges = make_challenges(lists, coins, question, seed)
        assert [in_order(c) for c in challenges] == [in_order(lists[coin]) for coin in coins]
        assert len({*challenges}) > 10


def test_coins_are_fair_and_follow_from_question_and_seed():
    """Each outcome of three comes as often as the others, whatever the question."""
    games = 4000
    for question in ("A: 1 2\nB: 2 1", "A: 1 2\nB: 1 1"):
        counted = Counter(toss_coins(3, question, seed) for seed in range(games))
        expected = games / 8
        assert len(counted) == 8
        assert all(abs(n - expected) < 4 * expected**0.5 for n in counted.values()), counted
        assert toss_coins(16, question, 5) == toss_coins(16, question, 5)
    assert toss_coins(16, "A: 1 2\nB: 2 1", 5) != toss_coins(16, "A: 1 2\nB: 1 1", 5)


def test_coins_that_are_tossed_again_go_with_what_provers_are_shown_and_are_fair():
    """Where the lists differ they are what they were; else they are new."""
    game = scenario(challenges=3)
    for y in (0, 1):
        counted = Counter()
        for question, _, seed in drawn_games(y, 3, count=400):
            texts = {"question": question, "solution": CLAIM}
            texts |= draw_columns(game, texts, seed)
            again = draw_columns_again(game, texts, seed)
            assert again.keys() == {"coins"}
            # The game takes them for those of the episode, and draws the rest as before.
            rest = draw_columns(game, {"question": question, "solution": CLAIM, **again}, seed)
            assert rest == {"challenges": texts["challenges"]}
            assert y == 0 or again["coins"] == texts["coins"]
            counted[again["coins"], texts["coins"]] += 1
        if y == 0:
            same = sum(n for (new, old), n in counted.items() if new == old)
            assert abs(same - 50) < 4 * (400 / 8 * 7 / 8) ** 0.5
            assert len({new for new, _ in counted}) == 8
    public = scenario(challenges=3, coins="public")
    texts |= draw_columns(public, texts, 0)
    assert draw_columns_again(public, texts, 0) == {}


def test_a_challenge_that_is_named_twice_is_named_as_neither():
    assert read_names("1: A, 2: B; 3: A, but perhaps 3: B. 14:A, x5: A, 6: AB") == {
        1: "A",
        2: "B",
        14: "A",
    }
    assert count_agreeing("1 is A, 2 is A, 3 is A", "Answer: 1: A 2: A\n3: A") == 3
    assert count_agreeing("1 is A, 2 is A, 3 is A", "All are A, trust me.") == 0


# Who is shown what.


@pytest.mark.parametrize("version", ["v1", "v2", "v3", "v4", "short"])
@pytest.mark.parametrize("coins", ["private", "public"])
def test_a_prover_reads_the_same_whatever_the_private_coins_are(version, coins):
    own = {"coins": coins, "challenges": 4, "system_prompt_version": version}
    game = Game(settings(**own))
    for problem in problems(challenges=4)[:4]:
        situation = Situation(problem.question, problem.solution, None, 7)
        drawn = game.drawn(situation)
        asked = {agent: set() for agent in ("prover", "verifier")}
        for outcome in product((0, 1), repeat=4):
            columns = {"coins": write_coins(outcome)}
            for agent, chats in asked.items():
                changed = Situation(problem.question, problem.solution, None, 7, columns)
                [message, *_] = game.render(agent, changed, (), 0)
                chats.add(message["content"])
                is_shown = write_coins(outcome) in message["content"]
                assert is_shown == (agent == "verifier" or coins == "public")
        assert len(asked["verifier"]) == 16
        assert len(asked["prover"]) == (1 if coins == "private" else 16)
        assert all(drawn["challenges"] in chat for chat in asked["prover"])
        assert all(problem.question in chat for chat in asked["prover"])
        assert not any(drawn["challenges"] in chat for chat in asked["verifier"])
        assert not any(problem.question in chat for chat in asked["verifier"])


def test_a_verifier_may_be_shown_the_lists_and_a_claim_may_come_without_challenges():
    seeing = Game(settings(verifier_sees_lists=True))
    alone = Game(settings(challenges=0))
    [problem, *_] = problems()
    situation = Situation(problem.question, problem.solution, None, 7)
    told = {a: seeing.told(a, situation)[0] for a in ("prover", "verifier")}
    assert all(problem.question in prompt for prompt in told.values())
    assert "You do not see the lists" not in told["verifier"]
    told = {a: alone.told(a, situation)[0] for a in ("prover", "verifier")}
    assert problem.question in told["prover"] and problem.question not in told["verifier"]
    assert not any(re.search("coin|challenge", prompt, re.I) for prompt in told.values())
    assert alone.drawn(situation) == {}
    assert alone.scenario.rate_alone() == 1 / 2 and seeing.scenario.rate_alone() is None


# Scripts.


def turn(game, problem, seed):
    situation = Situation(problem.question, problem.solution, None, seed)
    texts = game.seen_by_prover(situation)
    return ScriptedTurn("prover", 1, 0, texts, game.render("prover", situation, (), 0), seed)


RATES = [
    ("private", tell_apart, 1.0, 0.5),
    ("private", guess, 0.5, 0.5),
    ("private", always_name_a, 0.5, 0.5),
    ("public", repeat_coins, 1.0, 1.0),
]


@pytest.mark.parametrize("challenges", [1, 3])
@pytest.mark.parametrize(("coins", "script", "right", "wrong"), RATES)
def test_each_script_agrees_with_all_coins_as_often_as_by_counting(
    coins, script, right, wrong, challenges
):
    """The chance of each challenge, to the power of how many there are."""
    game = Game(settings(coins=coins, challenges=challenges))
    found = problems(challenges=challenges)
    for y, chance in ((1, right), (0, wrong)):
        agree = []
        for number, problem in enumerate(p for p in found * 8 if p.y == y):
            drawn = game.drawn(Situation(problem.question, problem.solution, None, number))
            said = script(turn(game, problem, number))
            assert len(read_names(said)) == len(read_challenges(drawn["challenges"]))
            agree.append(count_agreeing(drawn["coins"], said) == challenges)
        rate, count = chance**challenges, len(agree)
        assert count == 240
        assert abs(sum(agree) - count * rate) <= 4 * (count * rate * (1 - rate)) ** 0.5


def test_an_exact_count_over_all_coins_gives_the_formula():
    """What is said of a false claim agrees with one outcome of 2^k, of a true one with all."""
    for challenges in (1, 2, 3):
        game = Game(settings(challenges=challenges))
        found = problems(challenges=challenges)
        for problem in (found[0], found[1]):
            accepted, seen, seed = 0, set(), 0
            while len(seen) < 2**challenges:
                seed += 1
                situation = Situation(problem.question, problem.solution, None, seed)
                coins = game.drawn(situation)["coins"]
                if coins not in seen:
                    seen.add(coins)
                    script = tell_apart if problem.y else always_name_a
                    said = script(turn(game, problem, seed))
                    accepted += count_agreeing(coins, said) == challenges
            assert accepted == (2**challenges if problem.y else 1)


def test_a_script_that_repeats_coins_is_refused_where_they_are_private():
    [problem, *_] = problems()
    with pytest.raises(ValueError, match=r"no prover is shown the coins; .*coins public"):
        repeat_coins(turn(Game(settings()), problem, 0))


def test_no_answer_names_nothing_and_still_makes_the_claim():
    for problem in problems(challenges=3)[:4]:
        said = answer_nothing(turn(Game(settings(challenges=3)), problem, 0))
        assert read_names(said) == {} and said == "Answer: They differ."


def test_a_verdict_compares_where_it_names_a_coin_and_an_answer_of_one_challenge():
    verdicts = {
        "1 is A, 1: A, right. 2 is B, 2: A, wrong.\nDecision: reject": True,
        "1 is A, 2 is B, 3 is B\nDecision: reject": False,
        "1 is A, 2: A\nDecision: reject": False,
        "They differ.\nDecision: accept": False,
    }
    assert {text: scenario().checks_answers(text) for text in verdicts} == verdicts
    assert scenario(challenges=0).checks_answers("1 is A, 1: A") is None


def test_without_challenges_every_script_makes_the_claim_alone():
    [problem, *_] = problems()
    asked = turn(Game(settings(challenges=0)), problem, 0)
    for script in (tell_apart, guess, always_name_a, answer_nothing):
        assert script(asked) == "Answer: They differ."
    assert toss_coins(0, problem.question, 0) == toss_coins_again(((1,), (1,)), [], 0) == ()
