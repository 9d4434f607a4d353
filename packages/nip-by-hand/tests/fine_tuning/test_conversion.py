"""Rows are what the receiver takes, and what can't be trained on is refused with its place."""

import json
from typing import Any

import pytest
from openai.types.chat.chat_completion import ChoiceLogprobs
from submitted import episodes, pairs, talk, talks

from nip_base.formats import read_examples
from nip_by_hand.fine_tuning.conversion import sampled_tokens, to_jsonl_rows
from nip_by_hand.fine_tuning.interface import DPOItem, EpisodeItem, Trajectory, TrajectoryCollection

TOKENS = {"content": [{"token": "token_id:5", "logprob": -0.5, "bytes": None, "top_logprobs": []}]}


def rows(collection: TrajectoryCollection, method: Any, **options: Any) -> list[dict[str, Any]]:
    data, count = to_jsonl_rows(collection, method, **options)
    assert len(read_examples(method, data, min_examples=10)) == count
    return [json.loads(line) for line in data.splitlines()]


def test_a_conversation_is_a_supervised_row() -> None:
    assert rows(talks("run"), "supervised")[3] == {
        "messages": [
            {"role": "user", "content": "is 3 odd"},
            {"role": "assistant", "content": "yes"},
        ]
    }


def test_conversations_below_the_threshold_are_not_imitated() -> None:
    made = rows(talks("run", 20), "supervised", reward_threshold=0.5)
    assert [row["messages"][0]["content"] for row in made] == [
        f"is {i} odd" for i in range(1, 20, 2)
    ]
    assert len(rows(talks("run", 20), "supervised", reward_threshold=0.0)) == 20
    rounded = talks("run", 20)
    for [trajectory] in rounded.trajectories:
        trajectory.reward = 0.1 + 0.1 + 0.7  # a little less than 0.9
    assert len(rows(rounded, "supervised", reward_threshold=0.9)) == 20


def test_pairs_are_dpo_rows_whatever_form_the_prompt_has() -> None:
    collection = pairs("run")
    item = DPOItem(prompt="plain", chosen_response="a", rejected_response="b")
    collection.trajectories.append([Trajectory(episode=[item, item], reward=0.0)])
    made = rows(collection, "dpo")
    assert len(made) == 12
    assert made[0] == {
        "input": {"messages": [{"role": "user", "content": "is 0 odd"}]},
        "preferred_output": [{"role": "assistant", "content": "yes"}],
        "non_preferred_output": [{"role": "assistant", "content": "no 0"}],
    }
    assert made[-1]["input"] == {"messages": [{"role": "user", "content": "plain"}]}


def test_answers_to_one_example_are_a_group_with_tokens_and_rewards() -> None:
    made = rows(episodes("run"), "trajectories")
    assert [row["group_id"] for row in made[:4]] == ["group-000000"] * 2 + ["group-000001"] * 2
    assert [row["reward"] for row in made[:2]] == [1.0, 0.0]
    assert made[0]["messages"][1] == {
        "role": "assistant",
        "content": "yes",
        "token_ids": [5, 6, 7],
        "logprobs": [-1, -2, -0.5],
    }
    assert "logprobs" not in made[0]["messages"][0]


@pytest.mark.parametrize(
    ("logprobs", "metadata", "expected"),
    [
        ([-0.1, -0.2], {}, (None, [-0.1, -0.2])),
        ([-0.1, -0.2], {"token_ids": [3, 4]}, ([3, 4], [-0.1, -0.2])),
        (TOKENS, {}, ([5], [-0.5])),
        (ChoiceLogprobs.model_validate(TOKENS), {}, ([5], [-0.5])),
        ({"content": [{"token": "yes", "logprob": -0.5}]}, {}, (None, [-0.5])),
        ({"content": [{"token": "yes", "logprob": -1}]}, {"token_ids": [9]}, ([9], [-1])),
        ({"content": [{"token": "token_id:1", "logprob": -1}, {"token": "b", "logprob": -2}]},
         {}, (None, [-1, -2])),
    ],
)  # fmt: skip
def test_log_probabilities_come_in_these_shapes(
    logprobs: Any, metadata: dict[str, Any], expected: Any
) -> None:
    item = EpisodeItem(role="assistant", content="yes", logprobs=logprobs, metadata=metadata)
    assert sampled_tokens(item, "here")[:2] == expected


@pytest.mark.parametrize(
    "logprobs",
    [
        {},
        "junk",
        7,
        {"content": None},
        {"content": []},
        {"content": "text"},
        {"content": [{"token": "a"}]},
        {"content": [{"token": 5, "logprob": -1}]},
        {"content": [{"token": "token_id:x", "logprob": -1}]},
    ],
)
def test_other_shapes_are_refused_where_they_are_needed(logprobs: Any) -> None:
    collection = episodes("run")
    collection.trajectories[2][1].episode = talk("?", "yes", logprobs)
    with pytest.raises(ValueError, match=r"trajectories\[2\]\[1\]\.episode\[1\]\.logprobs"):
        to_jsonl_rows(collection, "trajectories")
    assert to_jsonl_rows(collection, "supervised")[1] == 10


def changed(collection: TrajectoryCollection, episode: Any) -> TrajectoryCollection:
    collection.trajectories[1][0].episode = episode
    return collection


@pytest.mark.parametrize(
    ("collection", "method", "message"),
    [
        (talks("r", 9), "supervised", "9 example.*at least 10"),
        (talks("r", 0), "supervised", "0 example.*at least 10"),
        (changed(talks("r"), []), "supervised", r"\[1\]\[0\]: Trajectory episode is empty\."),
        (talks("r"), "dpo", r"\[0\]\[0\]: .*DPOItem, got EpisodeItem"),
        (pairs("r"), "trajectories", r"\[0\]\[0\]: .*EpisodeItem, got DPOItem"),
        (changed(talks("r"), talk("?", "")), "supervised", r"\[1\]\[0\]: .*content is empty"),
        (changed(talks("r"), talk("?", "y")[::-1]), "supervised", r"\[1\]\[0\]: .*'user'; it must"),
        (changed(talks("r"), [EpisodeItem(role="tool", content="x"), *talk("?", "y")]),
         "supervised", r"\[1\]\[0\]\.episode\[0\]\.role is 'tool'"),
        (changed(episodes("r"), talk("?", "y", [0.5])), "trajectories", r"\[1\]\[0\]: .*to 0, got"),
        (changed(episodes("r"), talk("?", "y", [-1.0, -2.0], token_ids=[1])), "trajectories",
         r"\[1\]\[0\]: .*1 token_ids but 2 logprobs"),
        (changed(episodes("r"), talk("?", "y", [float("nan")])), "trajectories", "not JSON"),
        (talks("r"), "trajectories", r"\[0\]\[0\]: .*nothing to compare"),
        (changed(pairs("r"), [DPOItem(prompt="a", chosen_response="b", rejected_response="b")]),
         "dpo", r"\[1\]\[0\]: .*equal"),
    ],
)  # fmt: skip
def test_what_can_not_be_trained_on_is_refused_with_its_place(
    collection: TrajectoryCollection, method: Any, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        to_jsonl_rows(collection, method)


def test_shaped_rewards_are_said_to_be_unused(caplog: pytest.LogCaptureFixture) -> None:
    collection = talks("run")
    collection.trajectories[0][0].shaped_rewards = [1.0, 2.0]
    assert to_jsonl_rows(collection, "supervised") == to_jsonl_rows(talks("run"), "supervised")
    assert "'run': shaped_rewards are not used" in caplog.text
