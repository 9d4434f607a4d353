"""A group of agents: its jobs at a real lm_server and at an API like OpenAI's, its engine, its state.

The server runs in the test's process with the deterministic engine, which trains nothing and says
which model answers.
"""

import asyncio
import copy
import json
import logging
import pickle
from contextlib import asynccontextmanager
from dataclasses import replace

import numpy as np
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from job_server import FakeTime, WireServer
from served_here import KEY, serve

from nip_base.version import SERVER_VERSION
from nip_by_hand.agents import (
    CodeValidationProtocolHandler,
    ExperimentSettings,
    LanguageModelClient,
    NestedArrayDict,
    OpenAiSharedModelGroup,
    OpenAiSharedModelGroupState,
    OpenAiWholeAgent,
    PureTextEnvironment,
    TrainingJobNotFoundClientError,
)
from nip_core.errors import DatasetError, JobError, RunConflictError, SettingsError, StageError
from nip_core.parameters import HyperParameters, load_parameters
from nip_core.rollouts.client.completions import Endpoint
from nip_core.scenarios import Problem

NOWHERE = "http://127.0.0.1:1"


def parameters_for(store, url, own=None, **more):
    return load_parameters(
        {
            "run_name": "a",
            "run_store": str(store),
            "dataset": "x",
            "nip_protocol": {"max_message_rounds": 3, "min_message_rounds": 3},
            "code_validation": {"system_prompt_version": "short"},
            "fine_tuning": {"poll_interval_s": 0.01, "settle_s": 0.0},
            "agents": {
                "_default": {
                    "model_provider": "SelfHosted",
                    "model_name": "sim",
                    "base_url": f"{url}/v1",
                    "shared_model_group": "both",
                    "lora_rank": 8,
                    **(own or {}),
                }
            },
            **more,
        }
    )


def make_group(parameters, **settings):
    handler = CodeValidationProtocolHandler(parameters)
    own = ExperimentSettings(**settings)
    agents = {name: OpenAiWholeAgent(parameters, own, name, handler) for name in parameters.agents}
    return OpenAiSharedModelGroup(parameters, own, handler, agents, "both")


async def play(group, count=12):
    """Rollouts of batch size (count, 3)."""
    environment = PureTextEnvironment(
        group.hyper_params, ExperimentSettings(), group.protocol_handler
    )
    data = environment.reset(
        [Problem(f"p{i}", f"q{i}", f"Add {i}.", f"x + {i}", i % 2) for i in range(count)]
    )
    steps = []
    for _ in range(3):
        actions = {
            name: await agent.aforward(data, environment)
            for name, agent in group.agent_wholes.items()
        }
        steps.append(environment.step(data, actions))
        data = environment.advance(steps[-1])
    return NestedArrayDict.stack(steps, dim=1)


async def ended(group):
    async with asyncio.timeout(20):
        while (status := await group.get_fine_tune_job_status()) in ("pending", "running"):
            await asyncio.sleep(0.01)
    return status


async def jobs_of(here):
    async with here.http.get("/v1/fine_tuning/jobs?limit=100") as answer:
        return (await answer.json())["data"]


@pytest.fixture(autouse=True)
def _keys(monkeypatch):
    monkeypatch.setenv("NIP_API_KEY", KEY)
    monkeypatch.setenv("OPENAI_API_KEY", KEY)


