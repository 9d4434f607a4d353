"""The adapter over real servers: once each, for any process, with the settings that were asked."""

import asyncio
import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from job_server import FakeTime, WireServer
from pydantic import ValidationError
from submitted import episodes, pairs, served, slow_spec, talks

from nip_base.spec import ServerSpec
from nip_by_hand.fine_tuning import (
    FinetuneConfig,
    OpenAITrainerAdapter,
    OpenAITrainerAdapterConfig,
    RewardFunctionConfig,
    TrainerAdapter,
    TrainingJobRef,
    TrainingStatusEnum,
)
from nip_core.errors import JobError, SettingsError
from nip_lm_server.launch import ServerHandle

RATE = 1.23e-5
KEY_VARIABLE = "KEY_OF_TEST_SERVER"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerHandle]:
    spec = ServerSpec("deterministic", "sim")
    with served(tmp_path_factory.mktemp("server"), spec, KEY_VARIABLE) as handle:
        yield handle


@pytest.fixture(scope="module")
def slow_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerHandle]:
    directory = tmp_path_factory.mktemp("slow")
    with served(directory / "state", slow_spec(directory), "SLOW_KEY") as handle:
        yield handle


def config(url: str, state: Path, **settings: Any) -> OpenAITrainerAdapterConfig:
    return OpenAITrainerAdapterConfig(
        **{
            "base_url": url,
            "model": "sim",
            "state_dir": str(state),
            "api_key_variable": KEY_VARIABLE,
            **settings,
        }
    )


def adapter(where: ServerHandle, state: Path, **settings: Any) -> OpenAITrainerAdapter:
    return OpenAITrainerAdapter(config(where.url, state, **settings))


def slow(where: ServerHandle, state: Path, **settings: Any) -> OpenAITrainerAdapter:
    return adapter(where, state, api_key_variable="SLOW_KEY", **settings)


# Settings -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"nonsense": 1}, "nonsense"),
        ({"method": "ppo"}, "method"),
        ({"hyperparameters": {"lr": 1}}, r"unknown for method supervised: \['lr'\]; known: .*lora"),
        ({"hyperparameters": {"beta": 0.1}}, r"unknown for method supervised: \['beta'\]"),
        ({"hyperparameters": {"learning_rate": 3}}, r"learning_rate: .*less than.*\(got 3\)"),
        ({"hyperparameters": {"n_epochs": 0}}, r"n_epochs: .*\(got 0\)"),
        ({"hyperparameters": {"lora_rank": "8"}}, r"lora_rank: .*\(got '8'\)"),
        ({"method": "dpo", "hyperparameters": {"beta": 9}}, r"beta: .*\(got 9\)"),
        ({"method": "dpo", "reward_threshold": 1.0}, "only for supervised"),
        ({"method": "trajectories", "hyperparameters": {"advantage": "given"}}, "none to be 'giv"),
        ({"base_url": "http://name:pass@host/v1"}, "without user name"),
        ({"api_key_variable": "sk-abcdef"}, "api_key_variable"),
    ],
)
def test_settings_that_are_unknown_or_wrong_are_refused(
    tmp_path: Path, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValidationError, match=message) as caught:
        config("http://host", tmp_path, **settings)
    assert "pass@" not in str(caught.value) and "sk-abcdef" not in str(caught.value)


