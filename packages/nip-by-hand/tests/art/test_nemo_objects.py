"""NeMo Agent Toolkit's own objects and its example configuration, given to our trainer adapters.

The classes are those of nvidia-nat-core and nvidia-nat-openpipe-art, which scripts/build_art.sh
installs without their requirements. The toolkit's own command runs in packages/nip-by-hand/tests/nat.
"""

import asyncio
import json
import logging
from enum import Enum
from pathlib import Path
from typing import Any

import art
import made
import pytest
import yaml
from nat.data_models import finetuning as nemo
from nat.plugins.openpipe.config import ARTTrainerAdapterConfig as NemoConfig
from openai.types.chat.chat_completion import Choice
from pydantic import BaseModel, ValidationError
from served import Server
from test_adapter import OtherBackend

from nip_by_hand.fine_tuning import OpenAITrainerAdapter, OpenAITrainerAdapterConfig, art_adapter
from nip_by_hand.fine_tuning.art_adapter import (
    ARTBackendConfig,
    ARTTrainerAdapter,
    ARTTrainerAdapterConfig,
)
from nip_by_hand.fine_tuning.interface import (
    FinetuneConfig,
    TrainingJobRef,
    Trajectory,
    TrajectoryCollection,
    UnhealthyError,
)
from nip_core.errors import SettingsError

EXAMPLE = """
trainer_adapters:
  openpipe_trainer_adapter:
    _type: openpipe_art_trainer_adapter
    backend:
      ip: "0.0.0.0"
      port: 7623
      name: "tic_tac_toe_training_run"
      project: "tic_tac_toe_project"
      base_model: "Qwen/Qwen2.5-3B-Instruct"
      api_key: "default"
      init_args:
        max_seq_length: 8192
      engine_args:
        gpu_memory_utilization: 0.9
        tensor_parallel_size: 1
        max_logprobs: 5
    training:
      learning_rate: 1e-5
      beta: 0.1
finetuning:
  enabled: true
  trainer: openpipe_trainer
  trajectory_builder: openpipe_traj_builder
  trainer_adapter: openpipe_trainer_adapter
  reward_function:
    name: rl_accuracy
  num_epochs: 8
  output_dir: ./.tmp/nat/finetuning/tic_tac_toe
"""
"""Of examples/finetuning/rl_with_openpipe_art, as it is; the 1e-5 is a text to YAML 1.1."""

WHEN: Any = {"trajectories": {"__all__": {"start_time"}}}
LOGPROBS = {"content": [{"token": "a", "bytes": [97], "logprob": -0.5, "top_logprobs": []}]}


def example(part: str) -> Any:
    return yaml.safe_load(EXAMPLE)[part]


def items(*roles: str, logprobs: Any = LOGPROBS) -> list[nemo.EpisodeItem]:
    return [
        nemo.EpisodeItem(
            role=nemo.EpisodeItemRole(role),
            content=f"{role} {index}",
            logprobs=logprobs if role == "assistant" else None,
        )
        for index, role in enumerate(roles)
    ]


def trajectory(*roles: str, reward: float = 1.0, logprobs: Any = LOGPROBS) -> nemo.Trajectory:
    return nemo.Trajectory(
        episode=items(*roles, logprobs=logprobs),
        reward=reward,
        metadata={"id": "a", "generation": 0, "reasoning": {"why": 1}},
    )


def collection(run_id: str = "run") -> nemo.TrajectoryCollection:
    """What NeMo's trajectory builder makes: 4 examples, 3 generations of each."""
    return nemo.TrajectoryCollection(
        run_id=run_id,
        trajectories=[
            [trajectory("system", "user", "assistant", reward=float(reward)) for reward in range(3)]
            for _ in range(4)
        ],
    )


async def started(server: Server, state: Path, **more: Any) -> ARTTrainerAdapter:
    adapter = made.adapter(server, state, **more)
    await adapter.initialize(nemo.FinetuneConfig.model_validate(example("finetuning")))
    return adapter


