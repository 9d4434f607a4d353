"""`arithmetic`: chains are drawn, split, worded and checked as its page says."""

import asyncio
import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_game import FEW, train_here, write_config

from nip_core.errors import DatasetError, SettingsError
from nip_core.game.render import Game, Situation, make_situation
from nip_core.parameters import load_parameters
from nip_core.scenarios import find_scenario, make_scenario
from nip_core.scenarios.datasets import check_splits, load_problems
from nip_games.arithmetic.chains import (
    CHAIN,
    STORIES,
    ChainStep,
    Question,
    draw_chain,
    is_right,
    read_question,
    read_steps,
    write_steps,
)

SPLITS = ("train", "validation", "test")
SMALL = {"train_size": 60, "validation_size": 20, "test_size": 40}


def arithmetic(**changes):
    kind = find_scenario("arithmetic")
    return kind(kind.Settings(**{**SMALL, **changes}))


def problems(split="train", **changes):
    return load_problems(arithmetic(**changes), "chains", split)


questions = st.builds(
    Question,
    st.integers(0, 10**6),
    st.lists(st.tuples(st.sampled_from("+-*"), st.integers(0, 10**6)), min_size=1, max_size=9).map(
        tuple
    ),
)


@given(question=questions, wording=st.sampled_from((CHAIN, *STORIES)))
def test_a_question_is_read_as_it_is_worded(question, wording):
    assert read_question(question.text(wording)) == question


@settings(max_examples=60)
@given(
    seed=st.integers(0, 10**6),
    length=st.integers(1, 12),
    below=st.sampled_from((40, 100, 1000, 10**6)),
    signs=st.sampled_from(("+", "-", "+-", "*+", "+-*")),
    mistakes=st.sampled_from(
        ((), ("off_by_one",), ("carry",), ("swapped_digits", "wrong_operator"))
    ),
)
def test_a_chain_has_one_wrong_step_of_the_kind_it_names_or_none(
    seed, length, below, signs, mistakes
):
    draw = random.Random(seed)
    start = draw.randrange(2, below)
    drawn = draw_chain(draw, start, length, below, signs, mistakes)
    if drawn is None:
        return
    steps, kind = drawn
    wrong = [step for step in steps if step.result != step.true_result]
    assert len(wrong) == len(mistakes[:1])
    assert kind is None if not mistakes else kind in mistakes
    assert all(2 <= value < below for step in steps for value in (step.left, step.result))
    assert read_steps(write_steps(steps)) == steps
    asked = Question(start, tuple((step.sign, step.right) for step in steps))
    assert is_right(asked, steps) == (not wrong)
    for step in wrong:
        by = abs(step.result - step.true_result)
        if kind == "off_by_one":
            assert by == 1
        elif kind == "carry":
            assert set(str(by)) <= {"1", "0"} and by >= 10
        elif kind == "swapped_digits":
            assert sorted(str(step.result)) == sorted(str(step.true_result))
        else:
            assert step.result in (step.left + step.right, step.left - step.right)


@pytest.mark.parametrize("form", ["chain", "words"])
def test_splits_share_no_chain_and_are_the_same_each_time(form):
    by_split = {split: problems(split, form=form) for split in SPLITS}
    check_splits(by_split)
    for split, drawn in by_split.items():
        assert len(drawn) == SMALL[f"{split}_size"]
        assert drawn == problems(split, form=form)
        assert drawn != problems(split, form=form, seed=1)
        assert Counter(p.y for p in drawn) == {0: len(drawn) // 2, 1: len(drawn) // 2}
        assert {p.difficulty for p in drawn} == {"4 steps below 100"}
        assert all((p.mutation is None) == (p.y == 1) for p in drawn)
    starts = {
        split: {read_question(p.question).start % 10 for p in drawn}
        for split, drawn in by_split.items()
    }
    assert starts["validation"] == {7} and starts["test"] == {8, 9}
    assert starts["train"] == {0, 1, 2, 3, 4, 5, 6}


def test_more_problems_begin_with_the_fewer():
    few, more = problems(), problems(train_size=80)
    assert more[: len(few)] == few


def test_settings_decide_about_steps_numbers_operators_and_mistakes():
    drawn = problems(steps=7, numbers=5000, operators=["*", "-"], mistakes=["carry"])
    assert {len(read_steps(p.solution)) for p in drawn} == {7}
    assert {step.sign for p in drawn for step in read_steps(p.solution)} == {"*", "-"}
    assert max(step.result for p in drawn for step in read_steps(p.solution)) > 999
    assert {p.mutation for p in drawn} == {None, "carry"}


RIGHT = {"question": "Start with 4. Add 3. Subtract 5.", "solution": "1: 4 + 3 = 7\n2: 7 - 5 = 2"}


@pytest.mark.parametrize(
    ("solution", "y"),
    [
        ("1: 4 + 3 = 7\n2: 7 - 5 = 2", 1),
        ("1: 4 + 3 = 8\n2: 8 - 5 = 3", 0),
        ("1: 4 + 3 = 8\n2: 7 - 5 = 2", 0),  # goes on with another number
        ("1: 4 + 3 = 7\n2: 7 + 5 = 12", 0),  # not what is asked
        ("1: 4 + 3 = 7", 0),  # a step is missing
        ("1: 4 + 3 = 7\n2: 7 - 5 = 2\n3: 2 + 2 = 4", 0),
        ("1: 5 + 3 = 8\n2: 8 - 5 = 3", 0),
    ],
)
def test_the_checker_calculates_again(solution, y):
    assert arithmetic().label({**RIGHT, "solution": solution}) == y


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"solution": "It is 2."}, r"the line 'It is 2.'; expected a step like '1: 4 \+ 3 = 7'"),
        ({"solution": "2: 4 + 3 = 7"}, "expected a step like '1: "),
        ({"question": "What is 4 + 3?"}, r"begins with 'What is 4 \+ 3\?', which is no known"),
        ({"question": "Start with 4. Halve it."}, "the sentence 'Halve it.', which is no known"),
        ({"question": "Ann has 4 marbles. She loses 2."}, "does not end with 'How many marbles"),
        ({"y": 0}, "y is 0, and the checker of scenario arithmetic says 1"),
    ],
)
def test_a_row_that_cannot_be_checked_is_named(tmp_path, row, message):
    import json

    path = tmp_path / "own.jsonl"
    path.write_text(json.dumps({**RIGHT, "split": "test", **row}) + "\n")
    with pytest.raises(DatasetError, match=message) as error:
        load_problems(arithmetic(), str(path), "test")
    assert "own.jsonl" in str(error.value)


