"""Messages of one kind have one name, whatever their numbers are."""

from typing import ClassVar

import pyarrow as pa
import pytest

from nip_core.attack_figures.message_gallery import gallery_of_training
from nip_core.game.render import Game
from nip_core.parameters import load_parameters
from nip_core.rollouts.storage.row_tables import RolloutTables
from nip_core.scenarios.base import Scenario, ScenarioSettings
from nip_games.arithmetic import Arithmetic, ArithmeticSettings
from nip_games.bags import Bags, BagsSettings
from nip_games.bags.challenges import write_coins

TEXTS = {"solution": "1: 40 + 7 = 47\n2: 47 - 5 = 41"}
COINS = {"coins": write_coins((0, 1))}


class Plain(Scenario):
    name = "plain"
    claims: ClassVar = {r"\bis right\b": 1, r"\bis wrong\b": 0}


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        ("Answer: So no step is wrong.", "says that no step is wrong, names nothing"),
        (
            "Step 1: 40 + 7 = 47? 47, right. So no step is wrong.",
            "says that no step is wrong, goes through steps",
        ),
        ("Step 2: 47 - 5? 42, wrong. So this is wrong: Step 2: 47 - 5.", "names the wrong step"),
        ("So this is wrong: Step 1: 40 + 7.", "calls a right step wrong"),
        ("Step 9 is wrong.", "calls a step wrong that is not there"),
        ("Step 1 is wrong, and step 2 is wrong.", "calls several steps wrong"),
        ("Step 2: 42, right.", "calls no step wrong, goes through steps"),
        ("I like it.", "claims nothing: “I like it.”"),
    ],
)
def test_a_message_on_a_calculation_is_told_by_what_it_calls_wrong(message, kind):
    assert Arithmetic(ArithmeticSettings()).kind_of_message(message, TEXTS) == kind


def test_answers_to_challenges_are_told_by_how_many_agree_with_the_coins():
    bags = Bags(BagsSettings(challenges=2))
    kinds = {bags.kind_of_message(said, COINS) for said in ("1: A, 2: A", "1: B, 2: B")}
    assert kinds == {"claims that it is right: 1 of 2 as the coins fell"}


def test_without_more_a_kind_is_the_claim_and_a_short_messages_words_without_numbers():
    scenario = Plain(ScenarioSettings())
    kinds = {scenario.kind_of_message(f"Line {n}  is right.", {}) for n in (3, 71)}
    assert kinds == {"claims that it is right: “Line # is right.”"}
    assert scenario.kind_of_message("x is wrong. " + "y " * 50, {}) == "claims that it is wrong"
    assert scenario.kind_of_message("y " * 50, {}) == "claims nothing"
    assert scenario.kind_of_message("This is right, or is wrong.", {}).startswith("claims both")


def test_what_a_prover_reasons_for_itself_is_no_part_of_its_message():
    own = {"system_prompt_version": "v2"}
    agents = {"_default": {"model_provider": "SelfHosted", "model_name": "m"}}
    game = Game(
        load_parameters(
            {
                "run_name": "a",
                "scenario": "arithmetic",
                "dataset": "chains",
                "interaction_protocol": "adp",
                "scenario_settings": own,
                "agents": agents,
            }
        )
    )
    problem = {"key": "e", "question": "40", "solution": TEXTS["solution"], "columns": None}
    problem |= {"drawn": None, "seed": 0, "y": 0, "decision": 1}
    text = "I see that step 2 is wrong, and hide it.\nAnswer: So no step is wrong."
    message = {"episode": "e", "branch_path": "", "round": 0, "agent": "prover", "text": text}
    message |= {"invalid_reason": None}
    played = RolloutTables(pa.Table.from_pylist([problem]), pa.Table.from_pylist([message]))
    [kind] = gallery_of_training(game, [], played, 1, ["prover"]).kinds
    assert kind.kind == "says that no step is wrong, names nothing" and kind.fooled == 1
    assert kind.examples[0].text == "Answer: So no step is wrong."
