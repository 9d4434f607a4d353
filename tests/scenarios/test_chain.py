"""`chain`: with one honest prover the verdict is right, with none the formula says how often."""

import json
import re
from collections import Counter, defaultdict
from itertools import product
from random import Random

import pytest
from chain_players import checks

from nip_core.errors import DatasetError, SettingsError
from nip_core.game.render import Game, Situation
from nip_core.parameters import load_parameters
from nip_core.protocols import Turn
from nip_core.scenarios import find_scenario
from nip_core.scenarios.checked import draw_columns, draw_columns_again
from nip_core.scenarios.datasets import check_splits, load_problems
from nip_core.scenarios.scripts import ScriptedTurn
from nip_games.chain.disputes import find_dispute, read_value
from nip_games.chain.modular import (
    calculate,
    calculate_back,
    read_chain,
    read_claim,
    read_values,
    write_values,
)

LIES = ("lie-late", "lie-early", "lie-anywhere", "random-lie", "no-value")
PROVERS = {"refereed": ("prover0", "prover1"), "adp": ("prover",)}


def settings(protocol="refereed", rounds=None, **own):
    rounds = {} if rounds is None else {"refereed_protocol": {"max_message_rounds": rounds}}
    if protocol == "adp":
        own = {"checked": "drawn", **own}
    return load_parameters(
        {
            "run_name": "a",
            "scenario": "chain",
            "dataset": "chains",
            "interaction_protocol": protocol,
            "scenario_settings": own,
            "agents": {"_default": {"model_provider": "SelfHosted", "model_name": "m"}},
            **rounds,
        }
    )


def scenario(**own):
    kind = find_scenario("chain")
    return kind(kind.Settings(**own))


def problems(split="train", path="chains", **own):
    return load_problems(
        scenario(**{"train_size": 60, "validation_size": 20, "test_size": 30, **own}), path, split
    )


def play(game, problem, scripts, seed=0):
    """The verdict of a verifier that checks one step, after provers that play these scripts."""
    columns = game.drawn(Situation(problem.question, problem.solution, None, seed))
    situation = Situation(problem.question, problem.solution, None, seed, columns)
    turns = []
    last = game.protocol.max_message_rounds - 1
    for round_ in range(last):
        now = []
        for agent, script in scripts.items():
            chat = game.render(agent, situation, turns, round_)
            texts, stance = game.seen_by_prover(situation), game.protocol.stance(agent, None)
            asked = ScriptedTurn(agent, stance, round_, texts, chat, 1000 * seed + round_)
            text = script(asked)
            if text:
                move = game.parse(agent, round_, seed, text, turns)
                now.append(Turn(round_, agent, text, move))
        turns += now
    return checks(game.render("verifier", situation, turns, last))


# The prover on the right side is honest.


@pytest.mark.parametrize(
    ("lie", "version"), [*((lie, "v1") for lie in LIES), ("lie-anywhere", "short")]
)
def test_with_an_honest_prover_on_the_right_side_the_verdict_is_always_right(lie, version):
    """The other one lies wherever it can."""
    scripts = find_scenario("chain").scripts
    for steps in (2, 8, 32):
        game = Game(settings(rounds=steps.bit_length(), steps=steps, system_prompt_version=version))
        for number, problem in enumerate(problems(steps=steps, train_size=12)):
            honest = "prover1" if problem.y else "prover0"
            chosen = {
                agent: scripts["honest" if agent == honest else lie]
                for agent in PROVERS["refereed"]
            }
            assert play(game, problem, chosen, number) == problem.y


def test_an_honest_prover_on_the_wrong_side_guarantees_nothing():
    """It can't mend what the one on the right side gets wrong."""
    game, right = Game(settings(rounds=4, steps=8)), 0

    def guess(turn):
        return f"Value: {Random(turn.seed).randrange(97)}"

    for number, problem in enumerate(problems(steps=8, train_size=60)):
        sides = ("prover0", "prover1") if problem.y else ("prover1", "prover0")
        chosen = dict(zip(sides, (find_scenario("chain").scripts["honest"], guess), strict=True))
        right += play(game, problem, chosen, number) == problem.y
    assert right < 30
    situation = Situation(problem.question, problem.solution, None, 3, {})
    told = json.dumps(game.render("verifier", situation, (), 3))
    assert "If the expert on the right side, for a true claim or against a false one" in told