async def test_a_group_is_trained_on_what_all_its_agents_said_and_plays_with_what_came_of_it(
    tmp_path,
):
    async with serve(tmp_path / "server") as here:
        group = make_group(parameters_for(tmp_path / "runs", here.url))
        assert await group.get_fine_tune_job_status() == "not_found"
        rollouts = await play(group)
        both = {"prover": rollouts, "verifier": rollouts}
        await group.create_supervised_fine_tune_job(both, job_name="mine")
        assert await ended(group) == "succeeded" and not await group.fine_tune_job_failed()
        [job] = await jobs_of(here)
        assert job["nip"]["lora_rank"] == 8 and job["hyperparameters"]["n_epochs"] == 3
        await group.switch_to_next_model()
        assert group.model_name == job["fine_tuned_model"] and ":mine:" in group.model_name
        assert {agent.model_name for agent in group.agent_wholes.values()} == {group.model_name}
        again = await play(group)
        assert not np.array_equal(
            again["agents", "raw_message"], rollouts["agents", "raw_message"]
        ), "the new model answers"
        record = json.loads((tmp_path / "runs/a/iterations/0000/jobs/both.json").read_text())
        assert (record["outcome"], record["examples"]) == ("succeeded", 24)
        assert await group.get_fine_tune_job_status() == "succeeded"
        state = group.get_state()
        await group.switch_to_next_model()
        assert group.get_state() == state, "switching again changes nothing"


async def test_however_often_a_job_is_created_there_is_one(tmp_path):
    async with serve(tmp_path / "server") as here:
        parameters = parameters_for(tmp_path / "runs", here.url)
        first = make_group(parameters)
        rollouts = await play(first)
        await first.create_supervised_fine_tune_job({"prover": rollouts, "verifier": rollouts})
        second = make_group(parameters)  # as after a crash, without the state
        await second.create_supervised_fine_tune_job({"verifier": rollouts, "prover": rollouts})
        await second.create_supervised_fine_tune_job({"verifier": rollouts, "prover": rollouts})
        assert first.get_state() == second.get_state()
        assert len(await jobs_of(here)) == 1


async def test_a_group_goes_on_from_its_state_and_from_its_last_model(tmp_path):
    own = {"fine_tune_from_scratch": False}
    async with serve(tmp_path / "server") as here:
        parameters = parameters_for(tmp_path / "runs", here.url, own)
        group = make_group(parameters)
        rollouts = await play(group)
        await group.create_supervised_fine_tune_job({"prover": rollouts})
        checkpoint = json.loads(json.dumps(group.get_state_dict()))
        other = make_group(parameters)
        other.set_state(checkpoint)
        assert await ended(other) == "succeeded"
        await other.switch_to_next_model()
        await other.create_supervised_fine_tune_job({"prover": await play(other)})
        assert await ended(other) == "succeeded"
        newest, oldest = await jobs_of(here)
        assert newest["model"] == oldest["fine_tuned_model"] == other.model_name
        assert newest["nip"]["start_from"] == "continue"
        third = make_group(parameters)
        third.set_state(other.get_state())
        await third.switch_to_next_model()
        assert third.model_name == newest["fine_tuned_model"]
        with pytest.raises(ValueError, match="unknown keys"):
            third.set_state({"model": "x"})


async def test_a_verifiers_guess_is_replaced_in_the_rollouts_given_for_that(tmp_path):
    async with serve(tmp_path / "server") as here:
        group = make_group(parameters_for(tmp_path / "runs", here.url))
        rollouts = await play(group)
        with pytest.raises(ValueError, match="prover is not the verifier"):
            await group.create_supervised_fine_tune_job({}, {"prover": rollouts})
        await group.create_supervised_fine_tune_job({}, {"verifier": rollouts})
        [job] = await jobs_of(here)
        async with here.http.get(f"/v1/files/{job['training_file']}/content") as answer:
            lines = [json.loads(line) for line in (await answer.text()).splitlines()]
        right = {f"Add {i}.": f"Decision: {'accept' if i % 2 else 'reject'}" for i in range(12)}
        for line in lines:
            told, last = line["messages"][0]["content"], line["messages"][-1]["content"]
            [question] = [q for q in right if q in told]
            assert last == right[question]
        assert len(lines) == 12


