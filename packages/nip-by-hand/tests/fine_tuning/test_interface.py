"""The data models promise what the pages say, and importing the package loads nothing heavy."""

import json
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from submitted import episodes, pairs, talk, talks

from nip_by_hand import fine_tuning
from nip_by_hand.fine_tuning import (
    CurriculumLearningConfig,
    DPOItem,
    EpisodeItem,
    FinetuneConfig,
    RewardFunctionConfig,
    TrainerAdapterConfig,
    TrainingJobRef,
    TrainingJobStatus,
    TrainingStatusEnum,
    Trajectory,
    TrajectoryCollection,
)
from nip_core.parameters import CurriculumParameters


def test_an_assistant_message_needs_log_probabilities() -> None:
    with pytest.raises(ValidationError, match=r"logprobs must be provided for assistant role\."):
        EpisodeItem(role="assistant", content="yes")
    EpisodeItem(role="assistant", content="yes", logprobs=[-0.1])
    for role in ("user", "system", "function", "tool", "environment", "other"):
        assert EpisodeItem(role=role, content="x").logprobs is None


@pytest.mark.parametrize("reward", [float("nan"), float("inf"), -float("inf")])
def test_a_reward_is_a_finite_number(reward: float) -> None:
    with pytest.raises(ValidationError, match=r"reward\n.*finite number"):
        Trajectory(episode=talk("?", "yes"), reward=reward)


@pytest.mark.parametrize(
    ("episode", "place"),
    [
        ([{"role": "judge", "content": "x"}], "episode.messages.0.role"),
        ([{"role": "user", "content": "x"}, {"role": "user"}], "episode.messages.1.content"),
        ([{"role": "user", "content": "x", "nonsense": 1}], "episode.messages.0.nonsense"),
        ([{"prompt": "x", "chosen_response": "y"}], "episode.pairs.0.rejected_response"),
        ([talk("?", "yes")[0], DPOItem(prompt="a", chosen_response="b", rejected_response="c")],
         "episode.messages.1"),
        ("text", "episode.messages"),
    ],
)  # fmt: skip
def test_a_wrong_item_is_told_once_and_for_the_kind_that_it_is(episode: Any, place: str) -> None:
    with pytest.raises(ValidationError) as caught:
        Trajectory(episode=episode, reward=0.0)
    (error,) = caught.value.errors()
    assert ".".join(map(str, error["loc"])) == place


def test_an_empty_episode_is_a_list_of_no_messages() -> None:
    assert Trajectory(episode=[], reward=0.0).episode == []
    assert TrajectoryCollection(trajectories=[[]], run_id="a").trajectories == [[]]


@pytest.mark.parametrize("make", [talks, pairs, episodes])
def test_a_collection_is_the_same_after_json(make: Any) -> None:
    collection = make("run")
    assert TrajectoryCollection.model_validate_json(collection.model_dump_json()) == collection


@given(
    run_id=st.text(min_size=1, max_size=200),
    submission=st.integers(0, 9999),
    more=st.dictionaries(st.text(), st.none() | st.integers() | st.text()),
)
def test_a_reference_is_the_same_after_json(
    run_id: str, submission: int, more: dict[str, Any]
) -> None:
    ref = TrainingJobRef(run_id=run_id, backend="b", metadata={**more, "submission": submission})
    assert TrainingJobRef.model_validate_json(ref.model_dump_json()) == ref
    assert TrainingJobRef.model_validate(json.loads(json.dumps(ref.model_dump()))) == ref


def test_unknown_keys_are_errors_everywhere() -> None:
    for name in fine_tuning.__all__:
        model = getattr(fine_tuning, name)
        if hasattr(model, "model_config"):
            assert model.model_config["extra"] == "forbid", name


def test_progress_is_in_percent() -> None:
    with pytest.raises(ValidationError, match="progress"):
        TrainingJobStatus(
            run_id="a", backend="b", status=TrainingStatusEnum.RUNNING, progress=101.0
        )
    assert [s.value for s in TrainingStatusEnum] == [
        "pending",
        "running",
        "completed",
        "failed",
        "canceled",
    ]


def test_an_enabled_configuration_names_its_three_parts() -> None:
    with pytest.raises(
        ValidationError,
        match="When fine-tuning is enabled, the following fields must be set: trainer, trainer_ad",
    ):
        FinetuneConfig(enabled=True, trajectory_builder="b")
    FinetuneConfig(enabled=True, trainer="t", trajectory_builder="b", trainer_adapter="a")
    assert FinetuneConfig().target_functions == ["<workflow>"]


@pytest.mark.parametrize(
    "wrong",
    [
        {"initial_percentile": 0},
        {"increment_percentile": 1.1},
        {"expansion_interval": 0},
        {"random_subsample": 7},
    ],
)
def test_the_curriculum_is_the_one_of_the_settings_and_checked(wrong: dict[str, Any]) -> None:
    assert CurriculumLearningConfig is CurriculumParameters
    with pytest.raises(ValidationError, match=next(iter(wrong))):
        FinetuneConfig(curriculum_learning=wrong)


def test_configurations_of_adapters_take_a_reward() -> None:
    reward = RewardFunctionConfig(name="accuracy")
    assert TrainerAdapterConfig(reward=reward).reward == reward


def test_importing_the_package_loads_no_client_and_its_names_are_found() -> None:
    program = """
import sys
import nip_by_hand.fine_tuning as package
from nip_by_hand.fine_tuning import TrainerAdapter, Trajectory, TrainingJobRef
heavy = {"openai", "art", "torch", "aiohttp", "prefect"} & {*sys.modules}
assert not heavy, heavy
assert set(package.__all__) <= set(dir(package)) and "ARTTrainerAdapter" in dir(package)
from nip_by_hand.fine_tuning import *
from nip_by_hand.fine_tuning import OpenAITrainerAdapter
assert issubclass(OpenAITrainerAdapter, TrainerAdapter) and "art" not in sys.modules
try:
    package.nonsense
except AttributeError as error:
    assert "nonsense" in str(error)
else:
    raise AssertionError
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
