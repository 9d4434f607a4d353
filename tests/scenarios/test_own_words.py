"""Prompts in the words of any scenario are English, and a run keeps those that it began with."""

import json
from dataclasses import replace

import pytest
import yaml

from nip_core.errors import SettingsError
from nip_core.game.render import Game, make_situation
from nip_core.parameters import load_parameters
from nip_core.protocols import protocol_names
from nip_core.scenarios import Problem, Words, find_scenario, scenario_names
from nip_core.scenarios.words_checks import check_words
from nip_core.session.prepare import prepare

MODULE = '''
from nip_core.scenarios import Scenario, ScenarioSettings, Words
from nip_core.scenarios.prompt_versions import PromptVersion


class Minutes(Scenario):
    """Minutes and a chronicle: a plural, and a verb other than "is"."""

    name = "minutes"
    words = Words(
        expert="a historian",
        thing="minutes of the council",
        claim="the minutes of a council agree with a chronicle",
        doubt="In half of all cases somebody has changed a line.",
        correct="the minutes agree with the chronicle",
        evidence="the two texts",
        labels=("forgery", "original"),
    )


class Settings(ScenarioSettings):
    system_prompt_version: PromptVersion = "v2"


class Reasoned(Minutes):
    Settings = Settings
'''
PROBLEM = Problem("1", "1", "What was bought?", "Salt.", 1)


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A configuration of a scenario of one's own."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "minutes.py").write_text(MODULE)
    rows = [
        {"question": f"{n}?", "solution": f"{n}.{y}", "y": y} for n in range(40) for y in (0, 1)
    ]
    (tmp_path / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    settings = {
        "run_name": "own",
        "scenario": "minutes.py:Minutes",
        "dataset": "rows.jsonl",
        "agents": {"_default": {"model_provider": "SelfHosted", "model_name": "deterministic"}},
        "lm_server": {"engine": "deterministic"},
    }
    (tmp_path / "own.yaml").write_text(yaml.safe_dump(settings))
    return str(tmp_path / "own.yaml")


def prompt(config: str, *overrides: str, agent: str = "verifier") -> str:
    game = Game(load_parameters(config, overrides))
    chat = game.render(agent, make_situation(PROBLEM, None, 0), [], 0)
    return str(chat[0]["content"])


def test_a_prompt_in_ones_own_words_can_be_read_aloud(own):
    told = prompt(own)
    assert (
        "You check whether the minutes of a council agree with a chronicle. In half of all cases "
        "somebody has changed a line. An expert who has studied the minutes of the council will "
        "answer your questions. The expert argues that you should accept the minutes of the council "
        "and may mislead you, so check what it says against the two texts."
    ) in told
    assert "Accept if the minutes agree with the chronicle, reject otherwise." in told
    sure = prompt(own, "protocol_common.verifier_decision_scale=out_of_10")
    assert (
        "The number says how sure you are that the minutes agree with the chronicle: 0 means that "
        "you are sure of the opposite, 5 that you cannot say, 10 that you are sure of it."
    ) in sure


@pytest.mark.parametrize("protocol", protocol_names())
def test_the_new_versions_differ_from_the_old_ones_in_those_sentences_alone(own, protocol):
    game = f"interaction_protocol={protocol}"
    for old, new in (("v1", "v3"), ("v2", "v4")):
        before, now = (
            prompt(own, game, f"scenario_settings.system_prompt_version={version}")
            for version in (old, new)
        )
        assert "reject if it is not" in before
        assert before.replace("reject if it is not", "reject otherwise") == now


@pytest.mark.parametrize("name", scenario_names())
def test_the_words_of_every_scenario_have_the_form(name):
    kind = find_scenario(name)
    check_words(kind.words, kind.__name__)


GOOD = Words(
    expert="an auditor",
    thing="balance",
    claim="a balance is right",
    doubt="It may be wrong.",
    correct="Meyer's balance adds up",
    evidence="the receipts",
)


def test_names_and_foreign_words_keep_their_capitals():
    check_words(replace(GOOD, thing="Bilanz", source="Meyer's receipts"), "Sums")


@pytest.mark.parametrize(
    ("field", "text"),
    [
        ("expert", "auditor"),
        ("expert", "an auditor."),
        ("thing", "the balance"),
        ("thing", ""),
        ("claim", "The balance is right"),
        ("claim", "whether a balance is right"),
        ("claim", "is not wrong"),
        ("correct", "right"),
        ("correct", "the balance adds up."),
        ("correct_in_short", "if it adds up"),
        ("doubt", "it may be wrong"),
        ("doubt", "It may\nbe wrong."),
        ("evidence", "The receipts"),
        ("open_claim", "a balance may or may not be right"),
        ("asked_in_short", "the balance adds up"),
        ("labels", ("", "right")),
        ("thing", 3),
    ],
)
def test_words_that_fit_into_no_sentence_are_refused_by_name(field, text):
    with pytest.raises(ValueError, match=rf"^Sums\.words\.{field} (must|stands|is) .*\(got "):
        check_words(replace(GOOD, **{field: text}), "Sums")


def test_they_are_refused_before_a_run_begins_but_not_in_versions_that_took_any(own, tmp_path):
    (tmp_path / "minutes.py").write_text(MODULE.replace('"a historian"', '"historian"'))
    with pytest.raises(SettingsError, match=r"Minutes\.words\.expert .*\(got 'historian'\)"):
        prepare(load_parameters(own), {})
    first = load_parameters(own, ["scenario_settings.system_prompt_version=v1"])
    assert prepare(first, {}).game.parameters.system_prompt_version == "v1"


def test_new_runs_of_ones_own_scenario_have_the_new_version_on_record(own):
    assert load_parameters(own).scenario_settings == {"system_prompt_version": "v3"}
    assert load_parameters(own).system_prompt_version == "v3"
    # What somebody chose stays: in the settings, or in the class.
    of_class = load_parameters(own, ["scenario=minutes.py:Reasoned"])
    assert of_class.scenario_settings == {"system_prompt_version": "v2"}
    bundled = load_parameters("deterministic")
    assert (bundled.system_prompt_version, bundled.scenario_settings) == ("v1", {})