def pairs(rollouts, round_=1):
    """The prover's answers, and the same with other ones."""
    good = rollouts[:, round_]
    bad = NestedArrayDict({key: array.copy() for key, array in good.items()}, good.batch_size)
    bad["next", "raw_message_history"][:, round_, 0] = "Answer: I don't know."
    return {"prover": good}, {"prover": bad}


@pytest.mark.parametrize("provider", ["SelfHosted", "OpenAI"])
async def test_a_preference_job_answers_the_chat_that_the_examples_share(tmp_path, provider):
    own = {"dpo_beta": 0.3, "model_provider": provider}
    async with serve(tmp_path / "server") as here:
        group = make_group(parameters_for(tmp_path / "runs", here.url, own))
        rollouts = await play(group)
        positive, negative = pairs(rollouts)
        await group.create_dpo_fine_tune_job(positive, negative)
        assert await ended(group) == "succeeded"
        [job] = await jobs_of(here)
        assert job["method"]["type"] == "dpo"
        assert job["method"]["dpo"]["hyperparameters"]["beta"] == 0.3
        async with here.http.get(f"/v1/files/{job['training_file']}/content") as answer:
            lines = [json.loads(line) for line in (await answer.text()).splitlines()]
        said = {text for text in rollouts["agents", "raw_message"][:, 1, 0]}
        for line in lines:
            [preferred], [other] = line["preferred_output"], line["non_preferred_output"]
            assert preferred["content"] in said and other["content"] == "Answer: I don't know."
            assert [m["role"] for m in line["input"]["messages"]] == ["system", "user"]
        await group.switch_to_next_model()
        assert group.model_name == job["fine_tuned_model"]


async def test_pairs_that_are_none_are_refused_or_left_out(tmp_path):
    async with serve(tmp_path / "server") as here:
        group = make_group(parameters_for(tmp_path / "runs", here.url))
        positive, negative = pairs(await play(group))
        prover = group.agent_wholes["prover"]
        assert prover.build_dpo_dataset(positive["prover"], positive["prover"]) == []
        with pytest.raises(ValueError, match="answer different chats"):
            prover.build_dpo_dataset(positive["prover"], negative["prover"][::-1])
        with pytest.raises(ValueError, match="do not make pairs"):
            prover.build_dpo_dataset(positive["prover"], negative["prover"][:3])
        with pytest.raises(ValueError, match="of the same agents"):
            await group.create_dpo_fine_tune_job(positive, {})
        with pytest.raises(ValueError, match=r"batch size \(n,\) are needed, got \(12, 3\)"):
            prover.build_dpo_dataset(
                *(NestedArrayDict.stack([p["prover"]] * 3, dim=1) for p in (positive, negative))
            )
        with pytest.raises(ValueError, match="judge"):
            await group.create_supervised_fine_tune_job({"judge": positive["prover"]})


async def test_without_a_job_of_its_own_a_group_keeps_its_model_and_says_so(tmp_path, caplog):
    caplog.set_level(logging.INFO, "nip.agents")
    async with serve(tmp_path / "server") as here:
        few = make_group(parameters_for(tmp_path / "runs", here.url))
        rollouts = await play(few, 3)
        await few.create_supervised_fine_tune_job({"prover": rollouts})
        assert "3 examples, 10 needed" in caplog.text
        frozen = make_group(parameters_for(tmp_path / "frozen", here.url, {"freeze_agent": True}))
        await frozen.create_supervised_fine_tune_job({"prover": rollouts})
        assert not frozen.is_trainable
        for group, reason in ((few, "insufficient_data_job_id"), (frozen, "frozen_job_id")):
            assert group.get_state().fine_tune_job_id == reason
            assert await group.get_fine_tune_job_status() == "succeeded"
            await group.switch_to_next_model()
            assert group.model_name == "sim" and f"keeps sim ({reason})" in caplog.text
        assert await jobs_of(here) == []


