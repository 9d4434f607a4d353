"""The documented surface of NeMo's ARTTrainerAdapter, on ours; and what theirs doesn't promise."""

import asyncio
import inspect
import json
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import art
import made
import openai
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from pydantic import ValidationError
from served import Server

from nip_by_hand.fine_tuning.art.art_backend import LmServerBackend
from nip_by_hand.fine_tuning.art.art_jobs import AdapterJob, AdapterJobs
from nip_by_hand.fine_tuning.art.art_steps import StepJob
from nip_by_hand.fine_tuning.art_adapter import (
    ARTBackendConfig,
    ARTTrainerAdapter,
    ARTTrainerAdapterConfig,
    JobExistsError,
)
from nip_by_hand.fine_tuning.interface import (
    DPOItem,
    EpisodeItem,
    FinetuneConfig,
    TrainerAdapter,
    TrainingJobRef,
    TrainingStatusEnum,
    Trajectory,
    TrajectoryCollection,
)
from nip_core.errors import JobError
from nip_core.hashing import digest

SLOW = "training: {seconds: 30}\n"
MEDIUM = "training: {seconds: 2}\n"


async def started(server: Server, state: Path, **more: Any) -> ARTTrainerAdapter:
    adapter = made.adapter(server, state, **more)
    await adapter.initialize(FinetuneConfig())
    return adapter


async def refused(adapter: ARTTrainerAdapter, *roles: str) -> str | None:
    try:
        await adapter._validate_episode_order(Trajectory(episode=made.episode(*roles), reward=1.0))
    except ValueError as error:
        return str(error)
    return None


def test_the_documented_names_and_signatures_are_there(server: Server, tmp_path: Path) -> None:
    adapter = made.adapter(server, tmp_path)
    assert isinstance(adapter, TrainerAdapter)
    assert isinstance(adapter.adapter_config, ARTTrainerAdapterConfig)
    assert isinstance(adapter.model, art.TrainableModel)
    assert isinstance(adapter._model_internal_config, dict)
    assert adapter.training_jobs is adapter._training_jobs
    assert adapter.training_jobs == {}
    for name in inspect.getmembers(art.Backend, inspect.isfunction):
        if not name[0].startswith("__") and name[0] != "_no_init_or_replace_init":
            assert callable(getattr(adapter.remote_backend, name[0])), name[0]
    expected = {
        "initialize": ["run_config"],
        "is_healthy": [],
        "_validate_episode_order": ["traj"],
        "_construct_trajectory_groups": ["trajectory_lists"],
        "submit": ["trajectories"],
        "status": ["ref"],
        "wait_until_complete": ["ref", "poll_interval"],
        "cancel": ["ref"],
        "log_progress": ["ref", "metrics", "output_dir"],
    }
    for name, parameters in expected.items():
        method = getattr(adapter, name)
        assert list(inspect.signature(method).parameters) == parameters
        assert inspect.iscoroutinefunction(method) == (name != "log_progress")
    wait = inspect.signature(adapter.wait_until_complete)
    assert wait.parameters["poll_interval"].default == 10.0


CONSECUTIVE = "Consecutive {} messages from the same role found in trajectory."
FIRST = "The first message in the trajectory must be from 'user' or 'system'."
LAST = "The last message in the trajectory must be from 'assistant'."


@pytest.mark.parametrize(
    ("roles", "strict", "lenient"),
    [
        ((), "Trajectory episode is empty.", "Trajectory episode is empty."),
        (("user", "assistant"), None, None),
        (("system", "system", "user", "assistant"), None, None),
        (("system", "assistant"), None, None),
        (("assistant",), FIRST, FIRST),
        (("tool", "assistant"), "Every message", FIRST),
        (("user", "tool", "assistant"), "Every message", None),
        (("user", "assistant", "user"), LAST, None),
        (("user", "user", "assistant"), CONSECUTIVE.format("user"), None),
        (("user", "assistant", "assistant"), *[CONSECUTIVE.format("assistant")] * 2),
    ],
)
async def test_the_order_of_an_episode_is_checked(
    server: Server, tmp_path: Path, roles: tuple[str, ...], strict: str, lenient: str
) -> None:
    for wanted, is_strict in ((strict, True), (lenient, False)):
        said = await refused(made.adapter(server, tmp_path, strict=is_strict), *roles)
        assert (said or "").startswith(wanted or "")
        assert (said is None) == (wanted is None)


