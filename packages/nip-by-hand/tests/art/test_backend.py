"""The back-end for ART's models: what reaches the server, and what survives the program."""

import asyncio
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import art
import made
import pytest
from served import Server

from nip_by_hand.fine_tuning.art.art_backend import LmServerBackend
from nip_by_hand.fine_tuning.art.art_steps import JobFailed
from nip_core.errors import SettingsError

MakeServer = Callable[[str], Server]
MEDIUM = "training: {seconds: 2}\n"


def backend(server: Server, state: Path) -> LmServerBackend:
    return LmServerBackend(server.url, api_key=server.api_key, state_dir=state, poll_interval_s=0.1)


async def test_steps_are_jobs_and_their_models_are_served(server: Server, tmp_path: Path) -> None:
    ours, model = backend(server, tmp_path / "state"), made.model()
    await model.register(ours)
    assert await model.get_step() == 0
    assert model.get_inference_name() == "sim"
    first = await ours.train(model, made.groups(), learning_rate=1.23e-5)
    second = await ours.train(model, made.groups(rewards=(1.0, 0.0)), learning_rate=1.23e-5)
    assert (first.step, second.step, await model.get_step()) == (1, 2, 2)
    assert isinstance(first, art.TrainResult)
    newest, older = server.jobs()
    assert (older.fine_tuned_model, newest.fine_tuned_model) == (first.model, second.model)
    assert newest.model_extra["nip"]["learning_rate"] == 1.23e-5
    assert [model.get_inference_name(step) for step in (0, 1, 2)] == [
        "sim",
        first.model,
        second.model,
    ]
    assert model.get_inference_name() == second.model
    assert first.metrics["data/step_num_groups_trainable"] == 4
    assert first.metrics["data/step_num_gradient_steps"] > 0
    with pytest.raises(ValueError, match="no step 3"):
        model.get_inference_name(3)
    await ours.close()


async def test_a_new_process_goes_on_at_the_step_where_the_last_one_ended(
    server: Server, tmp_path: Path
) -> None:
    ours, model = backend(server, tmp_path / "state"), made.model()
    await model.register(ours)
    result = await ours.train(model, made.groups())
    again, same = backend(server, tmp_path / "state"), made.model()
    await same.register(again)
    assert await same.get_step() == 1
    assert same.get_inference_name() == result.model
    # The same groups are a new step, as the first one was returned to a program.
    assert (await again.train(same, made.groups())).step == 2


async def test_groups_of_equal_rewards_are_counted_and_the_step_advances_without_a_job(
    server: Server, tmp_path: Path
) -> None:
    ours, model = backend(server, tmp_path / "state"), made.model()
    await model.register(ours)
    result = await ours.train(model, made.groups(rewards=(1.0, 1.0)))
    assert (result.step, result.model, result.job_id) == (1, "sim", None)
    assert server.jobs() == []
    assert result.metrics["data/step_num_groups_dropped"] == 4
    assert result.metrics["data/step_num_gradient_steps"] == 0
    mixed = [made.group("a", [1.0, 1.0]), *made.groups()]
    result = await ours.train(model, mixed)
    assert (result.step, result.metrics["data/step_num_groups_trainable"]) == (2, 4)
    assert result.metrics["data/step_num_groups_dropped"] == 1


async def test_every_option_reaches_the_job(server: Server, tmp_path: Path) -> None:
    ours = backend(server, tmp_path / "state")
    model = made.model(
        peft_args={"r": 4, "lora_alpha": 12, "lora_dropout": 0.1},
        trainer_args={
            "per_device_train_batch_size": 3,
            "gradient_accumulation_steps": 2,
            "num_train_epochs": 2,
            "weight_decay": 0.25,
            "max_grad_norm": 0.75,
            "lr_scheduler_type": "cosine",
            "warmup_ratio": 0.125,
            "seed": 17,
        },
    )
    await model.register(ours)
    await ours.train(
        model,
        made.groups(),
        learning_rate=3e-4,
        kl_penalty_coef=0.5,
        epsilon=0.1,
        epsilon_high=0.3,
    )
    job = server.jobs()[0]
    hyper = job.method.model_extra["trajectories"]["hyperparameters"]
    assert job.method.type == "trajectories"
    assert hyper["batch_size"] == 6
    assert hyper["n_epochs"] == 2
    assert (hyper["clip_low"], hyper["clip_high"]) == (0.1, 0.3)
    assert hyper["kl_penalty"] == 0.5
    nip = job.model_extra["nip"]
    expected = {
        "learning_rate": 3e-4,
        "lora_rank": 4,
        "lora_alpha": 12,
        "lora_dropout": 0.1,
        "weight_decay": 0.25,
        "max_grad_norm": 0.75,
        "lr_scheduler": "cosine",
        "warmup_ratio": 0.125,
    }
    assert {name: nip[name] for name in expected} == expected
    assert job.seed == 17