async def test_a_dummy_group_needs_no_server_and_its_log_names_what_plays(tmp_path, caplog):
    caplog.set_level(logging.INFO, "nip.agents")
    group = make_group(
        parameters_for(tmp_path / "runs", NOWHERE, {"use_dummy_api": True, "base_url": None})
    )
    for call in (group.eval, group.train, group.wait_for_ready):
        await call()
    rollouts = await play(group, 2)
    await group.create_supervised_fine_tune_job({"prover": rollouts})
    assert await group.get_fine_tune_job_status() == "succeeded"
    await group.switch_to_next_model()
    assert group.model_name == "dummy_model_name" and not (tmp_path / "runs").exists()
    assert "plays with dummy_model_name (dummy_job_id)" in caplog.text
    assert "keeps" not in caplog.text


@asynccontextmanager
async def wire_group(tmp_path, **more):
    wire = WireServer(FakeTime())
    server = TestServer(wire.app())
    await server.start_server()
    url = str(server.make_url("")).rstrip("/")
    try:
        yield wire, make_group(parameters_for(tmp_path, url, {"model_provider": "OpenAI"}, **more))
    finally:
        await server.close()


def examples(count=10):
    return [
        {
            "messages": [
                {"role": "user", "content": f"{i}"},
                {"role": "assistant", "content": "yes"},
            ]
        }
        for i in range(count)
    ]


@pytest.mark.parametrize(
    ("word", "status"),
    [
        ("validating_files", "pending"),
        ("queued", "pending"),
        ("paused", "pending"),
        ("a new word", "pending"),
        ("running", "running"),
        ("succeeded", "succeeded"),
        ("failed", "failed"),
        ("cancelled", "cancelled"),
        ("404", "not_found"),
    ],
)
async def test_every_word_of_the_api_is_one_of_six_statuses(tmp_path, word, status):
    async with wire_group(tmp_path) as (wire, group):
        await group._make_fine_tune_api_call(examples(), "supervised")
        assert group.training_client_type == "openai"
        wire.on_poll = [word] * 4
        assert await group.get_fine_tune_job_status() == status
        assert await group.fine_tune_job_failed() == (status == "failed")
        if status == "not_found":
            with pytest.raises(TrainingJobNotFoundClientError):
                await group._get_openai_fine_tune_job()


async def test_a_failed_job_says_why_gives_no_model_and_can_be_created_again(tmp_path):
    async with wire_group(tmp_path) as (wire, group):
        await group._make_fine_tune_api_call(examples(), "supervised")
        error = {"code": "bad", "param": "training_file", "message": f"out of luck {KEY}"}
        wire.job_fields = {"error": error}
        wire.on_poll = ["failed"] * 9
        said = "bad: training_file: out of luck ***"
        assert await group.get_fine_tune_job_error_repr() == said
        with pytest.raises(JobError, match=r"is failed .bad: training_file: out of luck"):
            await group.switch_to_next_model()
        failed = group.get_state().fine_tune_job_id
        await group._make_fine_tune_api_call(examples(), "supervised")
        assert group.get_state().fine_tune_job_id != failed and len(wire.creates) == 2
        assert wire.creates[0][1]["metadata"]["nip_attempt"] == "0"
        assert wire.creates[1][1]["metadata"]["nip_attempt"] == "1"


async def test_a_job_that_succeeded_without_a_models_name_gives_none_at_once(tmp_path):
    async with wire_group(tmp_path) as (wire, group), asyncio.timeout(20):
        await group._make_fine_tune_api_call(examples(), "supervised")
        wire.on_poll = ["nameless"] * 2
        with pytest.raises(JobError, match=r"ftjob-0 .* has succeeded, but .* names no model"):
            await group.switch_to_next_model()
        assert group.model_name == "sim"
        wire.on_poll = ["nameless"] * 9
        await group._make_fine_tune_api_call(examples(), "supervised")
        assert group.get_state().fine_tune_job_id == "ftjob-1"
        assert wire.creates[1][1]["metadata"]["nip_attempt"] == "1"