async def test_groups_are_arts_and_answers_are_choices(server: Server, tmp_path: Path) -> None:
    adapter = made.adapter(server, tmp_path)
    trajectory = Trajectory(
        episode=made.episode("system", "user", "assistant"),
        reward=0.5,
        shaped_rewards=[0.25],
        metadata={"id": "a", "parts": [1]},
    )
    groups = await adapter._construct_trajectory_groups([[trajectory, trajectory], []])
    assert len(groups) == 1
    assert isinstance(groups[0], art.TrajectoryGroup)
    first = groups[0].trajectories[0]
    assert first.messages_and_choices[0] == {"role": "system", "content": "system 0"}
    assert first.messages_and_choices[2].logprobs.content[0].token == "a"
    assert (first.reward, first.metadata) == (0.5, {"id": "a"})
    assert first.metrics == {"shaped_reward_0": 0.25}


async def test_an_invalid_trajectory_refuses_the_submission(server: Server, tmp_path: Path) -> None:
    bad_order = Trajectory(episode=made.episode("user", "user", "assistant"), reward=1.0)
    pairs = Trajectory(
        episode=[DPOItem(prompt="p", chosen_response="a", rejected_response="b")], reward=1.0
    )
    episode = made.episode("user", "assistant")
    episode[1] = EpisodeItem(role="assistant", content="a", logprobs="junk")
    junk = Trajectory(episode=episode, reward=1.0)
    good = made.collection().trajectories[0]
    strict = await started(server, tmp_path / "strict")
    for trajectory in (bad_order, pairs, junk):
        collection = TrajectoryCollection(run_id="r", trajectories=[[*good, trajectory]])
        with pytest.raises(ValueError):
            await strict.submit(collection)
    with pytest.raises(ValueError, match="No valid trajectory groups to submit"):
        await strict.submit(TrajectoryCollection(run_id="r", trajectories=[[]]))
    assert server.jobs() == []
    lenient = made.adapter(server, tmp_path / "lenient", strict=False)
    groups = await lenient._construct_trajectory_groups([[*good, junk], [junk]])
    assert [len(group.trajectories) for group in groups] == [3]