# Data ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("strict", [True, False])
async def test_nemos_objects_are_trained_on_as_ours_are(
    server: Server, tmp_path: Path, strict: bool
) -> None:
    adapter = made.adapter(server, tmp_path, strict=strict)
    theirs = await adapter._construct_trajectory_groups(collection().trajectories)
    ours = TrajectoryCollection.model_validate(collection().model_dump())
    groups = await adapter._construct_trajectory_groups(ours.trajectories)
    assert [group.model_dump(exclude=WHEN) for group in theirs] == [
        group.model_dump(exclude=WHEN) for group in groups
    ]
    first = theirs[0].trajectories[0].messages_and_choices
    assert [type(item) for item in first] == [dict, dict, Choice]
    assert first[2].logprobs.content[0].logprob == -0.5
    await adapter.initialize(nemo.FinetuneConfig.model_validate(example("finetuning")))
    ref = await adapter.submit(collection())
    asked = nemo.TrainingJobRef.model_validate(ref.model_dump())
    status = await adapter.wait_until_complete(asked, poll_interval=0.1)
    assert status.status == nemo.TrainingStatusEnum.COMPLETED
    assert len(server.jobs()) == 1
    assert status.metadata is not None
    assert status.metadata["metrics"]["data/step_num_trajectories"] == 12


async def test_roles_of_any_enumeration_are_compared_by_value(
    server: Server, tmp_path: Path
) -> None:
    class Role(Enum):  # not even a str
        USER = "user"
        ASSISTANT = "assistant"

    class Item(BaseModel):
        role: Role
        content: str
        logprobs: Any = None

    class Episode(BaseModel):
        episode: list[Item]
        reward: float

    adapter = made.adapter(server, tmp_path)
    episode = [
        Item(role=Role.USER, content="q"),
        Item(role=Role.ASSISTANT, content="a", logprobs=[-0.5]),
    ]
    await adapter._validate_episode_order(Episode(episode=episode, reward=1))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="The last message"):
        await adapter._validate_episode_order(Episode(episode=episode[:1], reward=1))  # type: ignore[arg-type]
    # Ours takes items of theirs, and the other way round they are as before.
    assert Trajectory(episode=episode, reward=1).episode[0].role == nemo.EpisodeItemRole.USER
    made_of_theirs = Trajectory(episode=items("user", "assistant"), reward=1)
    assert made_of_theirs == Trajectory(
        episode=[item.model_dump() for item in items("user", "assistant")], reward=1
    )


async def test_unknown_items_are_errors_that_name_the_place(server: Server, tmp_path: Path) -> None:
    class Scored(nemo.EpisodeItem):
        score: float | None = None

    class Game(BaseModel):
        trajectories: list[Any]
        run_id: str

    adapter = await started(server, tmp_path, strict=False)
    user = items("user")
    strange = {
        r"trajectories\[0\]\[0\]\.episode\[1\]\.score: .* \(got 1\.0\)": [
            *user,
            Scored(role="assistant", content="a", logprobs=LOGPROBS, score=1.0),
        ],
        r"trajectories\[0\]\[0\]\.episode\[1\]: ": [*user, object()],
        r"trajectories\[0\]\[0\]\.episode\[1\]\.role: .*'narrator'": [
            *user,
            {"role": "narrator", "content": "a"},
        ],
    }
    for place, episode in strange.items():
        game = Game(trajectories=[[{"episode": episode, "reward": 1.0}]], run_id="run")
        with pytest.raises(ValueError, match=place):
            await adapter.submit(game)  # type: ignore[arg-type]
    for given in (None, "junk", [collection()], object()):
        with pytest.raises(ValueError, match="TrajectoryCollection"):
            await adapter.submit(given)  # type: ignore[arg-type]
    # What a newer toolkit adds, and nobody has set, asks for nothing.
    quiet = [*user, Scored(role="assistant", content="a", logprobs=LOGPROBS)]
    assert await adapter._construct_trajectory_groups([[{"episode": quiet, "reward": 1.0}]])  # type: ignore[list-item]
    assert server.jobs() == []