async def test_a_method_that_there_is_not_is_refused_by_name(tmp_path):
    async with wire_group(tmp_path) as (wire, group):
        with pytest.raises(ValueError, match=r"method: .*'supervised' or 'dpo'.* \(got 'sft'\)"):
            await group._make_fine_tune_api_call(examples(), "sft")
        for call in (
            group._make_fine_tune_api_call_openai,
            group._make_fine_tune_api_call_lm_server,
        ):
            with pytest.raises(ValueError, match="got 'trajectories'"):
                await call(examples(), "trajectories", "sim")
        assert wire.log == [] and group.get_state().fine_tune_job_id is None


async def test_a_creation_whose_answer_was_lost_is_found_again(tmp_path):
    reported = {"settle_s": 0, "wandb_project": "games"}
    async with wire_group(tmp_path, fine_tuning=reported) as (wire, group):
        wire.on_create = ["drop_after"]
        await group._make_fine_tune_api_call(examples(), "supervised")
        [(_, body)] = wire.creates
        assert body["integrations"] == [{"type": "wandb", "wandb": {"project": "games"}}]
        assert len(wire.jobs) == 1 and group.get_state().fine_tune_job_id == "ftjob-0"


async def test_what_no_server_would_take_is_refused_before_anything_is_sent(tmp_path):
    async with wire_group(tmp_path) as (wire, group):
        with pytest.raises(DatasetError, match="both"):
            await group._make_fine_tune_api_call([{"messages": []}], "supervised")
        with pytest.raises(SettingsError, match="job_name"):
            await group._make_fine_tune_api_call(examples(), "supervised", "a name")
        assert wire.log == []
        with pytest.raises(TrainingJobNotFoundClientError, match="has no fine-tune job"):
            await group.switch_to_next_model()
        with pytest.raises(SettingsError, match="no lm_server"):
            group.language_model_client


async def test_another_job_in_the_place_of_one_is_refused_with_what_to_do(tmp_path):
    async with wire_group(tmp_path) as (wire, group):
        await group._make_fine_tune_api_call(examples(), "supervised")
        with pytest.raises(RunConflictError, match="switch to its model first, or give the run"):
            await group._make_fine_tune_api_call(examples(11), "supervised")
        assert len(wire.jobs) == 1 and group.get_state().fine_tune_job_id == "ftjob-0"


async def test_a_job_that_is_not_there_is_not_found(tmp_path):
    async with serve(tmp_path / "server") as here:
        group = make_group(parameters_for(tmp_path / "runs", here.url))
        group.set_state(OpenAiSharedModelGroupState(fine_tune_job_id="ftjob-none"))
        assert await group.get_fine_tune_job_status() == "not_found"
        with pytest.raises(TrainingJobNotFoundClientError, match="ftjob-none"):
            await group._get_lm_server_fine_tune_job()
        with pytest.raises(JobError, match="not_found"):
            await group.switch_to_next_model()


async def test_a_model_that_is_not_proved_is_not_played_with(tmp_path):
    async with serve(tmp_path / "server") as here:
        group = make_group(parameters_for(tmp_path / "runs", here.url))
        rollouts = await play(group)
        await group.create_supervised_fine_tune_job({"prover": rollouts})
        assert await ended(group) == "succeeded"
        [job] = await jobs_of(here)
        async with here.http.delete(f"/v1/models/{job['fine_tuned_model']}") as answer:
            assert answer.status == 200
        with pytest.raises(StageError):
            await group.switch_to_next_model()
        assert group.model_name == "sim"


@pytest.mark.parametrize(("share", "state"), [("yes", "sleeping"), ("auto", "running")])
async def test_the_engine_leaves_a_shared_device_for_training_and_comes_back(
    tmp_path, share, state
):
    async with serve(tmp_path / "server") as here:
        group = make_group(
            parameters_for(tmp_path / "runs", here.url, lm_server={"share_device": share})
        )
        await group.train()
        client = group.language_model_client
        assert (await client.engine("sim")).state == state
        await group.eval()
        assert (await client.engine("sim")).state == "running"
        assert (await play(group, 1))["agents", "raw_message"][0, 0, 1]