def test_whatever_is_stated_against_it_an_honest_prover_wins():
    """Every sequence of a few answers: the truth, two other values, and none."""
    chain = read_chain(problems(steps=8)[0].question)
    values, p = calculate(chain), chain.modulus
    for y, said in product((0, 1), product((0, 1, 5, None), repeat=3)):
        end = values[-1] if y else (values[-1] + 1) % p
        stated = []
        for offset in said:
            middle = find_dispute(values[0], end, 8, stated).middle
            true = values[middle]
            lie = None if offset is None else (true + offset) % p
            stated.append((true, lie) if y else (lie, true))
        left = find_dispute(values[0], end, 8, stated)
        assert left.is_one_step and left.before == values[left.first]
        follows = chain.steps[left.first].apply(left.before, p) == left.asserted
        assert follows == bool(y)


def test_who_has_once_stated_no_value_for_the_claim_has_lost_it_for_good():
    for middle, last in product([(None, None), (None, 3)], [(7, 3), (7, 7), (7, None)]):
        assert find_dispute(0, 9, 4, [middle, last]).asserted is None


# None is honest, or there is one prover alone.


def test_an_opponent_that_tosses_coins_finds_one_wrong_step_of_k_in_one_of_k_games():
    """Over all outcomes of its coins, exactly, whichever step is the wrong one."""
    for rounds in (1, 3, 5):
        k = 2**rounds
        chain = read_chain(problems(steps=k)[0].question)
        end = (calculate(chain)[-1] + 1) % chain.modulus
        true, other = calculate(chain), calculate_back(chain, end)
        for wrong in range(1, k + 1):
            values, found = (*true[:wrong], *other[wrong:]), 0
            for coins in product((0, 1), repeat=rounds):
                stated = []
                for coin in coins:
                    value = values[find_dispute(true[0], end, k, stated).middle]
                    stated.append((value, (value + coin) % chain.modulus))
                left = find_dispute(true[0], end, k, stated)
                step = chain.steps[left.first]
                found += step.apply(left.before, chain.modulus) != left.asserted
            assert found == 1


def test_two_liars_who_agree_make_any_false_claim_pass():
    """So nothing is promised where neither is honest."""
    game = Game(settings())
    lie = find_scenario("chain").scripts["lie-early"]
    for problem in (p for p in problems() if p.y == 0):
        agrees = {"prover0": lambda turn: lie(as_prover_for_the_claim(turn)), "prover1": lie}
        assert play(game, problem, agrees) == 1


def as_prover_for_the_claim(turn):
    return ScriptedTurn(turn.agent, 1, turn.round, turn.texts, turn.chat, turn.seed)


@pytest.mark.parametrize("lie", ["honest", "lie-late", "lie-early", "lie-anywhere", "no-value"])
def test_a_check_of_a_drawn_step_finds_one_wrong_step_of_k_in_one_of_k(lie):
    """Over all steps that may be drawn, exactly; without values none but the ends is there."""
    game = Game(settings("adp"))
    script, k = game.scenario.scripts[lie], game.scenario.settings.steps
    for problem in problems()[:12]:
        accepted = []
        for number in range(1, k + 1):
            columns = {"drawn_step": str(number)}
            situation = Situation(problem.question, problem.solution, None, 0, columns)
            texts = game.seen_by_prover(situation)
            chat = game.render("prover", situation, (), 0)
            text = script(ScriptedTurn("prover", 1, 0, texts, chat, 0))
            said = [Turn(0, "prover", text, game.parse("prover", 0, 0, text, ()))]
            accepted.append(checks(game.render("verifier", situation, said, 1)))
        wrong = 0 if problem.y else k if lie == "no-value" else 1
        assert accepted.count(0) == wrong


def test_a_step_is_drawn_alike_and_drawn_again_where_messages_are_chosen():
    drawn, games = scenario(checked="drawn"), 1600
    texts = problems()[0].texts
    counted = Counter(draw_columns(drawn, texts, seed)["drawn_step"] for seed in range(games))
    again = Counter(
        draw_columns_again(drawn, {**texts, **draw_columns(drawn, texts, 0)}, seed)["drawn_step"]
        for seed in range(games)
    )
    for counts in (counted, again):
        assert len(counts) == 8
        assert all(abs(n - games / 8) < 4 * (games / 8) ** 0.5 for n in counts.values())
    disputed = scenario()
    assert draw_columns_again(disputed, {**texts, **draw_columns(disputed, texts, 0)}, 0) == {}


# Who is shown what.