@pytest.mark.filterwarnings("ignore:model.train")
async def test_the_deprecated_train_of_the_model_reaches_the_job_too(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ours, model = backend(server, tmp_path / "state"), made.model()
    await model.register(ours)
    config = art.TrainConfig(learning_rate=1.23e-5, kl_penalty_coef=0.25)
    await model.train(made.groups(), config=config, _config={"epsilon": 0.5})
    job = server.jobs()[0]
    hyper = job.method.model_extra["trajectories"]["hyperparameters"]
    assert (hyper["kl_penalty"], hyper["clip_low"]) == (0.25, 0.5)
    assert job.model_extra["nip"]["learning_rate"] == 1.23e-5
    history = (tmp_path / f".art/p/models/{model.name}/history.jsonl").read_text()
    assert '"loss/' in history


async def test_train_sft_learns_assistant_messages(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ours, model = backend(server, tmp_path / "state"), made.model()
    await model.register(ours)
    trajectories = [t for group in made.groups() for t in group]
    await model.train_sft(trajectories, art.TrainSFTConfig(learning_rate=1e-4, batch_size=4))
    job = server.jobs()[0]
    assert (job.method.type, job.hyperparameters.batch_size) == ("supervised", 4)
    assert job.model_extra["nip"]["learning_rate"] == 1e-4
    assert await model.get_step() == 1


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("mask_prob_ratio", True),
        ("importance_sampling_level", "sequence"),
        ("kimi_k2_tau", 0.5),
        ("save_checkpoint", False),
        ("kl_penalty_reference_step", 7),
        ("epsilon", 2.0),
        ("learning_rat", 1e-4),
    ],
)
async def test_what_can_not_be_done_is_refused_by_name_and_nothing_is_sent(
    server: Server, tmp_path: Path, option: str, value: Any
) -> None:
    ours, model = backend(server, tmp_path / "state"), made.model()
    await model.register(ours)
    with pytest.raises(SettingsError, match=option):
        await ours.train(model, made.groups(), **{option: value})
    assert server.jobs() == []
    assert await model.get_step() == 0


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"engine_args": {"gpu_memory_utilization": 0.9}}, "engine_args.gpu_memory_utilization"),
        ({"peft_args": {"use_rslora": True}}, "peft_args.use_rslora"),
        ({"trainer_args": {"adam_beta1": 0.5}}, "trainer_args.adam_beta1"),
        ({"trainer_gpu_ids": [0]}, "trainer_gpu_ids"),
    ],
)
async def test_a_configuration_that_can_not_be_done_is_refused_when_the_model_is_registered(
    server: Server, tmp_path: Path, config: dict[str, Any], named: str
) -> None:
    ours = backend(server, tmp_path / "state")
    with pytest.raises(SettingsError, match=named):
        await made.model(**config).register(ours)


async def test_a_base_model_that_the_server_lacks_is_refused(
    server: Server, tmp_path: Path
) -> None:
    ours = backend(server, tmp_path / "state")
    with pytest.raises(SettingsError, match="has no model 'absent'"):
        await made.model("absent").register(ours)


async def test_a_failed_job_is_told_and_the_step_stays(
    make_server: MakeServer, tmp_path: Path
) -> None:
    server = make_server("training: {fail_rate: 1}\n")
    ours, model = backend(server, tmp_path / "state"), made.model()
    await model.register(ours)
    for jobs in (1, 2):  # trying again is another job
        with pytest.raises(JobFailed, match="injected_failure"):
            await ours.train(model, made.groups())
        assert len(server.jobs()) == jobs
    assert await model.get_step() == 0


PROGRAM = """
    import asyncio, sys
    sys.path.append({tests!r})
    import made
    from nip_by_hand.fine_tuning.art.art_backend import LmServerBackend

    async def main():
        backend = LmServerBackend({url!r}, api_key={key!r}, state_dir={state!r}, poll_interval_s=0.1)
        models = [made.model(name=name) for name in {names!r}]
        for model in models:
            await model.register(backend)
        steps = [(model, await backend.begin(model, made.groups())) for model in models]
        print("begun", flush=True)
        await asyncio.gather(*(backend.finish(model, step) for model, step in steps))

    asyncio.run(main())
"""


def begun(server: Server, state: Path, names: tuple[str, ...]) -> set[str]:
    """The jobs of a program that was killed while it trained."""
    text = textwrap.dedent(PROGRAM).format(
        tests=str(Path(__file__).parent),
        url=server.url,
        key=server.api_key,
        state=str(state),
        names=names,
    )
    with subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE) as killed:
        assert killed.stdout is not None and killed.stdout.readline() == b"begun\n"
        killed.kill()
    return {job.id for job in server.jobs()}


async def test_a_program_that_was_killed_goes_on_with_its_job_or_counts_its_step(
    make_server: MakeServer, tmp_path: Path
) -> None:
    server = make_server(MEDIUM)
    names = ("same", "other")
    left = await asyncio.to_thread(begun, server, tmp_path / "state", names)
    ours, same, other = (
        backend(server, tmp_path / "state"),
        *(made.model(name=name) for name in names),
    )
    await same.register(ours)  # waits for the job
    assert await same.get_step() == 1
    result = await ours.train(same, made.groups())
    assert (result.step, await same.get_step()) == (1, 1)
    assert {job.id for job in server.jobs()} == left
    await other.register(ours)
    counted = other.get_inference_name()
    result = await ours.train(other, made.groups(rewards=(1.0, 0.0)))
    assert (result.step, await other.get_step()) == (2, 2)
    newest, *older = server.jobs()
    assert (newest.id, newest.model) == (result.job_id, counted)
    assert {job.id for job in older} == left


async def test_checkpoints_are_deleted_unless_the_server_needs_them(
    server: Server, tmp_path: Path
) -> None:
    ours = backend(server, tmp_path / "state")
    model = made.model(base_path=str(tmp_path / "art"))
    await model.register(ours)
    first = await ours.train(model, made.groups())
    second = await ours.train(model, made.groups(rewards=(1.0, 0.0)))
    await model.log(made.groups(1), split="val")  # the best step is looked for
    await model.delete_checkpoints()
    client = model.openai_client()
    served = [listed.id async for listed in client.models.list()]
    assert {first.model, second.model} <= {*served}  # the second came of the first
    await ours.close()


def test_a_key_is_needed_and_never_shown(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="NIP_API_KEY"):
        LmServerBackend("http://127.0.0.1:1", state_dir=tmp_path)
    ours = LmServerBackend("http://127.0.0.1:1", api_key="sesame-1234", state_dir=tmp_path)
    assert "sesame" not in repr(ours)