async def test_a_job_is_submitted_waited_for_and_can_be_asked_about_for_ever(
    server: Server, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    training = {"learning_rate": 1.23e-5, "beta": 0.25, "num_train_epochs": 2}
    more = {"training": training, "backend": {"delete_old_checkpoints": True}}
    adapter = await started(server, tmp_path, **more)
    ref = await adapter.submit(made.collection())
    assert (ref.run_id, ref.backend) == ("run", "openpipe-art")
    assert isinstance(adapter.training_jobs["run"], asyncio.Task)
    status = await adapter.wait_until_complete(ref, poll_interval=0.1)
    assert (status.status, status.progress) == (TrainingStatusEnum.COMPLETED, 100.0)
    assert status.message == "Training completed successfully."
    assert await adapter.status(ref) == status == await adapter.status(ref)
    job = server.jobs()[0]
    assert job.model_extra["nip"]["learning_rate"] == 1.23e-5
    hyper = job.method.model_extra["trajectories"]["hyperparameters"]
    assert (hyper["kl_penalty"], hyper["n_epochs"]) == (0.25, 2)
    assert adapter.model.get_inference_name() == job.fine_tuned_model
    # Another adapter, as in a new process, knows it by the reference alone.
    copy = TrainingJobRef.model_validate_json(ref.model_dump_json())
    assert await made.adapter(server, tmp_path, **more).status(copy) == status
    # The run id is free again.
    second = await adapter.submit(made.collection())
    assert (ref.metadata["submission"], second.metadata["submission"]) == (0, 1)
    await adapter.wait_until_complete(second, poll_interval=0.1)
    assert (await adapter.status(ref)).metadata == status.metadata
    assert len(server.jobs()) == 2
    assert "can't be deleted" not in caplog.text


async def test_a_run_id_that_is_under_way_is_refused_and_a_job_can_be_cancelled(
    make_server: Callable[[str], Server], tmp_path: Path
) -> None:
    server = make_server(SLOW)
    adapter = await started(server, tmp_path)
    ref = await adapter.submit(made.collection())
    with pytest.raises(
        AssertionError, match=r"Training job with run_id run already exists\."
    ) as found:
        await adapter.submit(made.collection(answers=2))
    assert isinstance(found.value, ValueError)
    assert isinstance(found.value, JobExistsError)
    status = await adapter.status(ref)
    assert status.status in (TrainingStatusEnum.PENDING, TrainingStatusEnum.RUNNING)
    # Another adapter asks, waits and cancels.
    other = made.adapter(server, tmp_path)
    assert (await other.status(ref)).status in (
        TrainingStatusEnum.PENDING,
        TrainingStatusEnum.RUNNING,
    )
    await other.cancel(ref)
    for one in (other, adapter):
        status = await one.wait_until_complete(ref, poll_interval=0.1)
        assert status.status is TrainingStatusEnum.CANCELED
        assert status.message == "Training was cancelled."
    assert (await adapter.cancel(ref)) == status
    again = await adapter.submit(made.collection())
    assert again.metadata["submission"] == 1
    await adapter.cancel(again)


async def test_a_failed_job_says_why(make_server: Callable[[str], Server], tmp_path: Path) -> None:
    adapter = await started(make_server("training: {fail_rate: 1}\n"), tmp_path)
    ref = await adapter.submit(made.collection())
    status = await adapter.wait_until_complete(ref, poll_interval=0.1)
    assert status.status is TrainingStatusEnum.FAILED
    assert status.message.startswith("Training failed with error: ")
    assert "injected_failure" in status.message


async def test_an_unknown_reference_is_an_error(server: Server, tmp_path: Path) -> None:
    adapter = made.adapter(server, tmp_path)
    for ref in (
        TrainingJobRef(run_id="x", backend="openpipe-art"),
        TrainingJobRef(run_id="x", backend="openpipe-art", metadata={"submission": 3}),
        TrainingJobRef(run_id="x", backend="other"),
    ):
        for ask in (adapter.status, adapter.wait_until_complete, adapter.cancel):
            with pytest.raises(ValueError, match=r"No training job found with run_id x\."):
                await ask(ref)


async def test_healthy_means_that_the_server_takes_the_key_and_has_the_model(
    server: Server, tmp_path: Path
) -> None:
    assert await made.adapter(server, tmp_path).is_healthy()
    async with another_server(200, {"id": "sim"}) as stranger, another_server(500, {}) as broken:
        wrong: list[dict[str, Any]] = [
            {"api_key": "wrong"},
            {"base_model": "absent"},
            {"port": 1},
            {"port": stranger},
            {"port": broken},
        ]
        await all_are_unhealthy(server, tmp_path, wrong)


@asynccontextmanager
async def another_server(status: int, answer: dict[str, Any]) -> AsyncIterator[int]:
    """The port of a server that is no lm_server and says the same to everything."""

    async def say(request: web.Request) -> web.Response:
        return web.json_response(answer, status=status)

    app = web.Application()
    app.router.add_get("/{path:.*}", say)
    async with TestServer(app) as running:
        assert running.port is not None
        yield running.port


async def all_are_unhealthy(server: Server, tmp_path: Path, wrong: list[dict[str, Any]]) -> None:
    for backend in wrong:
        adapter = made.adapter(server, tmp_path, backend=backend)
        assert not await adapter.is_healthy()
        with pytest.raises(ConnectionError, match=r"Failed to connect to ART backend\."):
            await adapter.initialize(FinetuneConfig())


@pytest.mark.parametrize(
    ("training", "named"),
    [
        ({"learning_rat": 1e-5}, "learning_rat"),
        ({"learning_rate": "fast"}, "learning_rate"),
        ({"beta": 0.1, "kl_penalty_coef": 0.1}, "beta"),
        ({"kimi_k2_tau": 0.5}, "kimi_k2_tau"),
        ({"num_train_epochs": 0}, "n_epochs"),
    ],
)
def test_settings_of_the_training_are_checked(training: dict[str, Any], named: str) -> None:
    backend = ARTBackendConfig(ip="127.0.0.1", port=1)
    with pytest.raises(ValidationError, match=named):
        ARTTrainerAdapterConfig(backend=backend, training=training)


def test_the_configuration_has_the_documented_defaults_and_hides_the_key() -> None:
    backend = ARTBackendConfig(ip="127.0.0.1", port=7999, api_key="sesame-1234")
    assert (backend.name, backend.project) == ("trainer_run", "trainer_project")
    assert backend.base_model == "Qwen/Qwen2.5-7B-Instruct"
    assert not backend.delete_old_checkpoints
    config = ARTTrainerAdapterConfig(backend=backend)
    assert config.strict
    assert "sesame" not in repr(config) + config.model_dump_json() + str(config.model_dump())
    assert backend.key() == "sesame-1234"


def test_progress_is_a_line_of_json(server: Server, tmp_path: Path) -> None:
    adapter = made.adapter(server, tmp_path)
    ref = TrainingJobRef(run_id="r1", backend="openpipe-art")
    adapter.log_progress(ref, {"loss": 0.5}, str(tmp_path))
    line = (tmp_path / "trainer_adapter_r1.jsonl").read_text()
    assert '"loss": 0.5' in line
    assert '"project": "trainer_project"' in line
    assert server.api_key not in line


class OtherBackend:
    """An `art.Backend` that is not ours, as far as the adapter needs one."""

    def __init__(self) -> None:
        self.trained: list[dict[str, Any]] = []
        self.go = asyncio.Event()

    async def register(self, model: Any) -> None: ...
    async def close(self) -> None: ...

    async def _prepare_backend_for_training(self, model: Any, config: Any) -> tuple[str, str]:
        return self.address

    def _model_inference_name(self, model: Any, step: int | None = None) -> str:
        return f"{model.name}@{step or 0}"

    async def train(self, model: Any, groups: Any, **options: Any) -> art.TrainResult:
        await self.go.wait()
        self.trained.append(options)
        return art.TrainResult(step=1, metrics={"loss/train": 0.5})


async def test_any_other_backend_trains_in_a_task_of_the_process(
    server: Server, tmp_path: Path
) -> None:
    backend = OtherBackend()
    backend.address = (f"{server.url}/v1", server.api_key)
    adapter = ARTTrainerAdapter(
        made.config(server, tmp_path, training={"learning_rate": 1e-4}), backend
    )
    await adapter.initialize(FinetuneConfig())
    ref = await adapter.submit(made.collection())
    assert (await adapter.status(ref)).status is TrainingStatusEnum.RUNNING
    with pytest.raises(AssertionError):
        await adapter.submit(made.collection())
    backend.go.set()
    status = await adapter.wait_until_complete(ref, poll_interval=0.05)
    assert status.status is TrainingStatusEnum.COMPLETED
    assert backend.trained == [{"learning_rate": 1e-4}]
    assert status.metadata["metrics"] == {"loss/train": 0.5}
    backend.go.clear()
    ref = await adapter.submit(made.collection())
    assert (await adapter.cancel(ref)).status is TrainingStatusEnum.CANCELED


def dead_owner() -> dict[str, Any]:
    """A process of this machine that has ended."""
    said = (
        "import json; from nip_core.run_store.lease import ThisMachine;"
        "print(json.dumps(vars(ThisMachine().owner())))"
    )
    done = subprocess.run([sys.executable, "-c", said], check=True, stdout=subprocess.PIPE)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def leave(state: Path, owner: dict[str, Any] | None = None, **more: Any) -> None:
    """The record of the first submission under "run" by a process that is no more."""
    job = AdapterJob(
        run_id="run",
        number=0,
        project="trainer_project",
        name=made.names["model"],
        digest=digest(made.collection().model_dump(mode="json", include={"trajectories"})),
        owner=owner or dead_owner(),
        created_at=time.time(),
        **more,
    )
    assert AdapterJobs(str(state)).add(job)


async def begun(server: Server, state: Path) -> StepJob:
    """The job of a submission; nobody waits for it."""
    adapter = await started(server, state)
    groups = await adapter._construct_trajectory_groups(made.collection().trajectories)
    backend = adapter.remote_backend
    assert isinstance(backend, LmServerBackend)
    return await backend.begin(adapter.model, groups, **adapter.adapter_config.options())


@pytest.mark.parametrize("ended", [True, False])
async def test_a_process_that_is_killed_in_submit_leaves_one_job_for_the_next(
    make_server: Callable[[str], Server], tmp_path: Path, ended: bool
) -> None:
    server = make_server("training: {seconds: 0}\n" if ended else MEDIUM)
    leave(tmp_path)
    await begun(server, tmp_path)
    adapter = await started(server, tmp_path)
    while ended and server.jobs()[0].status != "succeeded":
        await asyncio.sleep(0.05)
    ref = await adapter.submit(made.collection())
    status = await adapter.wait_until_complete(ref, poll_interval=0.1)
    assert status.status is TrainingStatusEnum.COMPLETED, status.message
    assert [job.id for job in server.jobs()] == [(status.metadata or {})["job_id"]]
    if ended:  # the same again is the next one
        ref = await adapter.submit(made.collection())
        await adapter.wait_until_complete(ref, poll_interval=0.1)
        assert await adapter.model.get_step() == len(server.jobs()) == 2


async def test_what_a_killed_process_left_can_be_cancelled(
    make_server: Callable[[str], Server], tmp_path: Path
) -> None:
    server = make_server(SLOW)
    leave(tmp_path)
    await begun(server, tmp_path)
    adapter = made.adapter(server, tmp_path)
    ref = TrainingJobRef(run_id="run", backend="openpipe-art")
    assert "submit it again" in str((await adapter.status(ref)).message)
    await adapter.cancel(ref)
    while server.jobs()[0].status != "cancelled":
        await asyncio.sleep(0.05)


async def test_a_submission_of_another_machine_can_be_cancelled(
    server: Server, tmp_path: Path
) -> None:
    leave(tmp_path, {**dead_owner(), "machine": "elsewhere"})
    adapter = await started(server, tmp_path)
    with pytest.raises(JobExistsError):
        await adapter.submit(made.collection())
    ref = TrainingJobRef(run_id="run", backend="openpipe-art")
    assert (await adapter.cancel(ref)).status is TrainingStatusEnum.CANCELED
    assert (await adapter.submit(made.collection())).metadata == {"submission": 1, "step": 1}


async def test_a_failure_stays_one_when_the_step_was_trained_by_another_submission(
    make_server: Callable[[str], Server], tmp_path: Path
) -> None:
    server = make_server(MEDIUM)
    step = await begun(server, tmp_path)
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key=server.api_key) as client:
        client.fine_tuning.jobs.cancel(server.jobs()[0].id)
    leave(tmp_path, step=step.step, submission=step.submission)
    adapter = await started(server, tmp_path)
    ref = await adapter.submit(made.collection("another"))
    status = await adapter.wait_until_complete(ref, poll_interval=0.1)
    assert status.status is TrainingStatusEnum.COMPLETED, status.message
    first = await adapter.status(TrainingJobRef(run_id="run", backend="openpipe-art"))
    assert first.status is TrainingStatusEnum.CANCELED