def test_too_few_different_chains_are_an_error():
    with pytest.raises(DatasetError, match=r"lower train_size, or raise steps or numbers"):
        problems(steps=1, numbers=40, operators=["*"], train_size=1000)
    products = {"generator": "chains-2", "operators": ["*"]}
    with pytest.raises(DatasetError, match=r"only 0 .* for train; raise numbers, or lower steps,"):
        problems(**products)
    for mended in ({"numbers": 100_000}, {"steps": 1}):
        assert len(problems(**products, **mended, train_size=2)) == 2


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"steps": 0}, "steps"),
        ({"numbers": 10}, "numbers"),
        ({"operators": ["/"]}, "operators"),
        ({"mistakes": []}, "mistakes"),
        ({"length": 3}, "length"),
    ],
)
def test_a_wrong_setting_is_named(setting, message):
    with pytest.raises(SettingsError, match=message):
        load_parameters(
            {
                "run_name": "a",
                "dataset": "chains",
                "scenario": "arithmetic",
                "scenario_settings": setting,
                "agents": {"_default": {"model_provider": "SelfHosted", "model_name": "m"}},
            }
        )


@pytest.mark.parametrize("version", ["v1", "v2", "short"])
@pytest.mark.parametrize("protocol", ["nip", "adp", "debate", "solo_verifier", "mnip"])
def test_every_agent_is_told_of_calculations_and_of_no_code(protocol, version):
    game = Game(
        load_parameters(
            {
                "run_name": "a",
                "dataset": "chains",
                "scenario": "arithmetic",
                "interaction_protocol": protocol,
                "scenario_settings": {"system_prompt_version": version},
                "agents": {"_default": {"model_provider": "SelfHosted", "model_name": "m"}},
            }
        )
    )
    problem = load_problems(make_scenario(game.parameters), "chains", "test")[0]
    for agent in game.protocol.agent_names:
        told, _ = game.told(agent, make_situation(problem, None, 1))
        assert problem.question in told and problem.solution in told
        for word in ("Python", "code", "bug", "match"):
            assert word not in told


def test_a_run_learns_from_it_with_scripted_replies(tmp_path):
    config = write_config(
        tmp_path,
        scenario="arithmetic",
        dataset="chains",
        scenario_settings={"form": "words", "steps": 5, **SMALL},
        rl=FEW,
        dataset_options={"max_test_size": 8},
    )
    summary = asyncio.run(train_here(config))
    assert summary["iterations"]


def test_a_wrong_step_shows_its_true_result():
    assert ChainStep(47, "+", 8, 54).true_result == 55


@pytest.mark.parametrize(
    ("scenario", "words"),
    [
        ("code_validation", "Say whether they match."),
        ("arithmetic", "Say which step is wrong."),
        ("graphs", "Say which graph each challenge is."),
    ],
)
def test_a_short_prompt_asks_for_what_the_scenario_is_about(scenario, words):
    block = "code_validation" if scenario == "code_validation" else "scenario_settings"
    agents = {"_default": {"model_provider": "SelfHosted", "model_name": "m"}}
    settings = {"run_name": "a", "dataset": "d", "scenario": scenario, "agents": agents}
    shared = {"protocol_common": {"shared_reward": True}}
    game = Game(load_parameters({**settings, **shared, block: {"system_prompt_version": "short"}}))
    assert words in game.told("prover", Situation("A: 0-1\nB: 0-1", "s", None, 0))[0]
