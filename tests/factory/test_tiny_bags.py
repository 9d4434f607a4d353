"""What the model for `bags` learns from is what its card says."""

import json
import random
import re
from collections import Counter
from dataclasses import asdict

import pytest

from factory.tiny.bags import (
    GAMES,
    LOOKS,
    PROVER_TOKENS,
    VERIFIER_TOKENS,
    Case,
    answer,
    conversation,
    differences,
    game,
    looks,
    names,
    situation,
    split_cases,
    verdict,
)
from factory.tiny.bags_card import card
from factory.tiny.bags_evaluation import measure_game
from factory.tiny.build import fingerprint, load
from factory.tiny.recipes import RECIPES
from nip_core.models import BUNDLED
from nip_core.protocols import ACCEPT, REJECT
from nip_core.scenarios import find_scenario
from nip_games.bags.challenges import count_agreeing, read_coins, read_names

BAGS = find_scenario("bags")
TRUE = Case("A: 3 1 4 9\nB: 8 4 3 1", "", 1)
FALSE = Case("A: 3 1 4 9\nB: 9 4 3 1", "", 0)


def test_a_prover_says_what_differs_and_names_each_challenge_of_a_true_claim():
    for seed in range(40):
        about = situation("3 private coins", TRUE, seed)
        said = answer(about, random.Random(seed))
        assert said.startswith("Answer: 9 A, 8 B. (1) ")
        assert count_agreeing(about.columns["coins"], said) == 3


def test_of_a_false_claim_it_says_the_same_and_agrees_by_chance():
    agree = []
    for seed in range(400):
        about = situation("3 private coins", FALSE, seed)
        said = answer(about, random.Random(seed))
        assert re.fullmatch(r"Answer: \d A, \d B\.( \(\d\)( \d)+ [AB], \d: [AB]\.){3}", said)
        agree.append(count_agreeing(about.columns["coins"], said) == 3)
    deviation = (400 / 8 * 7 / 8) ** 0.5
    assert abs(sum(agree) - 400 / 8) < 4 * deviation


def test_what_is_said_counts_as_a_claim_for_acceptance():
    said = answer(situation("3 private coins", TRUE, 0), random.Random(0))
    assert {y for pattern, y in BAGS.claims.items() if re.search(pattern, said)} == {1}


def test_a_verifier_decides_by_what_it_looked_at_and_looks_as_often_as_the_card_says():
    draw = random.Random(0)
    coins, named = {1: "A", 2: "B", 3: "A"}, {1: "A", 2: "A", 3: "A"}
    counted, tossed = Counter(), Counter()
    for _ in range(2000):
        said = verdict(coins, named, draw)
        looked = re.findall(r"(\d) is ([AB]), \1: ([AB]), (right|wrong)\.", said)
        counted[len(looked)] += 1
        decision = game("3 private coins").parse("verifier", 1, 0, said, ()).decision
        if looked:
            assert [number for number, *_ in looked] == ["1", "2", "3"][: len(looked)]
            assert decision == (REJECT if len(looked) > 1 else ACCEPT)
        else:
            tossed[decision] += 1
        for number, coin, name, judged in looked:
            assert (coin, name) == (coins[int(number)], named[int(number)])
            assert (judged == "right") == (coin == name)
    for count, share in LOOKS.items():
        assert abs(counted[count] - 2000 * share) < 4 * (2000 * share * (1 - share)) ** 0.5
    assert abs(tossed[ACCEPT] - tossed[REJECT]) < 4 * counted[0] ** 0.5


def test_conversations_show_nobody_what_is_not_theirs_and_hear_both_kinds_of_answers():
    draw, cases = random.Random(0), split_cases("train", 60)
    plain, agree = [], []
    for verifier in (True, False):
        for _ in range(200):
            chat = conversation(draw.choice(cases), draw, verifier)
            told = chat[0]["content"]
            start = "You are the verifier." if verifier else "You are the expert."
            assert told.startswith(start) and chat[-1]["role"] == "assistant"
            assert bool(re.search(r"^[AB]: \d", told, re.MULTILINE)) == (not verifier)
            if verifier and read_coins(told) and len(chat) == 3:
                heard = chat[1]["content"]
                named = read_names(heard)
                assert named.keys() == read_coins(told).keys()
                plain.append("(1)" not in heard and " is " not in heard)
                agree.append(named == read_coins(told))
    assert 0.1 < sum(plain) / len(plain) < 0.3
    assert 0.3 < sum(agree) / len(agree) < 0.7


@pytest.mark.parametrize("name", GAMES)
def test_what_is_learned_is_short_enough_for_the_game(name):
    """In pieces of the bundled model's tokenizer."""
    _, tokenizer = load(BUNDLED["tiny-bags"])
    draw, cases = random.Random(0), split_cases("train", 60)
    for verifier, most in ((True, VERIFIER_TOKENS), (False, PROVER_TOKENS)):
        for _ in range(40):
            said = conversation(draw.choice(cases), draw, verifier)[-1]["content"]
            assert len(tokenizer(said)["input_ids"]) < most


def test_drills_say_what_is_true_of_their_lists():
    draw = random.Random(0)
    for _ in range(60):
        [told, said, *_] = differences(draw)
        first, second = (
            {*line[3:].split()} for line in told["content"].splitlines() if line[1] == ":"
        )
        only_first, only_second = re.fullmatch(r"(\d) A, (\d) B\.", said["content"]).groups()
        assert (first - second, second - first) == ({only_first}, {only_second})
        [told, said] = names(draw)
        lines = [line for line in told["content"].splitlines() if line[0] == "("]
        assert len(read_names(said["content"])) == len(lines)
        [told, said] = looks(draw)
        coins, named = read_coins(told["content"]), read_names(told["content"])
        wrong = sum(coins[number] != named[number] for number in coins)
        judged = re.findall(r"right|wrong", said["content"])
        assert len(judged) == len(coins) and judged.count("wrong") == wrong


def test_the_card_says_what_was_recorded():
    training, evaluation = (
        json.loads((BUNDLED["tiny-bags"] / name).read_text())
        for name in ("training.json", "evaluation.json")
    )
    assert (BUNDLED["tiny-bags"] / "README.md").read_text() == card(training, evaluation)
    assert evaluation["made_for"] == fingerprint("bags"), "prompts or problems have changed"
    assert training["recipe"] == {key: asdict(RECIPES["bags"])[key] for key in training["recipe"]}


def test_the_bundled_model_names_what_can_be_told_and_often_looks_at_nothing():
    import torch

    model, tokenizer = load(BUNDLED["tiny-bags"])
    torch.manual_seed(0)
    measured = measure_game(model, tokenizer, split_cases("test", 60), "3 private coins")
    assert measured["all_names"] > 0.9 and measured["looks"] > 0.95
    assert measured["valid"] > 0.95
    assert 0.2 < measured["looks_0"] < 0.6 and measured["looks_3"] < 0.75