async def test_a_group_waits_for_its_server_and_gives_up_in_time(tmp_path, caplog):
    group = make_group(parameters_for(tmp_path / "runs", NOWHERE))
    with pytest.raises(TimeoutError, match="nip serve"):
        await group.wait_for_ready(timeout=0.2)
    assert "waiting for the lm_server" in caplog.text
    caplog.clear()
    with pytest.raises(TimeoutError):
        await group.wait_for_ready(timeout=0)
    assert "waiting for the lm_server" in caplog.text
    async with serve(tmp_path / "server") as here:
        await make_group(parameters_for(tmp_path / "runs", here.url)).wait_for_ready(timeout=5)


@asynccontextmanager
async def version_server(answer):
    app = web.Application()
    app.router.add_get("/version", answer)
    server = TestServer(app)
    await server.start_server()
    try:
        yield LanguageModelClient(Endpoint(str(server.make_url("/v1")), "k"))
    finally:
        await server.close()


@pytest.mark.parametrize(
    ("body", "problem"),
    [({"version": "9.0.0"}, r"version 9\.0\.0"), ({}, "no lm_server"), ("hello", "no lm_server")],
)
async def test_a_server_of_another_version_or_of_none_is_refused(body, problem):
    async def version(request):
        return web.json_response(body)

    async with version_server(version) as client:
        with pytest.raises(SettingsError, match=problem):
            await client.wait_for_ready(5)


async def test_a_server_that_is_not_there_behind_its_proxy_is_waited_for():
    answers = iter([web.Response(status=502), web.json_response({"version": SERVER_VERSION})])
    told = []

    async def version(request):
        return next(answers)

    async with version_server(version) as client:
        await client.wait_for_ready(5, lambda: told.append(1))
    assert told == [1]


async def test_a_server_that_takes_the_call_and_says_nothing_is_told_of_and_given_up(monkeypatch):
    monkeypatch.setattr("nip_by_hand.agents.language_model_client._LONGEST_LOOK_S", 0.05)
    told = []

    async def version(request):
        await asyncio.sleep(5)

    async with version_server(version) as client:
        with pytest.raises(TimeoutError, match=r"no answer in 0\.0\d+ s"):
            await client.wait_for_ready(0.2, lambda: told.append(1))
    assert told == [1]


def test_members_that_disagree_are_refused_with_the_setting_named(tmp_path):
    parameters = parameters_for(tmp_path, NOWHERE)
    other = parameters_for(tmp_path, NOWHERE, {"lora_dropout": 0.5})
    handler, settings = CodeValidationProtocolHandler(parameters), ExperimentSettings()
    agents = {
        "prover": OpenAiWholeAgent(parameters, settings, "prover", handler),
        "verifier": OpenAiWholeAgent(other, settings, "verifier", handler),
    }
    with pytest.raises(SettingsError, match=r"agents\.verifier\.lora_dropout is 0\.5"):
        OpenAiSharedModelGroup(parameters, settings, handler, agents, "both")
    with pytest.raises(SettingsError, match="was given prover"):
        OpenAiSharedModelGroup(parameters, settings, handler, {"prover": agents["prover"]}, "both")
    swapped = {"prover": agents["verifier"], "verifier": agents["prover"]}
    with pytest.raises(SettingsError, match="agent_wholes: 'prover' is the agent 'verifier'"):
        OpenAiSharedModelGroup(parameters, settings, handler, swapped, "both")
    with pytest.raises(SettingsError, match="there are both"):
        OpenAiSharedModelGroup(parameters, settings, handler, agents, "other")
    assert agents["prover"].shared_model_group is None