async def test_openais_adapter_takes_nemos_objects_too(server: Server, tmp_path: Path) -> None:
    adapter = OpenAITrainerAdapter(
        OpenAITrainerAdapterConfig(
            base_url=f"{server.url}/v1",
            model="sim",
            method="trajectories",
            state_dir=str(tmp_path),
            api_key_variable="TEST_KEY_OF_NEMO",
        )
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TEST_KEY_OF_NEMO", server.api_key)
        await adapter.initialize(nemo.FinetuneConfig.model_validate(example("finetuning")))
        ref = await adapter.submit(collection(run_id=f"openai {made.names['model']}"))
        status = await adapter.wait_until_complete(ref, poll_interval=0.1)
        assert status.status == nemo.TrainingStatusEnum.COMPLETED, status.message
        pairs = nemo.Trajectory(
            episode=[nemo.DPOItem(prompt="p", chosen_response="a", rejected_response="b")],
            reward=1,
        )
        with pytest.raises(ValueError, match="trains on episodes of EpisodeItem, got DPOItem"):
            await adapter.submit(nemo.TrajectoryCollection(trajectories=[[pairs]], run_id="pairs"))


# An empty training is never a success -------------------------------------------------------------


@pytest.mark.parametrize(
    "groups",
    [
        [],
        [[]],
        [[trajectory("user", "assistant", logprobs={})] * 2],  # as NeMo's parser says "none"
        [[trajectory("user", "assistant", logprobs="junk", reward=r) for r in (0.0, 1.0)]],
        [[trajectory("user", "tool", reward=reward) for reward in (0.0, 1.0)]],
    ],
)
async def test_a_submission_without_anything_to_train_on_is_refused(
    server: Server, tmp_path: Path, groups: list[list[nemo.Trajectory]]
) -> None:
    adapter = await started(server, tmp_path, strict=False)
    given = nemo.TrajectoryCollection(trajectories=groups, run_id="run")
    with pytest.raises(ValueError, match=r"No valid trajectory groups to submit\."):
        await adapter.submit(given)
    with pytest.raises(ValueError, match="No training job found"):
        await adapter.status(TrainingJobRef(run_id="run", backend="openpipe-art"))


async def test_a_step_that_trained_nothing_is_no_success(server: Server, tmp_path: Path) -> None:
    adapter = await started(server, tmp_path)
    equal = [[trajectory("user", "assistant") for _ in range(3)] for _ in range(4)]
    ref = await adapter.submit(nemo.TrajectoryCollection(trajectories=equal, run_id="run"))
    for _ in range(2):
        status = await adapter.wait_until_complete(ref, poll_interval=0.1)
        # NeMo's loop goes on with the next epoch after this status; after "failed" it would not.
        assert status.status == nemo.TrainingStatusEnum.CANCELED
        assert status.progress is None
        assert "Nothing was trained: in every group all rewards are equal" in str(status.message)
    assert server.jobs() == []
    assert await adapter.model.get_step() == 1


# The configuration --------------------------------------------------------------------------------


def test_nemos_example_configuration_loads_as_it_is(caplog: pytest.LogCaptureFixture) -> None:
    written = example("trainer_adapters")["openpipe_trainer_adapter"]
    theirs = NemoConfig.model_validate(written)
    for config in (
        ARTTrainerAdapterConfig.model_validate(written),
        ARTTrainerAdapterConfig.model_validate(theirs),
    ):
        assert config.backend.name == "tic_tac_toe_training_run"
        assert config.backend.init_args == {"max_seq_length": 8192}
        assert config.options() == {"learning_rate": 1e-5, "kl_penalty_coef": 0.1}
    for given in (written, theirs):
        caplog.clear()
        adapter = ARTTrainerAdapter(given)
        assert isinstance(adapter.adapter_config, ARTTrainerAdapterConfig)
        assert adapter.model.base_model == "Qwen/Qwen2.5-3B-Instruct"
        # The server runs already: said, and not sent to it.
        said = [record.message for record in caplog.records if record.levelno == logging.WARNING]
        assert len(said) == 1
        assert "engine_args" in said[0]
        assert "engine_args.max_logprobs, engine_args.tensor_parallel_size" in said[0]
        assert "nip serve" in said[0]


async def test_nemos_example_configuration_trains(server: Server, tmp_path: Path) -> None:
    host, port = server.url.removeprefix("http://").split(":")
    written = example("trainer_adapters")["openpipe_trainer_adapter"]
    where = {"ip": host, "port": int(port), "base_model": "sim", "api_key": server.api_key}
    written["backend"].update(where, name=made.names["model"])
    adapter = ARTTrainerAdapter(
        ARTTrainerAdapterConfig.model_validate({**written, "state_dir": str(tmp_path)})
    )
    await adapter.initialize(nemo.FinetuneConfig.model_validate(example("finetuning")))
    assert adapter.adapter_config.reward is not None
    assert adapter.adapter_config.reward.name == "rl_accuracy"
    assert "rl_accuracy" in adapter.adapter_config.model_dump_json()
    assert isinstance(adapter.run_config, FinetuneConfig)
    ref = await adapter.submit(collection())
    status = await adapter.wait_until_complete(ref, poll_interval=0.1)
    assert status.status == nemo.TrainingStatusEnum.COMPLETED, status.message
    ours = server.jobs()[0].model_extra["nip"]
    assert (ours["learning_rate"], ours["max_length"]) == (1e-5, 8192)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"_type": "openai"}, "_type"),
        ({"backend": {"engine_args": {"gpu_memory": 0.9}}}, r"engine_args\.gpu_memory"),
        ({"backend": {"engine_args": {"tensor_parallel_size": "many"}}}, "tensor_parallel_size"),
        ({"backend": {"server_config": {"server_arg": {}}}}, r"server_config\.server_arg"),
        ({"backend": {"init_args": {"max_seq": 1}}}, r"init_args\.max_seq"),
        ({"training": {"learning_rate": 1e-5, "lr": 1}}, "lr"),
    ],
)
def test_what_nobody_knows_is_refused_before_anything_is_sent(
    change: dict[str, Any], named: str
) -> None:
    written = example("trainer_adapters")["openpipe_trainer_adapter"]
    change["backend"] = {**written["backend"], **change.get("backend", {})}
    with pytest.raises(ValueError, match=named):
        ARTTrainerAdapter(ARTTrainerAdapterConfig.model_validate({**written, **change}))