@pytest.mark.parametrize(
    ("address", "variable", "url"),
    [
        ("https://api.openai.com/v1", "OPENAI_API_KEY", "https://api.openai.com/v1"),
        ("http://127.0.0.1:8000", "NIP_API_KEY", "http://127.0.0.1:8000/v1"),
        ("http://host/llm/", "NIP_API_KEY", "http://host/llm"),
    ],
)
def test_a_key_goes_only_where_it_belongs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, address: str, variable: str, url: str
) -> None:
    for name in ("OPENAI_API_KEY", "NIP_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    given = config(address, tmp_path, api_key_variable=None)
    with pytest.raises(SettingsError, match=variable):
        given.key()
    monkeypatch.setenv(variable, "it")
    assert (given.key(), given.url) == ("it", url)


# Health -------------------------------------------------------------------------------------------


async def test_a_server_with_the_key_and_the_model_is_healthy(
    server: ServerHandle, tmp_path: Path
) -> None:
    trainer = adapter(server, tmp_path)
    assert isinstance(trainer, TrainerAdapter)
    assert await trainer.is_healthy()
    await trainer.initialize(FinetuneConfig(reward_function={"name": "accuracy"}))
    assert trainer.adapter_config.reward == RewardFunctionConfig(name="accuracy")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"api_key_variable": "WRONG_KEY"}, "HTTP 401"),
        ({"api_key_variable": "NO_KEY"}, "expected in the environment: NO_KEY"),
        ({"model": "other"}, "model 'other' can't be had: .*HTTP 404"),
        ({"base_url": "http://127.0.0.1:9"}, r"127\.0\.0\.1:9/v1"),
        ({"base_url": "nowhere", "server": "nip"}, "HTTP 404"),
    ],
)
async def test_a_wrong_key_an_unknown_model_and_nobody_there_are_not_healthy(
    server: ServerHandle,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    settings: dict[str, Any],
    message: str,
) -> None:
    monkeypatch.setenv("WRONG_KEY", "wrong-key-0123456789")
    if settings.get("base_url") == "nowhere":
        settings = {**settings, "base_url": f"{server.url}/another/path"}
    trainer = adapter(server, tmp_path, **settings)
    assert not await trainer.is_healthy()
    with pytest.raises(ConnectionError, match=message) as caught:
        await trainer.initialize(FinetuneConfig())
    assert "wrong-key" not in str(caught.value)


async def test_what_a_server_has_no_words_for_is_refused_before_anything_is_sent(
    server: ServerHandle, tmp_path: Path
) -> None:
    for settings in ({"hyperparameters": {"learning_rate": RATE}}, {"method": "trajectories"}):
        trainer = adapter(server, tmp_path, server="openai", **settings)
        with pytest.raises(SettingsError, match="server of nip"):
            await trainer.submit(episodes("words"))
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


# Submitting ---------------------------------------------------------------------------------------


async def test_a_collection_is_trained_on_once_and_the_answer_stays(
    server: ServerHandle, tmp_path: Path
) -> None:
    trainer = adapter(server, tmp_path, hyperparameters={"n_epochs": 2, "lora_rank": 4})
    ref = await trainer.submit(talks("Any run/1"))
    end = await trainer.wait_until_complete(ref, poll_interval=0.05)
    assert (end.status, end.progress) == (TrainingStatusEnum.COMPLETED, 100.0)
    assert end.message == "Training completed successfully."
    assert end.metadata is not None
    assert end.metadata["model"].startswith("ft:sim:any-run-1-")
    assert end.metadata["hyperparameters"]["n_epochs"] == 2
    assert end.metadata["hyperparameters"]["lora_rank"] == 4
    again = adapter(server, tmp_path)
    assert await trainer.status(ref) == await again.status(ref) == end
    assert await again.wait_until_complete(ref, poll_interval=0.05) == end
    assert await again.cancel(ref) == end
    assert (await again.status(TrainingJobRef(run_id="Any run/1", backend="openai"))) == end


async def test_after_the_end_the_same_run_id_goes_on_from_the_new_model(
    server: ServerHandle, tmp_path: Path
) -> None:
    trainer = adapter(server, tmp_path)
    refs = []
    for _ in range(2):
        refs.append(await trainer.submit(talks("epochs")))
        await trainer.wait_until_complete(refs[-1], poll_interval=0.05)
    first, second = [(await trainer.status(ref)).metadata for ref in refs]
    assert first is not None and second is not None
    assert (first["submission"], second["submission"]) == (0, 1)
    assert second["parent_model"] == first["model"] != second["model"]
    from_start = adapter(server, tmp_path, train_from="model")
    third = await from_start.wait_until_complete(
        await from_start.submit(talks("epochs")), poll_interval=0.05
    )
    assert third.metadata is not None and third.metadata["parent_model"] == "sim"


async def test_what_can_not_be_trained_on_is_refused_and_leaves_nothing(
    server: ServerHandle, tmp_path: Path
) -> None:
    trainer = adapter(server, tmp_path, reward_threshold=0.5)
    with pytest.raises(ValueError, match=r"'few'.*5 example"):
        await trainer.submit(talks("few"))
    with pytest.raises(ValueError, match=r"No training job found with run_id few\."):
        await trainer.status(TrainingJobRef(run_id="few", backend="openai"))
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


