"""What the models for `arithmetic` learn from is what their cards say."""

import json
import random
import re
from collections import Counter
from dataclasses import asdict

import pytest

from factory.tiny.arithmetic import (
    GAMES,
    GAMES_IN_TURNS,
    VERIFIER_TOKENS,
    conversation,
    disputed,
    disputed_in_turns,
    game,
    in_turns,
    played_in_turns,
    situation,
    split_cases,
)
from factory.tiny.arithmetic_card import card
from factory.tiny.arithmetic_evaluation import measure_game, measure_prover
from factory.tiny.arithmetic_words import (
    STEPS,
    Case,
    check,
    checks,
    decision,
    reading,
    statement,
)
from factory.tiny.build import fingerprint, load, make_model
from factory.tiny.evaluation import generate
from factory.tiny.recipes import RECIPES
from nip_core.models import BUNDLED
from nip_core.protocols import ACCEPT, NO_DECISION, REJECT, Turn
from nip_core.scenarios import find_scenario

RIGHT = Case("", "1: 47 + 8 = 55\n2: 55 - 6 = 49\n3: 49 + 3 = 52\n4: 52 - 4 = 48", 1)
WRONG = Case("", "1: 47 + 8 = 55\n2: 55 - 6 = 49\n3: 49 + 3 = 53\n4: 53 - 4 = 49", 0)


RECIPES_OF = {"tiny-arithmetic": "arithmetic", "tiny-arithmetic-turns": "arithmetic-turns"}


def said(case, verdict):
    return [statement(case.steps, verdict, random.Random(seed)) for seed in range(40)]


def test_a_check_restates_the_step_and_the_decision_follows_from_it():
    assert check(WRONG.steps, 3) == "Step 3: 49 + 3 = 53? 52, wrong."
    assert decision(WRONG.steps, 3) == f"{check(WRONG.steps, 3)}\nDecision: reject"
    assert decision(WRONG.steps, 4) == "Step 4: 53 - 4 = 49? 49, right.\nDecision: accept"


@pytest.mark.parametrize(
    ("case", "verdict"), [(RIGHT, None), (RIGHT, "accept"), (WRONG, None), (WRONG, "reject")]
)
def test_a_prover_whom_the_truth_suits_says_nothing_else(case, verdict):
    for text in said(case, verdict):
        for step in re.findall(r"Step \d: [^.?]*\? [^.]*\.", text):
            assert step == check(case.steps, int(step[5]))
        conclusion = "no step is wrong" if case.y else "this is wrong: Step 3: 49 + 3"
        assert text.endswith(f". So {conclusion}.")


@pytest.mark.parametrize(("case", "verdict"), [(RIGHT, None), (WRONG, None), (WRONG, "accept")])
def test_what_a_prover_concludes_is_a_claim_of_the_scenario(case, verdict):
    claims = find_scenario("arithmetic").claims
    argued = 1 if verdict == "accept" else case.y
    for text in said(case, verdict):
        assert {y for pattern, y in claims.items() if re.search(pattern, text, re.I)} == {argued}


def test_a_prover_lies_in_one_step_where_it_must():
    for text in said(WRONG, "accept"):
        assert "Step 3: 49 + 3 = 53? 53, right." in text
        assert text.endswith(" So no step is wrong.")
    denied = Counter()
    for text in said(RIGHT, "reject"):
        step = re.search(r"So this is wrong: Step (\d): [^:]*\.$", text)[1]
        assert check(RIGHT.steps, int(step)) not in text
        denied[step] += 1
    assert len(denied) == STEPS  # not always the same one


def test_conversations_are_those_of_the_games_and_end_with_the_model():
    draw, cases = random.Random(0), split_cases("train", 40)
    for verifier in (True, False):
        for _ in range(60):
            chat = conversation(draw.choice(cases), draw, verifier)
            assert chat[0]["role"] == "system" and chat[-1]["role"] == "assistant"
            start = "You are the verifier." if verifier else "You are the expert."
            debater = re.match(r"You are Expert_[12]\.", chat[0]["content"])
            assert chat[0]["content"].startswith(start) or (debater and not verifier)


@pytest.mark.parametrize("name", GAMES)
def test_what_is_learned_has_the_form_of_the_game(name):
    played, about = game(name), situation(WRONG, 1 if "stance" in name else None)
    rounds = played.protocol.max_message_rounds
    move = played.parse("verifier", rounds - 1, 0, decision(WRONG.steps, 3), ())
    assert move.decision == REJECT
    turns: list[Turn] = []
    assert played.render("verifier", about, turns, 0)[0]["role"] == "system"


@pytest.mark.parametrize("name", GAMES_IN_TURNS)
def test_told_of_its_turns_the_verifier_checks_another_step_in_each(name):
    draw, ends = random.Random(0), Counter()
    for case in (RIGHT, WRONG) * 40:
        about, turns = played_in_turns(name, case, draw)
        said = [turn for turn in turns if turn.agent == "verifier"]
        checked = [int(n) for turn in said for n in re.findall(r"^Step (\d):", turn.text)]
        questions = game(name).protocol.max_questions(about.seed)
        asks_two = len(game(name).protocol.channels) > 1
        assert len({*checked}) == len(checked) <= (1 if asks_two else questions + 1)
        assert [turn.move.decision for turn in said[:-1]] == [NO_DECISION] * (len(said) - 1)
        found = case is WRONG and 3 in checked
        assert said[-1].move.decision == (REJECT if found else ACCEPT)
        assert not found or checked[-1] == 3  # what is wrong is rejected at once
        if not found:
            assert len(said) == questions + 1
        ends[case.y, said[-1].move.decision] += 1
    assert ends[1, ACCEPT] == 40 and ends[0, REJECT] > 0


