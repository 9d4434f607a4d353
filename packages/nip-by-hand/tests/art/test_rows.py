"""From ART's trajectories to the lines of a job."""

import json
from typing import Any

import art
import made
import pytest

from nip_by_hand.fine_tuning.art.art_options import TrainOptions, job_settings, model_options
from nip_by_hand.fine_tuning.art.art_rows import training_data
from nip_core.errors import SettingsError


def lines(groups: list[art.TrajectoryGroup], **options: Any) -> list[dict[str, Any]]:
    data = training_data(groups, TrainOptions(**options))
    every = [json.loads(line) for line in data.jsonl.splitlines()]
    assert len(every) == data.lines
    return every[: len(every) // data.repeats]


def advantages(groups: list[art.TrajectoryGroup], **options: Any) -> list[float]:
    return [line["advantage"] for line in lines(groups, **options)]


def test_advantages_are_arts_scaled_to_one() -> None:
    two = [made.group("a", [0.0, 1.0], ids=[5]), made.group("b", [0.0, 4.0], ids=[5])]
    assert advantages(two) == pytest.approx([-1, 1, -1, 1], abs=1e-4)
    assert advantages(two, scale_rewards=False) == pytest.approx([-0.4, 0.4, -1.6, 1.6])
    assert advantages(two, advantage_balance=1.0) == pytest.approx([0, 2, 0, 2], abs=1e-4)
    assert advantages(two, advantage_balance=-0.5) == pytest.approx(
        [-4 / 3, 2 / 3, -4 / 3, 2 / 3], abs=1e-4
    )


def test_a_group_whose_rewards_differ_by_rounding_says_nothing_about_what_is_better() -> None:
    rounded = made.group("a", [0.9, 0.1 + 0.1 + 0.7], ids=[5])
    assert advantages([rounded]) == advantages([rounded], scale_rewards=False) == []


def test_every_trajectory_counts_alike_however_long_it_is() -> None:
    long, short = made.group("a", [0.0], ids=[1, 2, 3]), made.group("a", [1.0], ids=[1])
    found = lines([art.TrajectoryGroup([*long, *short])])
    sums = [line["advantage"] * len(line["messages"][1]["token_ids"]) for line in found]
    assert sums == pytest.approx([-2.0, 2.0], abs=1e-4)
    tokens = [abs(line["advantage"]) * len(line["messages"][1]["token_ids"]) for line in found]
    assert sum(tokens) / 4 == pytest.approx(1.0, abs=1e-4)


def test_only_choices_with_log_probabilities_are_trained_up_to_the_last() -> None:
    def trajectory(reward: float) -> art.Trajectory:
        unscored = made.choice("Unscored.")
        unscored.logprobs = None
        return art.Trajectory(
            messages_and_choices=[
                {"role": "user", "content": "One?"},
                {"role": "assistant", "content": "Context."},
                {"role": "user", "content": "Two?"},
                made.choice("Trained.", [7, 8]),
                {"role": "user", "content": "Three?"},
                unscored,
            ],
            reward=reward,
        )

    group = art.TrajectoryGroup([trajectory(0.0), trajectory(1.0)])
    messages = lines([group])[0]["messages"]
    assert len(messages) == 4
    assert messages[1] == {"role": "assistant", "content": "Context.", "weight": 0}
    assert messages[3] == {
        "role": "assistant",
        "content": "Trained.",
        "token_ids": [7, 8],
        "logprobs": [-0.5, -0.5],
    }
    assert "logprobs" not in lines([group], precalculate_logprobs=True)[0]["messages"][3]
    every = lines([group], allow_training_without_logprobs=True)[0]["messages"]
    assert [m.get("weight", 1) for m in every if m["role"] == "assistant"] == [1, 1, 1]


def test_histories_are_lines_that_share_reward_and_advantage() -> None:
    group = made.group("a", [0.0, 1.0], ids=[1, 2])
    extra = art.trajectories.History(
        messages_and_choices=[{"role": "user", "content": "More?"}, made.choice("Yes.", [3])]
    )
    group.trajectories[1].additional_histories.append(extra)
    first, second, third = lines([group])
    assert (second["reward"], second["advantage"]) == (third["reward"], third["advantage"])
    assert first["group_id"] == second["group_id"] == third["group_id"]
    assert third["messages"][0]["content"] == "More?"


def test_answers_without_token_ids_are_counted_and_carry_no_log_probabilities() -> None:
    data = training_data([made.group("a", [0.0, 1.0])], TrainOptions())
    assert data.metrics["data/step_num_choices_without_token_ids"] == 2
    assert "logprobs" not in json.loads(data.jsonl.splitlines()[0])["messages"][1]


def test_a_step_of_few_lines_stays_the_same_step() -> None:
    data = training_data([made.group("a", [0.0, 1.0, 1.0])], TrainOptions())
    assert (data.lines, data.repeats) == (12, 4)
    job = job_settings(TrainOptions(), model_options({}), repeats=data.repeats)
    assert job.hyper_parameters["batch_size"] == 8 * 4


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
        ({"reward": float("nan")}, "finite"),
        ({"messages_and_choices": [{"role": "tool", "content": "x"}]}, "role"),
    ],
)
def test_what_the_server_can_not_be_given_is_refused(change: dict[str, Any], said: str) -> None:
    group = made.group("a", [0.0, 1.0])
    first = group.trajectories[0]
    if "messages_and_choices" in change:
        change = {"messages_and_choices": [*change.popitem()[1], *first.messages_and_choices]}
    for name, value in change.items():
        setattr(first, name, value)
    with pytest.raises(SettingsError, match=said):
        training_data([group], TrainOptions())


def test_arts_default_bounds_and_those_of_ppo() -> None:
    assert TrainOptions().clip == (1.0, 4.0)
    assert TrainOptions(ppo=True).clip == (0.2, 0.2)
    assert TrainOptions(ppo=True, epsilon=0.1).clip == (0.1, 0.1)
    assert TrainOptions(epsilon=0.5, epsilon_high=0.25).clip == (0.5, 0.25)