@pytest.mark.parametrize(
    "ref",
    [
        TrainingJobRef(run_id="known", backend="openai", metadata={"submission": 1}),
        TrainingJobRef(run_id="known", backend="openai", metadata={"submission": "0"}),
        TrainingJobRef(run_id="known", backend="openpipe-art", metadata={"submission": 0}),
        TrainingJobRef(run_id="never", backend="openai"),
    ],
)
async def test_a_reference_that_nothing_is_known_of_is_an_error(
    server: ServerHandle, tmp_path: Path, ref: TrainingJobRef
) -> None:
    trainer = adapter(server, tmp_path)
    await trainer.submit(talks("known"))
    for ask in (trainer.status, trainer.wait_until_complete, trainer.cancel):
        with pytest.raises(ValueError, match=f"No training job found with run_id {ref.run_id}"):
            await ask(ref)


# While a job goes on ------------------------------------------------------------------------------


async def test_under_way_the_same_one_is_the_same_and_another_one_is_refused(
    slow_server: ServerHandle, tmp_path: Path
) -> None:
    trainer = slow(slow_server, tmp_path)
    ref = await trainer.submit(talks("live"))
    assert await slow(slow_server, tmp_path).submit(talks("live")) == ref
    with pytest.raises(ValueError, match=r"'live': another collection.*under way as job ftjob-"):
        await trainer.submit(talks("live", word="no"))
    with pytest.raises(ValueError, match=r"'live': another collection, or one with other settings"):
        await slow(slow_server, tmp_path, seed=5).submit(talks("live"))
    deadline = time.monotonic() + 20
    while (seen := await trainer.status(ref)).status is TrainingStatusEnum.PENDING:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)
    assert seen.status is TrainingStatusEnum.RUNNING
    assert seen.progress is None or 0 <= seen.progress < 100
    with pytest.raises(JobError, match=r"not finished 0\.3 s"):
        await slow(slow_server, tmp_path, deadline_s=0.3).wait_until_complete(ref, 0.05)
    assert (await trainer.cancel(ref)).status in (
        TrainingStatusEnum.RUNNING,
        TrainingStatusEnum.CANCELED,
    )
    end = await trainer.wait_until_complete(ref, poll_interval=0.05)
    assert (end.status, end.message) == (TrainingStatusEnum.CANCELED, "Training was cancelled.")
    assert await slow(slow_server, tmp_path).status(ref) == end == await trainer.cancel(ref)
    assert (await trainer.submit(talks("live", word="no"))).metadata != ref.metadata


PROGRAM = """
import asyncio, os, signal, sys
from submitted import talks
from nip_by_hand.fine_tuning import OpenAITrainerAdapter, OpenAITrainerAdapterConfig
async def main():
    config = OpenAITrainerAdapterConfig.model_validate_json(sys.argv[1])
    ref = await OpenAITrainerAdapter(config).submit(talks("killed"))
    print(ref.model_dump_json(), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
asyncio.run(main())
"""


async def test_a_reference_outlives_the_process_that_submitted(
    slow_server: ServerHandle, tmp_path: Path
) -> None:
    settings = config(slow_server.url, tmp_path, api_key_variable="SLOW_KEY")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, settings.model_dump_json()],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[4] / "tests" / "helpers")},
    )
    assert done.returncode == -9, done.stderr
    ref = TrainingJobRef.model_validate_json(done.stdout)
    trainer = slow(slow_server, tmp_path)
    seen = await trainer.status(ref)
    assert seen.status in (TrainingStatusEnum.PENDING, TrainingStatusEnum.RUNNING)
    assert seen.metadata is not None and ref.metadata is not None
    assert seen.metadata["job_id"] == ref.metadata["job_id"]
    assert await trainer.submit(talks("killed")) == ref
    await trainer.cancel(ref)
    end = await trainer.wait_until_complete(ref, poll_interval=0.05)
    assert end.status is TrainingStatusEnum.CANCELED


async def test_a_server_that_is_gone_leaves_what_was_last_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with served(tmp_path / "server", slow_spec(tmp_path), "GONE_KEY") as handle:
        trainer = adapter(handle, tmp_path / "state", api_key_variable="GONE_KEY")
        ref = await trainer.submit(talks("gone"))
    monkeypatch.setenv("GONE_KEY", handle.api_key)
    seen = await adapter(handle, tmp_path / "state", api_key_variable="GONE_KEY").status(ref)
    assert seen.status in (TrainingStatusEnum.PENDING, TrainingStatusEnum.RUNNING)
    assert "The last look failed" in str(seen.message)