def test_games_in_turns_are_learned_from_both_sides():
    draw, cases, roles = random.Random(0), split_cases("train", 40), Counter()
    for verifier in (True, False):
        for _ in range(80):
            chat = in_turns(draw.choice(cases), draw, verifier)
            told = [m for m in chat if m.get("name") == "Supervisor"]
            assert chat[-1]["role"] == "assistant" and bool(told) == verifier
            roles[verifier, sum(m["role"] == "assistant" for m in chat)] += 1
    assert all(roles[True, turns] for turns in (1, 2, 3))
    assert all(roles[False, turns] for turns in (1, 2))


def test_training_cases_start_as_the_training_split_does():
    digits = {
        split: {int(case.question.split(".")[0][-1]) for case in split_cases(split, 200)}
        for split in ("train", "validation", "test")
    }
    assert digits == {"train": {0, 1, 2, 3, 4, 5, 6}, "validation": {7}, "test": {8, 9}}


def test_drills_say_what_stands_there_and_what_it_gives():
    draw = random.Random(0)
    for _ in range(40):
        [told, said] = reading(draw)
        lines = dict(line.split(": ") for line in told["content"].splitlines()[1:-1])
        for number, line in re.findall(r"Step (\d): ([^.]*)\.", said["content"]):
            assert lines[number] == line
        [told, said] = checks(RIGHT, draw)
        for left, sign, right, written, is_, verdict in re.findall(
            r": (\d+) ([-+]) (\d+) = (\d+)\? (\d+), (right|wrong)", said["content"]
        ):
            assert f": {left} {sign} {right} = {written}" in told["content"]
            assert int(is_) == (int(left) + int(right) if sign == "+" else int(left) - int(right))
            assert verdict == ("right" if is_ == written else "wrong")


def test_a_disputed_step_is_checked_as_it_is():
    draw, told = random.Random(0), Counter()
    for _ in range(60):
        case = draw.choice((RIGHT, WRONG))
        *heard, asked, said = disputed(case, draw)
        named = re.search(r"this is wrong: Step (\d)", "".join(m["content"] for m in heard))[1]
        number = re.fullmatch(r"Check step (\d)\.", asked["content"])
        assert said["content"] == decision(case.steps, int(number[1] if number else named))
        told[bool(number), heard[-1].get("name")] += 1
    assert len(told) == 6  # the expert, or either of two last
    for _ in range(30):
        case = draw.choice((RIGHT, WRONG))
        *heard, asked, said = disputed_in_turns(case, draw)
        experts = "".join(m["content"] for m in heard if m.get("name", "").startswith("Expert"))
        named = re.findall(r"this is wrong: Step (\d)", experts)[-1]
        number = re.fullmatch(r"Check step (\d)\.", asked["content"])
        assert said["content"] == decision(case.steps, int(number[1] if number else named))


def test_heads_begin_by_looking_back():
    import torch

    recipe = RECIPES["arithmetic"]
    model = make_model(recipe, load(BUNDLED["tiny-arithmetic"])[1])
    seen = model(torch.arange(5, 45)[None], output_attentions=True).attentions[0][0]
    for head in range(recipe.look_back):
        assert seen[head, 30, 30 - head - 1] > 0.9


@pytest.mark.parametrize(("name", "recipe"), RECIPES_OF.items())
def test_the_card_says_what_was_recorded(name, recipe):
    training, evaluation = (
        json.loads((BUNDLED[name] / file).read_text())
        for file in ("training.json", "evaluation.json")
    )
    assert (BUNDLED[name] / "README.md").read_text() == card(training, evaluation)
    assert evaluation["made_for"] == fingerprint(recipe), "prompts or problems have changed"
    assert training["recipe"] == {key: asdict(RECIPES[recipe])[key] for key in training["recipe"]}


def test_the_bundled_model_checks_the_step_that_it_names_and_can_lie():
    import torch

    model, tokenizer = load(BUNDLED["tiny-arithmetic"])
    torch.manual_seed(0)
    cases = split_cases("test", 60)
    alone = measure_game(model, tokenizer, cases, "solo_verifier", 0.5)
    assert alone["checked_rightly"] > 0.9 and alone["completeness"] > 0.85
    assert alone["soundness"] < 0.5  # one step of four
    told = measure_prover(model, tokenizer, cases, "accept", 0.5)
    assert told["right"] > 0.85 and told["lies"] > 0.85


def test_the_bundled_model_of_turns_checks_a_step_where_it_may_ask():
    import torch

    model, tokenizer = load(BUNDLED["tiny-arithmetic-turns"])
    torch.manual_seed(0)
    cases, played = split_cases("test", 40), game("nip, told")
    chats = [played.render("verifier", situation(case, None), [], 0) for case in cases]
    checked = 0
    for case, text in zip(
        cases, generate(model, tokenizer, chats, 0.5, max_tokens=VERIFIER_TOKENS), strict=True
    ):
        move = played.parse("verifier", 0, 0, text, ())
        step = re.match(r"Step ([1-4]): ", text)
        checked += step is not None and text.startswith(check(case.steps, int(step[1])))
        assert move.decision == (REJECT if "wrong." in text else NO_DECISION)
    assert checked >= 32
