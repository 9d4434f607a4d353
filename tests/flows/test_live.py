"""What is shown while a run plays, from its counters."""

import pytest

from nip_core.parameters import HyperParameters
from nip_core.progress.board import Progress
from nip_prefect.flows.live import _Clock, cost_usd


def test_time_left_counts_only_what_ended_since_the_stage_was_taken_up() -> None:
    progress, clock = Progress(), _Clock()
    progress.start_stage("playing", 100, done=60)
    assert clock.left_s(progress, 5.0) is None
    progress.episodes_done += 10
    assert clock.left_s(progress, 25.0) == pytest.approx(20.0 / 10 * 30)
    progress.start_stage("testing", 40)
    assert clock.left_s(progress, 30.0) is None
    progress.episodes_done += 20
    assert clock.left_s(progress, 40.0) == pytest.approx(10.0)
    progress.episodes_done += 20
    assert clock.left_s(progress, 50.0) == 0.0


def test_a_model_is_shown_at_its_price_and_not_at_that_of_a_name_it_begins_with() -> None:
    parameters = HyperParameters.model_validate(
        {
            "run_name": "x",
            "dataset": "families",
            "interaction_protocol": "nip",
            # In the order in which a prefix would be tried first.
            "prices": {
                "gpt-4o": {"prompt_usd": 2.5, "completion_usd": 10.0},
                "gpt-4o-mini": {"prompt_usd": 0.15, "completion_usd": 0.6},
            },
            "agents": {
                "_default": {"model_provider": "OpenAI"},
                "prover": {"model_name": "gpt-4o"},
                "verifier": {"model_name": "gpt-4o-mini"},
            },
        }
    )
    progress = Progress()
    progress.count_answer("verifier", 1_000_000, 1_000_000)
    assert cost_usd(parameters, progress) == pytest.approx(0.75)
    progress.count_answer("prover", 1_000_000, 0)
    assert cost_usd(parameters, progress) == pytest.approx(0.75 + 2.5)