async def test_an_adapter_sees_and_cancels_what_others_have_submitted_since(
    make_server: Callable[[str], Server], tmp_path: Path
) -> None:
    server = make_server(SLOW)
    adapter, other = [await started(server, tmp_path) for _ in range(2)]
    await other.submit(made.collection(answers=1))  # nothing to compare: a step without a job
    ref = await other.submit(made.collection())
    assert ref.metadata == {"submission": 1, "step": 2}
    await adapter.cancel(ref)
    status = await adapter.wait_until_complete(ref, poll_interval=0.1)
    assert status.status is TrainingStatusEnum.CANCELED
    ref = await adapter.submit(made.collection())
    assert ref.metadata == {"submission": 2, "step": 2}
    await adapter.cancel(ref)


async def test_waiting_ends_at_the_deadline_and_the_job_goes_on(
    make_server: Callable[[str], Server], tmp_path: Path
) -> None:
    server = make_server(SLOW)
    adapter = await started(server, tmp_path, deadline_s=0.3)
    ref = await adapter.submit(made.collection())
    with pytest.raises(JobError, match=r"not finished 0\.3 s .*raise deadline_s"):
        await adapter.wait_until_complete(ref, poll_interval=0.1)
    assert (await adapter.status(ref)).status is not TrainingStatusEnum.CANCELED
    await adapter.cancel(ref)


async def test_a_job_whose_process_died_has_failed_and_says_so(
    server: Server, tmp_path: Path
) -> None:
    leave(tmp_path)
    adapter = ARTTrainerAdapter(made.config(server, tmp_path), OtherBackend())
    ref = TrainingJobRef(run_id="run", backend="openpipe-art")
    status = await adapter.wait_until_complete(ref, poll_interval=0.05)
    assert status.status is TrainingStatusEnum.FAILED
    assert "its process ended" in status.message