def test_an_agent_of_one_group_is_not_moved_to_another(tmp_path):
    group = make_group(parameters_for(tmp_path, NOWHERE))
    again = (group.hyper_params, group.settings, group.protocol_handler, group.agent_wholes, "both")
    with pytest.raises(SettingsError, match=r"agents\.prover: .* has a group named .both. already"):
        OpenAiSharedModelGroup(*again)
    assert all(agent.shared_model_group is group for agent in group.agent_wholes.values())
    for agent in group.agent_wholes.values():
        agent.shared_model_group = None
    assert OpenAiSharedModelGroup(*again).agent_wholes == group.agent_wholes


async def test_a_call_needs_the_key_of_its_own_group_and_names_its_agent(tmp_path, monkeypatch):
    apart = {"prover": {"shared_model_group": None, "model_provider": "OpenAI"}}
    parameters = parameters_for(tmp_path, NOWHERE, {"shared_model_group": None})
    values = parameters.to_dict()
    values["agents"] = {
        name: agent | apart.get(name, {}) for name, agent in values["agents"].items()
    }
    parameters = HyperParameters.from_dict(values)
    handler, settings = CodeValidationProtocolHandler(parameters), ExperimentSettings()
    agents = {n: OpenAiWholeAgent(parameters, settings, n, handler) for n in parameters.agents}
    monkeypatch.delenv("OPENAI_API_KEY")
    verifier = {"verifier": agents["verifier"]}
    group = OpenAiSharedModelGroup(parameters, settings, handler, verifier, "verifier")
    assert str(group.openai_client.base_url).startswith(NOWHERE)
    assert str(agents["verifier"].client.base_url).startswith(NOWHERE)
    with pytest.raises(SettingsError, match=r"agents\.prover: .* OPENAI_API_KEY"):
        agents["prover"].client


@pytest.mark.parametrize(
    ("setting", "own", "more"),
    [
        (
            "agents.prover.load_checkpoint_and_parameters",
            {"load_checkpoint_and_parameters": True, "checkpoint_run_id": "other"},
            {},
        ),
        (
            "base_run.base_run_type",
            {},
            {"base_run": {"base_run_type": "parameters", "run_id": "other"}},
        ),
    ],
)
def test_models_of_another_run_are_not_promised_by_hand(tmp_path, setting, own, more):
    parameters = parameters_for(tmp_path, NOWHERE, own, **more)
    handler, settings = CodeValidationProtocolHandler(parameters), ExperimentSettings()
    with pytest.raises(SettingsError, match=rf"{setting}.*nip train.*set_state"):
        OpenAiWholeAgent(parameters, settings, "prover", handler)
    plain = parameters_for(tmp_path, NOWHERE)
    agents = {n: OpenAiWholeAgent(plain, settings, n, handler) for n in plain.agents}
    with pytest.raises(SettingsError, match=rf"{setting}.*nip train.*set_state"):
        OpenAiSharedModelGroup(parameters, settings, handler, agents, "both")


def test_a_group_says_what_it_trains_with(tmp_path):
    own = {"lora_alpha": 24, "num_epochs": 5}
    group = make_group(parameters_for(tmp_path, NOWHERE, own, rl={"lr": 0.002}))
    assert (group.lora_alpha, group.num_epochs, group.rl_learning_rate) == (24, 5, 0.002)
    assert list(group.agent_ids_and_names()) == [(0, "prover"), (1, "verifier")]
    assert (group.max_message_rounds, group.training_client_type) == (3, "lm_server")


async def test_copies_and_pickles_leave_the_client_behind_and_the_group_keeps_it(tmp_path):
    group = make_group(parameters_for(tmp_path, NOWHERE))
    client = group.openai_client
    for other in (copy.copy(group), pickle.loads(pickle.dumps(group))):
        assert other._client is None and other.get_state() == group.get_state()
    assert group.openai_client is client and replace(group.get_state()) == group.get_state()
