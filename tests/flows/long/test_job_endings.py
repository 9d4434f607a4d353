"""A job that ends without a model: the settings say what follows, and the record says what did."""

import asyncio
import time
from collections.abc import Iterator

import pytest
import yaml
from server_here import one_here
from small_game import FEW, train_here, write_config

from nip_base.spec import ServerSpec
from nip_core.errors import JobError, SettingsError
from nip_core.run_store.run import RunStore
from nip_core.run_store.store import open_store
from nip_lm_server.engines.scripted.reply_rules import DEFAULT_FILE

NO_TESTS = {"test_scheme": "none"}


def replies(folder, **training) -> str:
    path = folder / "replies.yaml"
    path.write_text(
        yaml.safe_dump({**yaml.safe_load(DEFAULT_FILE.read_text()), "training": training})
    )
    return str(path)


def configured(folder, training, **fine_tuning):
    return write_config(
        folder,
        rl=FEW,
        text_rl=NO_TESTS,
        lm_server={"engine": "deterministic", "replies": replies(folder, **training)},
        fine_tuning={"poll_interval_s": 0.05, **fine_tuning},
    )


def records(folder) -> list[dict]:
    run = RunStore(open_store(folder / "runs"), "small")
    return [run.read_json(run.job(0, group)) for group in ("prover", "verifier")]


async def test_a_group_keeps_its_model_where_a_failed_job_is_let_be(tmp_path):
    config = configured(tmp_path, {"fail_rate": 1.0}, on_failed="keep_model")
    result = await train_here(config)
    assert result["status"] == "finished"
    [only] = result["iterations"]
    assert {job["status"] for job in only["jobs"].values()} == {"failed"}
    run = RunStore(open_store(tmp_path / "runs"), "small")
    after = run.read_json(run.models(0))["groups"]
    assert {group: model["model"] for group, model in after.items()} == only["models"]
    assert all(not record["previous"] for record in records(tmp_path))


async def test_a_failed_job_is_tried_again_until_it_has_had_its_attempts(tmp_path):
    config = configured(tmp_path, {"fail_rate": 1.0}, on_failed="try_again", max_attempts=3)
    with pytest.raises(JobError, match="after 3 attempts"):
        await train_here(config)
    tried = [[*record["previous"], record] for record in records(tmp_path)]
    assert max(len(attempts) for attempts in tried) == 3
    for attempts in tried:
        assert [a["attempt"] for a in attempts] == list(range(len(attempts)))
        assert len({a["key"] for a in attempts}) == len({a["id"] for a in attempts})
        # The other group's last job may still be going on when the run stops.
        assert {a["outcome"] for a in attempts[:-1]} <= {"failed"}
    assert any([a["outcome"] for a in attempts] == ["failed"] * 3 for attempts in tried)


async def test_a_job_whose_deadline_passes_is_cancelled_before_the_run_goes_on(tmp_path):
    config = configured(
        tmp_path, {"seconds": 3600.0}, on_deadline="keep_model", deadline_s=0.3, settle_s=0.0
    )
    result = await train_here(config)
    assert {job["status"] for job in result["iterations"][0]["jobs"].values()} == {"deadline"}
    for record in records(tmp_path):
        assert record["given_up"] and "not finished 0.3 s after" in record["reason"]
        assert record["status"] == "cancelled"


async def test_too_few_examples_can_stop_the_run(tmp_path):
    rl = {**FEW, "rollouts_per_iteration": 4}
    settings = {"poll_interval_s": 0.05, "on_too_few_examples": "stop"}
    config = write_config(tmp_path, rl=rl, text_rl=NO_TESTS, fine_tuning=settings)
    with pytest.raises(JobError, match=r"skipped \(\d examples, 10 needed\)"):
        await train_here(config)


@pytest.fixture
def slow_server(tmp_path) -> Iterator:
    spec = ServerSpec("deterministic", "sim", replies=replies(tmp_path, seconds=4.0))
    with one_here(spec, tmp_path / "server") as handle:
        yield handle


async def test_a_run_lets_go_of_long_jobs_and_goes_on_when_it_is_run_again(
    slow_server, tmp_path, monkeypatch
):
    monkeypatch.setenv("NIP_API_KEY", slow_server.api_key)
    config = write_config(
        tmp_path,
        rl=FEW,
        text_rl=NO_TESTS,
        agents={"_default": {"model_provider": "SelfHosted", "model_name": "sim"}},
        lm_server={"url": slow_server.url},
        fine_tuning={"poll_interval_s": 0.05, "settle_s": 0.0, "park_after_s": 0.2},
    )
    result = await train_here(config)
    assert result["status"] == "parked" and "goes on, " in result["waits_for"]
    deadline = time.monotonic() + 120
    while result["status"] == "parked":
        assert time.monotonic() < deadline
        await asyncio.sleep(0.5)
        result = await train_here(config)
    assert result["status"] == "finished"
    assert {job["status"] for job in result["iterations"][0]["jobs"].values()} == {"succeeded"}
    assert all(not record["previous"] for record in records(tmp_path))


async def test_a_run_whose_server_would_stop_with_it_is_not_parked(tmp_path):
    config = configured(tmp_path, {}, park_after_s=1.0)
    with pytest.raises(SettingsError, match=r"fine_tuning\.park_after_s"):
        await train_here(config)
