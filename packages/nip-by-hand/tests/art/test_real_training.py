"""ART's objects with a real model: what is sampled is what is trained."""

from pathlib import Path

import art
import made
import pytest
from served import Server

from nip_by_hand.fine_tuning.art.art_backend import LmServerBackend
from nip_by_hand.fine_tuning.interface import FinetuneConfig, TrainingStatusEnum


async def sample(model: art.TrainableModel, task: int) -> art.Trajectory:
    messages: art.Messages = [{"role": "user", "content": f"Report {task}: accept or reject?"}]
    completion = await model.openai_client().chat.completions.create(
        model=model.get_inference_name(), messages=messages, max_tokens=6, logprobs=True
    )
    choice = completion.choices[0]
    return art.Trajectory(
        messages_and_choices=[*messages, choice], reward=float(len(choice.message.content or ""))
    )


async def test_a_program_samples_and_trains_with_the_tokens_that_were_sampled(
    tiny_server: Server, tmp_path: Path
) -> None:
    backend = LmServerBackend(
        tiny_server.url, api_key=tiny_server.api_key, state_dir=tmp_path, poll_interval_s=0.1
    )
    model = made.model("tiny", base_path=str(tmp_path))
    await model.register(backend)
    groups = await art.gather_trajectory_groups(
        art.TrajectoryGroup(sample(model, task) for _ in range(4)) for task in range(4)
    )
    choices = [trajectory.messages_and_choices[-1] for group in groups for trajectory in group]
    assert all(choice.token_ids for choice in choices)
    result = await backend.train(model, groups, learning_rate=1.23e-5, kl_penalty_coef=0.1)
    assert result.metrics["data/step_num_choices_without_token_ids"] == 0
    trained = sum(
        len(choice.token_ids)
        for group in groups
        if len({trajectory.reward for trajectory in group}) > 1
        for choice in [trajectory.messages_and_choices[-1] for trajectory in group]
    )
    assert 0 < result.metrics["data/step_trainer_tokens"] <= trained
    assert "loss/train" in result.metrics
    assert result.metrics["loss/policy_ratio"] == pytest.approx(1.0, abs=0.05)
    assert result.metrics["loss/learning_rate"] == pytest.approx(1.23e-5)
    assert (await sample(model, 0)).messages_and_choices[-1].token_ids
    assert model.get_inference_name() == result.model != "tiny"
    await backend.close()


async def test_the_adapter_trains_the_real_model(tiny_server: Server, tmp_path: Path) -> None:
    adapter = made.adapter(
        tiny_server,
        tmp_path,
        backend={"base_model": "tiny", "name": "adapter"},
        training={"learning_rate": 1.23e-5, "allow_training_without_logprobs": True},
    )
    await adapter.initialize(FinetuneConfig())
    ref = await adapter.submit(made.collection(answers=2, tasks=2))
    status = await adapter.wait_until_complete(ref, poll_interval=0.2)
    assert status.status is TrainingStatusEnum.COMPLETED, status.message
    assert status.metadata["metrics"]["loss/learning_rate"] == pytest.approx(1.23e-5)