@pytest.mark.parametrize("version", ["v1", "v2", "v3", "v4", "short"])
@pytest.mark.parametrize("protocol", ["refereed", "adp"])
def test_a_verifier_sees_one_step_and_no_prover_what_is_drawn(protocol, version):
    game = Game(settings(protocol, system_prompt_version=version))
    last = game.protocol.max_message_rounds - 1
    for problem in problems()[:4]:
        chats = defaultdict(set)
        for number in range(1, 9) if protocol == "adp" else (0,):
            columns = {"drawn_step": str(number)} if number else {}
            situation = Situation(problem.question, problem.solution, None, 3, columns)
            for agent in game.protocol.agent_names:
                chats[agent].add(json.dumps(game.render(agent, situation, (), last)))
        for agent, rendered in chats.items():
            is_prover = agent in PROVERS[protocol]
            assert len(rendered) == (1 if is_prover or protocol == "refereed" else 8)
            for chat in rendered:
                steps = re.findall(r"(?:add|subtract|multiply by) \d+", chat)
                assert len(steps) == (8 if is_prover else 1)


def test_what_a_prover_is_asked_depends_on_earlier_rounds_alone():
    """What the other one says in the same round changes nothing, and what it said before does."""
    game = Game(settings())
    situation = Situation(*(problems()[0].texts[c] for c in ("question", "solution")), None, 3)

    def said(round_, agent, value):
        text = f"Value: {value}"
        return Turn(round_, agent, text, game.parse(agent, round_, 3, text, ()))

    first = [said(0, "prover0", 1), said(0, "prover1", 1)]
    other = [said(0, "prover0", 2), said(0, "prover1", 1)]
    asked = game.render("prover1", situation, first, 1)
    assert "value after step 6" in asked[-1]["content"]
    assert "value after step 2" in game.render("prover1", situation, other, 1)[-1]["content"]
    whole = game.render("prover1", situation, [*first, said(1, "prover0", 5)], 1)
    assert whole[: len(asked)] == asked
    assert game.told("prover1", situation, first, 1)[1] == asked[-1]["content"]


def test_the_supervisor_s_own_message_comes_after_what_is_announced():
    agents = {"_default": {"use_supervisor_message": "all", "chat_format": "alternating"}}
    parameters = load_parameters({**settings().to_dict(), "agents": agents})
    game = Game(parameters)
    situation = Situation(*(problems()[0].texts[c] for c in ("question", "solution")), None, 3)
    [_, asked] = game.render("prover0", situation, (), 0)
    assert asked["content"].index("value after step 4") < asked["content"].index("your turn")
    assert "\n\n" in game.told("prover0", situation)[1]


# What is stated.


@pytest.mark.parametrize(
    ("message", "value"),
    [
        ("Answer: Value: 12", 12),
        ("value:12.", 12),
        ("**Value:** 12, as step 3 adds 7", 12),
        ("Answer: 12", 12),
        ("12", 12),
        ("Value: 12. I repeat: Value: 12", 12),
        ("Value: 12 or Value: 13", None),
        ("Value: 97", None),
        ("Value: -3", None),
        ("Value: 1.5", None),
        ("Value: 12a", None),
        ("The value after step 4 is 12", None),
        ("Value: " + "9" * 5000, None),
        ("", None),
    ],
)
def test_a_message_states_one_value_or_none(message, value):
    assert read_value(message, 97) == value


def test_values_of_all_steps_are_read_as_they_are_written():
    values = calculate(read_chain(problems()[0].question))
    assert read_values(f"Answer: {write_values(values)}") == dict(enumerate(values[1:], 1))
    assert read_values("1: 5, 1: 6, 2: 7; 3:8") == {2: 7, 3: 8}


# Problems.

CASES = {
    "as it is": {},
    "two steps": {"steps": 2, "modulus": 101},
    "only sums": {"operators": ["+"], "steps": 16},
    "small numbers": {"modulus": 11, "largest": 5},
}


@pytest.mark.parametrize("case", CASES)
def test_problems_are_balanced_labelled_rightly_new_and_the_same_again(case):
    splits = {split: problems(split, **CASES[case]) for split in ("train", "validation", "test")}
    check_splits(splits)
    for found in splits.values():
        assert sum(p.y for p in found) * 2 == len(found)
        for problem in found:
            chain, (start, end) = read_chain(problem.question), read_claim(problem.solution)
            value = start
            for step in chain.steps:
                n = step.operand
                value = {"+": value + n, "-": value - n, "*": value * n}[step.operator]
            assert problem.y == (value % chain.modulus == end)
            assert calculate_back(chain, calculate(chain)[-1]) == calculate(chain)
    assert problems("test", **CASES[case]) == splits["test"]
    assert problems("test", seed=1, **CASES[case]) != splits["test"]