def test_options_are_checked_and_of_their_types() -> None:
    config = ARTTrainerAdapterConfig(
        backend=ARTBackendConfig(ip="127.0.0.1", port=1),
        training={"learning_rate": "1e-5", "ppo": "yes", "plot_tensors": False},
    )
    assert config.options() == {"learning_rate": 1e-5, "ppo": True}
    for name, value in {"learning_rate": "fast", "plot_tensors": True, "rate": 1}.items():
        training = {**(config.training or {}), name: value}
        with pytest.raises(SettingsError, match=name):
            config.model_copy(update={"training": training}).options()


async def test_an_option_that_another_backend_does_not_take_is_refused_at_once(
    server: Server, tmp_path: Path
) -> None:
    class Plain(OtherBackend):
        async def train(self, model: Any, groups: Any, *, learning_rate: float) -> art.TrainResult:  # type: ignore[override]
            return art.TrainResult(step=1, metrics={})

    config = made.config(server, tmp_path, training={"learning_rate": 1e-4, "batch_size": 2})
    with pytest.raises(SettingsError, match=r"Plain\.train takes no 'batch_size'"):
        ARTTrainerAdapter(config, Plain())


def test_what_nemo_knows_of_a_finetuning_is_known_here() -> None:
    written = {
        **example("finetuning"),
        "curriculum_learning": {"enabled": True, "random_subsample": 0.5},
        "run_configuration": {"config_file": "a.yml", "override": [("a", "b")]},
    }
    theirs = nemo.FinetuneConfig.model_validate(written)
    ours = FinetuneConfig.model_validate(theirs)
    assert ours.model_dump() == theirs.model_dump()
    bare = nemo.FinetuneConfig(run_configuration=nemo.FinetuneRunConfig())
    assert FinetuneConfig.model_validate(bare).model_dump() == bare.model_dump()
    with pytest.raises(ValidationError, match="num_epoch"):
        FinetuneConfig.model_validate({**written, "num_epoch": 1})


