"""Invalid answers are counted by reason beside accuracy, and many of them are a warning."""

import json
import re

import pytest

from nip_cli.printing.plans_and_runs import show_run
from nip_core.evaluation.baseline_words import remarks
from nip_core.evaluation.invalid import (
    Help,
    find_help,
    invalid_answers,
    invalid_line,
    invalid_warning,
)
from nip_core.evaluation.split_metrics import InvalidAnswers, SplitMetrics
from nip_core.game.answers.reasons import KINDS
from nip_core.parameters import load_parameters

TOLD = Help(hinted=frozenset({"verifier"}))
UNCLEAR = "a verdict that is not clear"


def played(generations_of):
    """Twelve first answers of the verifier, of which three are invalid, and one twice."""
    return generations_of(
        *({"episode": f"e{i}", "agent": "verifier"} for i in range(9)),
        {"episode": "e9", "agent": "verifier", "invalid_reason": UNCLEAR},
        {"episode": "e9", "agent": "verifier", "invalid_reason": "empty answer", "attempt": 1},
        {"episode": "e9", "agent": "verifier", "attempt": 2},
        {"episode": "e10", "agent": "verifier", "invalid_reason": UNCLEAR},
        {"episode": "e11", "agent": "verifier", "invalid_reason": UNCLEAR, "finish_reason": "length"},
        {"episode": "e0", "agent": "prover"},
    )  # fmt: skip


def test_invalid_answers_are_counted_by_agent_and_reason(generations_of):
    counted = invalid_answers(played(generations_of))
    verifier = {
        "first_answers": 12,
        "invalid": 3,
        "by_reason": {"unclear": 2, "cut_off": 1},
        "invalid_in_all": 4,
    }
    plain = counted.as_json()
    assert plain == {**verifier, "first_answers": 13, "agents": {"verifier": verifier}}
    assert json.loads(json.dumps(plain)) == plain
    assert set(verifier["by_reason"]) < set(KINDS)


def test_a_batch_without_invalid_answers_says_nothing(generations_of):
    assert invalid_answers(generations_of({"agent": "verifier"})) is None
    assert invalid_line(None) is None and invalid_warning(None) is None
    assert remarks(SplitMetrics(accuracy=0.5, accuracy_ci95=None)) == []


def test_the_line_names_each_agent_with_its_share_and_reasons(generations_of):
    counts = invalid_answers(played(generations_of))
    assert invalid_line(counts) == (
        "invalid first answers: verifier 3 of 12 (25.0 %: no clear verdict 2, cut off by the token "
        "limit 1); 4 invalid answers with retries"
    )
    assert invalid_warning(counts) is None


def counted(kind, invalid=4, of=12):
    entry = {
        "first_answers": of,
        "invalid": invalid,
        "by_reason": {kind: invalid},
        "invalid_in_all": 9,
    }
    return InvalidAnswers.model_validate({**entry, "agents": {"verifier": entry}})


def test_from_a_third_of_the_first_answers_on_a_warning_names_what_helps():
    assert invalid_warning(counted("unclear", 3, 10)) is None
    for kind in KINDS:
        words = invalid_warning(counted(kind))
        helps = "max_tokens_per_message" if kind in ("cut_off", "empty") else "retry_hint: true"
        assert "33.3 % of the first answers of verifier" in words
        assert KINDS[kind] in words and f"agents.verifier.{helps}" in words


def test_where_the_hint_is_on_the_warning_names_what_else_helps():
    for kind in KINDS:
        words = invalid_warning(counted(kind), TOLD)
        assert "retry_hint: true" not in words
        assert re.search(r"agents\.verifier\.(model_name|max_tokens_per_message)", words)
        assert (
            remarks(SplitMetrics(invalid_answers=counted(kind)), helps=TOLD)[1]
            == f"Warning: {words}"
        )
    other = Help(hinted=frozenset({"prover"}))
    assert "retry_hint: true" in invalid_warning(counted("unclear"), other)


def test_where_the_engine_can_guide_the_warning_proposes_it_by_name():
    """Whatever else would help, but for a model that says nothing at all."""
    for helps in (Help(guidable=frozenset({"verifier"})), Help(TOLD.hinted, TOLD.hinted)):
        for kind in KINDS:
            words = invalid_warning(counted(kind), helps)
            assert ("agents.verifier.guided_decoding: true" in words) == (kind != "empty")
        assert invalid_warning(counted("unclear", 3, 10), helps) is None


@pytest.mark.parametrize(
    ("agent", "trainer", "can"),
    [
        ({"model_provider": "SelfHosted"}, "pure_text_ei", True),
        ({"model_provider": "SelfHosted", "guided_decoding": True}, "pure_text_ei", False),
        ({"model_provider": "OpenAI"}, "pure_text_ei", False),
        ({"model_provider": "SelfHosted", "freeze_agent": True}, "pure_text_grpo", True),
    ],
)
def test_only_an_engine_that_can_guide_is_asked_to(agent, trainer, can):
    parameters = load_parameters(
        {
            "run_name": "a",
            "dataset": "x",
            "trainer": trainer,
            "agents": {"_default": {"model_name": "m", **agent}},
        }
    )
    helps = find_help(parameters)
    assert helps.guidable == (frozenset({"prover", "verifier"}) if can else frozenset())
    assert helps.hinted == {"prover", "verifier"}


def test_report_and_viewer_have_them_among_their_remarks(generations_of):
    metrics = SplitMetrics(invalid_answers=invalid_answers(played(generations_of)))
    assert remarks(metrics)[0].startswith("Invalid first answers: verifier 3 of 12")
    assert remarks(SplitMetrics(invalid_answers=counted("cut_off")))[1].startswith("Warning: 33.3")


def test_show_prints_them_below_the_table(capsys):
    test = {
        **dict.fromkeys(("accuracy", "completeness", "soundness"), 0.5),
        **{"accuracy_ci95": [0.4, 0.6], "distinct_problems": 4, "questions": 4},
        "invalid_answers": counted("no_decision").as_json(),
    }
    entry = {"iteration": 0, "test": test, "jobs": {}, "promotion": None}
    said = {"remarks": remarks(SplitMetrics.model_validate(test)), "costs": {}}
    show_run({"run": "a", "status": "finished", "iterations": [entry], **said})
    out = " ".join(capsys.readouterr().out.split())
    assert out.count("nvalid first answers: verifier 4 of 12") == 1
    assert out.count("33.3 % of the first answers of verifier could not be used") == 1