# Other servers of the same protocol ---------------------------------------------------------------


class OpenAILike(WireServer):
    """Tells its steps as OpenAI does."""

    async def _events(self, request: web.Request) -> web.StreamResponse:
        said = ["Created fine-tuning job", "Step 2/8: training loss=0.50", "checkpoint saved"]
        events = [
            {"id": f"e{i}", "object": "fine_tuning.job.event", "created_at": i, "level": "info",
             "message": message, "type": "message", "data": {}}
            for i, message in enumerate(said)
        ]  # fmt: skip
        return web.json_response({"object": "list", "data": events[::-1], "has_more": False})


async def test_a_server_that_is_not_ours_gets_only_words_that_it_knows(
    tmp_path: Path, fake_time: FakeTime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTHER_KEY", "key-of-another-server")
    wire = OpenAILike(fake_time)
    test_server = TestServer(wire.app())
    await test_server.start_server()
    settings = config(
        str(test_server.make_url("/v1")),
        tmp_path,
        server="openai",
        api_key_variable="OTHER_KEY",
        method="dpo",
        hyperparameters={"beta": 0.25, "learning_rate_multiplier": 1.5, "n_epochs": "auto"},
        wandb_project="games",
        seed=11,
    )
    trainer = OpenAITrainerAdapter(settings)
    wire.on_poll = ["validating_files", "running", "a new word", "failed", "failed"]
    wire.job_fields = {"error": {"code": "bad", "message": "no luck"}}
    try:
        ref = await trainer.submit(pairs("words"))
        seen = [await trainer.status(ref) for _ in range(5)]
    finally:
        await test_server.close()
    ((key, body),) = wire.creates
    assert body["method"]["dpo"]["hyperparameters"] == settings.hyperparameters
    assert body["integrations"] == [{"type": "wandb", "wandb": {"project": "games"}}]
    assert (body["seed"], body["metadata"]["nip_key"], "nip" in body) == (11, key, False)
    assert [(status.status.value, status.progress) for status in seen] == [
        ("pending", None),
        ("running", 25.0),
        ("running", None),
        ("failed", None),
        ("failed", None),
    ]
    assert seen[3].message == "Training failed with error: bad: no luck"
    assert seen[3] == seen[4]


async def test_our_own_server_reports_to_nobody(server: ServerHandle, tmp_path: Path) -> None:
    trainer = adapter(server, tmp_path, wandb_project="games")
    with pytest.raises(SettingsError, match="wandb_project"):
        await trainer.initialize(FinetuneConfig())


# Logs ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("run_id", "name"),
    [("run_1.b", "trainer_adapter_run_1.b.jsonl"), ("../a b", "trainer_adapter_a-b-*.jsonl")],
)
def test_progress_is_logged_as_lines_whose_fixed_keys_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run_id: str, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(KEY_VARIABLE, "secret-key-0123456789")
    trainer = OpenAITrainerAdapter(config("http://host", tmp_path / "state"))
    ref = TrainingJobRef(run_id=run_id, backend="openai")
    trainer.log_progress(ref, {"loss": 0.5, "run_id": "other", "timestamp": 0})
    trainer.log_progress(ref, {"loss": float("nan"), "path": Path("x"), "all": [float("inf")]})
    (file,) = (tmp_path / ".tmp/nat/finetuning/trainer_adapter").glob(name)
    first, second = [json.loads(line) for line in file.read_text().splitlines()]
    assert (first["loss"], first["run_id"], first["backend"]) == (0.5, run_id, "openai")
    assert first["timestamp"].endswith("+00:00")
    assert first["trainer_config"]["base_url"] == "http://host/v1"
    assert (second["loss"], second["path"], second["all"]) == ("nan", "x", ["inf"])
    trainer.log_progress(ref, {}, output_dir=str(tmp_path / "elsewhere"))
    assert len(list((tmp_path / "elsewhere").glob(name))) == 1


async def test_the_key_is_in_no_file_log_or_representation(
    server: ServerHandle, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    trainer = adapter(server, tmp_path)
    ref = await trainer.submit(talks("keyless"))
    status = await trainer.wait_until_complete(ref, poll_interval=0.05)
    trainer.log_progress(ref, {}, output_dir=str(tmp_path))
    files = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()).decode()
    for text in (caplog.text, files, repr(trainer), repr(trainer.config), repr(status), repr(ref)):
        assert server.api_key not in text