# Errors and the life of a job ---------------------------------------------------------------------


async def test_unhealthy_says_why(server: Server, tmp_path: Path) -> None:
    for backend, reason in (
        ({"port": 1}, "http://127.0.0.1:1"),
        ({"api_key": "wrong"}, "401"),
        ({"base_model": "absent"}, "has no model 'absent'"),
    ):
        adapter = made.adapter(server, tmp_path, backend=backend)
        with pytest.raises(UnhealthyError, match=r"Failed to connect to ART backend\. ") as found:
            await adapter.initialize(nemo.FinetuneConfig())
        assert reason in str(found.value)
        assert "wrong" not in str(found.value)
    other = OtherBackend()
    other.address = (f"{server.url}/v1", server.api_key)
    config = made.config(server, tmp_path, backend={"base_model": "absent", "name": "absent"})
    adapter = ARTTrainerAdapter(config, other)
    with pytest.raises(UnhealthyError, match=r"lists neither 'absent' nor .*; it has .*sim"):
        await adapter.initialize(nemo.FinetuneConfig())


async def test_an_error_of_the_order_names_its_place(server: Server, tmp_path: Path) -> None:
    adapter = made.adapter(server, tmp_path)
    good = trajectory("user", "assistant")
    for roles, place in (
        ((), r"trajectories\[1\]\[1\]: Trajectory episode is empty\."),
        (("user", "tool", "assistant"), r"\[1\]\[1\]: Every message .*'tool' in episode\[1\]"),
        (("assistant",), r"trajectories\[1\]\[1\]: The first message"),
        (("user", "assistant", "user"), r"trajectories\[1\]\[1\]: The last message"),
        (("user", "user", "assistant"), r"\[1\]\[1\]: Consecutive user .*episode\[0\] and \[1\]"),
    ):
        with pytest.raises(ValueError, match=place):
            await adapter._construct_trajectory_groups([[good], [good, trajectory(*roles)]])


async def test_submitting_before_initialize_says_so(server: Server, tmp_path: Path) -> None:
    adapter = made.adapter(server, tmp_path)
    with pytest.raises(RuntimeError, match=r"submit: .* initialize\(run_config\) first"):
        await adapter.submit(collection())
    ref = TrainingJobRef(run_id="run", backend="openpipe-art")
    with pytest.raises(ValueError, match="No training job found"):
        await adapter.status(ref)


async def test_a_finished_task_leaves_training_jobs(server: Server, tmp_path: Path) -> None:
    adapter = await started(server, tmp_path)
    ref = await adapter.submit(collection())
    assert list(adapter.training_jobs) == ["run"]
    await adapter.wait_until_complete(ref, poll_interval=0.1)
    while adapter.training_jobs:  # the task ends soon after the job
        await asyncio.wait(list(adapter.training_jobs.values()))
        await asyncio.sleep(0)
    assert (await adapter.status(ref)).status == nemo.TrainingStatusEnum.COMPLETED


def test_the_module_has_its_logger() -> None:
    assert art_adapter.logger is logging.getLogger("nip_by_hand.fine_tuning.art_adapter")


def test_nemos_references_and_states_are_plain_json(server: Server) -> None:
    ours = TrainingJobRef(run_id="run", backend="openpipe-art", metadata={"submission": 0})
    theirs = nemo.TrainingJobRef.model_validate_json(ours.model_dump_json())
    assert TrainingJobRef.model_validate(theirs) == ours
    assert json.loads(theirs.model_dump_json()) == json.loads(ours.model_dump_json())
