"""A scenario says which soundness a theorem guarantees, and which of its scripts can be played."""

import pytest

from nip_core.parameters import load_parameters
from nip_core.protocols import make_protocol
from nip_core.scenarios import make_scenario

DATASETS = {"bags": "lists", "graphs": "pairs", "chain": "chains", "arithmetic": "chains"}


def guaranteed(scenario, protocol, more=None, **own):
    settings = load_parameters(
        {
            "run_name": "a",
            "scenario": scenario,
            "dataset": DATASETS[scenario],
            "interaction_protocol": protocol,
            "scenario_settings": own,
            "agents": {"_default": {"model_provider": "SelfHosted", "model_name": "m"}},
            **(more or {}),
        }
    )
    return make_scenario(settings).guaranteed_soundness(make_protocol(settings))


@pytest.mark.parametrize(
    ("scenario", "protocol", "own", "number"),
    [
        ("bags", "adp", {"challenges": 1}, 1 / 2),
        ("bags", "adp", {"challenges": 3}, 7 / 8),
        ("bags", "adp", {"challenges": 3, "coins": "public"}, 0),
        ("bags", "adp", {"challenges": 0}, None),
        ("bags", "nip", {}, None),  # it speaks before the prover answers
        ("bags", "solo_verifier", {}, None),
        ("graphs", "adp", {"challenges": 2}, 3 / 4),
        ("graphs", "debate", {}, None),
        ("chain", "adp", {"checked": "drawn", "steps": 8}, 1 / 8),
        ("chain", "refereed", {}, None),  # both provers may lie
        ("arithmetic", "adp", {}, None),
    ],
)
def test_the_guarantee_is_that_of_the_pages(scenario, protocol, own, number):
    assert guaranteed(scenario, protocol, **own) == number


def test_scripts_that_can_be_played_follow_from_the_coins():
    def playable(**own):
        settings = load_parameters(
            "bags-tiny", [f"scenario_settings.{k}={v}" for k, v in own.items()]
        )
        return make_scenario(settings).playable_scripts()

    private = ("tell-apart", "guess", "always-a", "no-answer")
    assert playable() == private and playable(coins="public") == (*private, "coins")
    assert playable(challenges=0) == ("tell-apart",)