RULES = {
    "the end": lambda start, end: end,
    "how far it went": lambda start, end: end - start,
    "up or down": lambda start, end: end > start,
    "the last digits": lambda start, end: (start % 10, end % 10),
    "odd or even": lambda start, end: (start + end) % 2,
    "both, roughly": lambda start, end: (start // 10, end // 10),
}


@pytest.mark.parametrize("case", CASES)
def test_nothing_that_is_counted_in_the_claim_tells_the_label(case):
    size = 1200
    made = scenario(train_size=size, **CASES[case]).generate("chains", "train")
    rows = [(read_claim(row["solution"]), row["y"]) for row in made]
    Random(0).shuffle(rows)  # of each two, one has a true claim
    told = {}
    for name, see in RULES.items():
        seen = defaultdict(Counter)
        for claim, y in rows[: size // 2]:
            seen[see(*claim)][y] += 1
        asked = rows[size // 2 :]
        right = sum((seen[see(*c)][1] > seen[see(*c)][0]) == y for c, y in asked)
        told[name] = abs(right / len(asked) - 0.5)
    assert max(told.values()) < 4 * 0.5 / (size / 2) ** 0.5, told


GOOD = "Start with 5. Calculate modulo 97.\n1: add 7\n2: multiply by 3"


@pytest.mark.parametrize(
    ("question", "solution", "y", "words"),
    [
        ("Start with 5.", "The chain starts with 5 and ends with 36.", None, ['"1: add 7"']),
        (GOOD.replace("2:", "3:"), "The chain starts with 5 and ends with 36.", None, ["for each"]),
        (GOOD.replace("97", "91"), "The chain starts with 5 and ends with 36.", None, ["a prime"]),
        (GOOD, "It ends with 36.", None, ["the solution must be"]),
        (GOOD, "The chain starts with 6 and ends with 36.", None, ["starts with 5", "says 6"]),
        (GOOD, "The chain starts with 5 and ends with 136.", None, ["below 97"]),
        (
            GOOD + "\n3: add 1",
            "The chain starts with 5 and ends with 37.",
            None,
            ["3 steps", "is 2"],
        ),
        (GOOD, "The chain starts with 5 and ends with 36.", 0, ["y is 0", "says 1"]),
    ],
)
def test_a_dataset_of_ones_own_is_labelled_or_the_row_named(tmp_path, question, solution, y, words):
    path = tmp_path / "own.jsonl"
    row = {"question": question, "solution": solution, "split": "train"}
    path.write_text(json.dumps(row if y is None else {**row, "y": y}) + "\n")
    with pytest.raises(DatasetError) as refused:
        problems(path=str(path), steps=2)
    assert all(word in str(refused.value) for word in ["line 1", *words]), refused.value


# What is refused.


@pytest.mark.parametrize(
    ("own", "words"),
    [
        ({"steps": 6}, ["steps must be a power of two", "got 6"]),
        ({"modulus": 91}, ["modulus must be a prime", "got 91"]),
        ({"largest": 97}, ["largest (97)", "below modulus (97)"]),
        ({"operators": ["/"]}, ["scenario_settings.operators"]),
        ({"checked": "first"}, ["scenario_settings.checked", "'disputed' or 'drawn'"]),
        ({"step": 4}, ["scenario_settings.step"]),
        ({"steps": 16}, ["refereed_protocol.max_message_rounds", "take 5 rounds", "set it to 5"]),
        ({"checked": "drawn"}, ["exactly one prover", "use adp"]),
    ],
)
def test_settings_that_make_no_game_are_refused(own, words):
    with pytest.raises(SettingsError) as refused:
        settings(**own)
    assert all(word in str(refused.value) for word in words), refused.value


@pytest.mark.parametrize(
    "protocol", ["nip", "debate", "mnip", "merlin_arthur", "multi_channel_test"]
)
def test_protocols_in_which_no_step_is_found_are_refused(protocol):
    with pytest.raises(SettingsError, match=r"scenario chain: protocol .*use refereed, adp with"):
        settings(protocol)


def test_too_few_chains_are_an_error_that_says_what_to_change():
    few = {"steps": 2, "modulus": 5, "largest": 2, "operators": ["+"], "train_size": 200}
    with pytest.raises(DatasetError, match=r"steps 2, modulus 5.* only \d+ different .*for train"):
        problems(**few)
