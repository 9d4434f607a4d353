"""What a model can't do is found before anything is played: its template, its context, its files."""

import asyncio
import json
import shutil
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import openai
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from scripted_game import settings as scripted_settings
from scripted_server import scripted_server
from server_here import one_here
from small_game import write_config

from nip_base.spec import EngineSpec, ServerSpec
from nip_core import loop
from nip_core.errors import SettingsError
from nip_core.game.render import Game, Situation
from nip_core.jobs.server_calls import EngineStatus
from nip_core.models import BUNDLED
from nip_core.parameters import load_parameters
from nip_core.records.left_out import settle_left_out
from nip_core.session.opening import open_session
from nip_core.session.prompt_checks import sample_conversation
from nip_core.showing.reports import write_report
from nip_core.showing.summary import summarise_run
from nip_core.stages.playing import split_play
from nip_lm_server.client import ServerHandle

pytestmark = pytest.mark.usefixtures("server_in_thread")
REFUSES = "{% if message['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
DROPS = "{% if message['role'] != 'system' %}"


def model_with_template(folder: Path, change) -> Path:
    target = folder / "model"
    shutil.copytree(BUNDLED["tiny"], target)
    template = target / "chat_template.jinja"
    template.write_text(change(template.read_text()))
    return target


def refusing(template: str) -> str:
    assert "{%- for message in messages" in template or "{% for message in messages" in template
    head, loop, rest = template.partition("for message in messages")
    closing = rest.index("%}") + 2
    return head + loop + rest[:closing] + REFUSES + rest[closing:]


def dropping(template: str) -> str:
    head, loop, rest = template.partition("for message in messages")
    closing = rest.index("%}")
    return head + loop + " if message['role'] != 'system'" + rest[closing:]


def nameless(template: str) -> str:
    assert ".name" in template or "['name']" in template, template
    return template.replace(".name", ".nobody").replace("['name']", "['nobody']")


def dated(template: str) -> str:
    return (
        "{%- if not date_string is defined %}{% set date_string = strftime_now('%d %b %Y') %}"
        "{%- endif %}{{- date_string -}}" + template
    )


def thoughtless(template: str) -> str:
    """As some public templates do, also with the last answer."""
    assert "message['content']" in template
    return template.replace("message['content']", "message['content'].split('</think>')[-1]")


CHANGES = {
    "refusing": refusing,
    "dropping": dropping,
    "nameless": nameless,
    "dated": dated,
    "thoughtless": thoughtless,
}


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[ServerHandle]:
    """Serves `tiny`, and it with other chat templates."""
    others = [
        EngineSpec("embedded", str(model_with_template(folder, change)), served_model_name=name)
        for name, change in CHANGES.items()
        for folder in [tmp_path_factory.mktemp(name)]
    ]
    spec = ServerSpec("embedded", str(BUNDLED["tiny"]), more_engines=tuple(others))
    with one_here(spec, tmp_path_factory.mktemp("server")) as handle:
        yield handle


@pytest.fixture
def there(server, monkeypatch) -> dict[str, str]:
    """The settings `lm_server` of a run that uses it."""
    monkeypatch.setenv("NIP_API_KEY", server.api_key)
    return {"url": server.url}


OWN = {"engine": "embedded"}


def configured(folder: Path, lm_server, model: Path | str, **agent: str) -> Path:
    default = {"model_provider": "SelfHosted", "model_name": str(model), **agent}
    return write_config(folder, agents={"_default": default}, lm_server=lm_server)


async def opening(folder: Path, lm_server, model: Path | str, *overrides: str) -> str:
    config = configured(folder, lm_server, model)
    with pytest.raises(SettingsError) as caught:
        async with open_session(load_parameters(config, overrides)):
            pass
    assert not list((folder / "runs").glob("*/run.json"))
    return str(caught.value)


@pytest.mark.parametrize(
    ("model", "said"),
    [("refusing", "System role not supported"), ("dropping", "system messages")],
)
async def test_a_template_without_system_messages_is_refused_with_what_would_help(
    there, tmp_path, model, said
):
    told = await opening(tmp_path, there, model)
    assert said in told
    assert "chat_format: alternating_no_system it takes them" in told


async def test_a_template_that_drops_the_names_of_two_speakers_is_refused(there, tmp_path):
    debate, short = "interaction_protocol=debate", "agents._default.max_tokens_per_message=32"
    for folder in ("a", "b", "c"):
        (tmp_path / folder).mkdir()
    told = await opening(tmp_path / "a", there, "nameless", debate)
    assert "chat_format: the chat template of 'nameless' leaves out names" in told
    assert told.endswith("chat_format: alternating it takes them")
    # With one prover there is nobody to be taken for it.
    for folder, overrides in (
        ("b", (short,)),
        ("c", (short, debate, "agents._default.chat_format=alternating")),
    ):
        config = configured(tmp_path / folder, there, "nameless")
        async with open_session(load_parameters(config, overrides)):
            pass


@pytest.mark.long
async def test_a_template_with_todays_date_is_refused_until_it_is_pinned(there, tmp_path):
    told = await opening(tmp_path, there, "dated")
    assert "writes today's date" in told
    assert 'set lm_server.options.chat_template_kwargs: {date_string: "26 Jul 2024"}' in told
    model = model_with_template(tmp_path / "here", dated)
    (tmp_path / "run").mkdir()
    pinned = {**OWN, "options": {"chat_template_kwargs": {"date_string": "26 Jul 2024"}}}
    async with open_session(load_parameters(configured(tmp_path / "run", pinned, model))):
        pass


async def test_training_on_thoughts_that_a_template_leaves_out_is_refused(there, tmp_path):
    keep, short = (
        "agents._default.train_reasoning=keep",
        "agents._default.max_tokens_per_message=32",
    )
    told = await opening(tmp_path, there, "thoughtless", keep, short)
    assert told.startswith("agents.prover.train_reasoning is keep, but the chat template of")
    # Nobody is trained, or the template has place for them: nothing to refuse.
    for folder, model, more in (
        ("a", "thoughtless", "agents._default.freeze_agent=true"),
        ("b", "tiny", keep),
    ):
        (tmp_path / folder).mkdir()
        config = configured(tmp_path / folder, there, model)
        async with open_session(load_parameters(config, [keep, short, more])):
            pass


async def test_a_rank_that_a_running_server_does_not_take_is_refused(there, tmp_path, monkeypatch):
    async def status(server, model):
        return EngineStatus(max_lora_rank=16)

    monkeypatch.setattr("nip_core.jobs.server_calls.LmServer.engine_status", status)
    told = await opening(tmp_path, there, "tiny")
    assert "lora_rank is 64, but the engine of 'tiny' takes 16 at most" in told


@pytest.fixture
async def adapter(tmp_path, monkeypatch):
    """The name of an adapter, and the settings of the server on which a job has made it."""
    with one_here(ServerSpec("deterministic", "sim"), tmp_path / "server") as handle:
        monkeypatch.setenv("NIP_API_KEY", handle.api_key)
        async with openai.AsyncOpenAI(api_key=handle.api_key, base_url=f"{handle.url}/v1") as api:
            turns = [{"role": role, "content": "Even."} for role in ("user", "assistant")]
            rows = (json.dumps({"messages": turns}) + "\n").encode() * 10
            file = await api.files.create(file=("rows.jsonl", rows), purpose="fine-tune")
            jobs = api.fine_tuning.jobs
            job = await jobs.create(model="sim", training_file=file.id)
            while job.fine_tuned_model is None:
                assert job.status not in ("failed", "cancelled")
                await asyncio.sleep(0.05)
                job = await jobs.retrieve(job.id)
            yield job.fine_tuned_model, {"url": handle.url}


async def test_a_model_that_the_named_server_does_not_have_is_told_with_those_that_it_has(
    adapter, tmp_path
):
    name, server = adapter
    told = await opening(tmp_path, server, "simm")
    assert told == (
        f"agents.prover.model_name: the server at {server['url']} has no model 'simm'; did you "
        f"mean 'sim'?; it has sim, {name}; use one of these names, or start it with "
        "--served-model-name simm"
    )


async def test_an_adapter_that_would_play_and_not_be_trained_on_is_refused(adapter, tmp_path):
    name, server = adapter
    told = await opening(tmp_path, server, name)
    assert f"model_name: {name!r} is an adapter over 'sim'" in told
    config = configured(tmp_path, server, name, freeze_agent=True)
    async with open_session(load_parameters(config)):
        pass


async def test_what_the_error_advises_works(there, tmp_path):
    config = configured(tmp_path, there, "refusing", chat_format="alternating_no_system")
    async with open_session(load_parameters(config)):
        pass


@pytest.mark.parametrize(
    ("protocol", "zero_knowledge"),
    [("debate", False), ("merlin_arthur", False), ("multi_channel_test", False), ("nip", True)],
)
def test_every_agent_is_tried_with_its_turns_and_nothing_else(tmp_path, protocol, zero_knowledge):
    settings = {
        "interaction_protocol": protocol,
        "protocol_common": {"zero_knowledge": zero_knowledge},
    }
    rounds = {
        "nip_protocol": {"max_message_rounds": 3},
        "debate_protocol": {"max_message_rounds": 3},
    }
    game = Game(load_parameters(write_config(tmp_path, **settings, **rounds)))
    for agent in game.protocol.agent_names:
        turns = sample_conversation(game, agent)
        assert turns
        for seed, round_, before in turns:
            assert agent in game.protocol.movers(round_, seed, before)
            game.render(agent, Situation("q", "s", None, seed), before, round_)


async def test_a_context_that_leaves_no_room_is_refused(tmp_path):
    said = await opening(
        tmp_path, OWN, "tiny", "agents._default.max_tokens_per_message=2000", "dataset=problems"
    )
    assert "max_tokens_per_message" in said and "tokens" in said


async def test_a_directory_that_is_no_model_is_refused(tmp_path):
    (tmp_path / "model").mkdir()
    said = await opening(tmp_path, OWN, tmp_path / "model")
    assert f"model_name: {tmp_path / 'model'} is a directory without config.json" in said


async def test_examples_longer_than_the_context_are_refused(there, tmp_path):
    said = await opening(tmp_path, there, "tiny", "fine_tuning.max_length=5000")
    assert "fine_tuning.max_length is 5000" in said and "1024 tokens" in said


async def test_a_server_of_another_version_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("NIP_API_KEY", "key")

    async def told(request: web.Request) -> web.Response:
        return web.json_response({"version": "9.1.0"})

    app = web.Application()
    app.router.add_get("/version", told)
    async with TestServer(app) as server:
        agents = {"_default": {"model_provider": "SelfHosted", "model_name": "m"}}
        config = write_config(tmp_path, agents=agents, lm_server={"url": str(server.make_url(""))})
        with pytest.raises(SettingsError, match=r"has version 9\.1\.0, this is"):
            async with open_session(load_parameters(config)):
                pass


# Problems that are too long


async def test_a_server_of_others_without_jobs_is_refused_before_it_is_asked_to_play(
    tmp_path, monkeypatch
):
    monkeypatch.setenv("OPENAI_API_KEY", "key")
    async with scripted_server(lambda body: "Decision: accept") as server:
        game = scripted_settings(tmp_path, server.url, rl={"num_iterations": 1}).to_dict()
        for agent in game["agents"].values():
            agent["freeze_agent"] = agent["model_name"] == "verifier"
        with pytest.raises(
            SettingsError, match=r"prover\.base_url: .*no fine-tuning jobs .*HTTP 404"
        ):
            await loop.train(load_parameters(game))
        assert server.bodies == [] and not (tmp_path / "scripted").exists()
        # Nobody is trained: then it may have none.
        await loop.train(load_parameters(game, ["agents.prover.freeze_agent=true"]))
        assert server.bodies


@pytest.mark.parametrize(
    ("message", "refused"), [("Unknown request URL: POST /tokenize", False), ("No model m", True)]
)
async def test_a_404_is_about_the_model_only_where_it_says_so(
    tmp_path, monkeypatch, message, refused
):
    """Servers without `/tokenize` may say so in JSON, too."""

    async def tokenize(request: web.Request) -> web.Response:
        return web.json_response({"error": {"message": message}}, status=404)

    app = web.Application()
    app.router.add_post("/tokenize", tokenize)
    monkeypatch.setenv("NIP_API_KEY", "k")
    async with TestServer(app) as other:
        agents = {"_default": {"model_provider": "SelfHosted", "model_name": "m"}}
        config = write_config(tmp_path, agents=agents)
        url = f"agents._default.base_url={other.make_url('/v1')}"
        async with AsyncExitStack() as stack:
            opening = stack.enter_async_context(open_session(load_parameters(config, [url])))
            if not refused:
                await opening
                return
            with pytest.raises(SettingsError, match=rf"model_name: .*/tokenize: {message}"):
                await opening


def dataset(folder: Path, splits: dict[str, list[int]]) -> Path:
    """Problems whose questions have so many words, twice each: correct and buggy."""
    file = folder / "problems.jsonl"
    rows = [
        {
            "id": f"{split}-{i}-{y}",
            "question_id": f"{split}-{i}",
            "question": f"{split} {i}:{' word' * words}",
            "solution": f"x + {y}",
            "y": y,
            "split": split,
        }
        for split, sizes in splits.items()
        for i, words in enumerate(sizes)
        for y in (0, 1)
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


SIZES = {"train": [5, 480, 10, 20, 1500, 30], "validation": [5], "test": [5, 2000, 7]}
LONG = {"train": {"train-1", "train-4"}, "validation": set(), "test": {"test-1"}}


def too_long(folder: Path, sizes=SIZES, **changes) -> Path:
    replies = folder / "replies.yaml"
    replies.write_text("max_model_len: 700\n")
    settings = {
        "dataset": str(dataset(folder, sizes)),
        "dataset_options": {},
        "code_validation": {"system_prompt_version": "short"},
        "lm_server": {"engine": "deterministic", "replies": str(replies)},
        "rl": {"num_iterations": 1, "rollouts_per_iteration": 12, "num_epochs": 1},
    }
    return write_config(folder, **{**settings, **changes})


async def test_problems_too_long_for_the_model_are_left_out_counted_and_on_record(tmp_path, caplog):
    parameters = load_parameters(too_long(tmp_path))
    async with open_session(parameters) as session:
        for split, left in LONG.items():
            assert {p.question_id for p in session.problems[split]}.isdisjoint(left)
            assert {i.rpartition("-")[0] for i in session.left_out[split]} == left
        assert all(p.question_id not in LONG["train"] for p in session.problems["train"])
        plan = split_play(session, 0, "train").plan
        record = session.run.read_json("small/left_out.json")["too_long"]
        facts = record["train"]["train-1-0"]
        assert facts["context"] == 700 and facts["prompt"] + facts["answer"] > 700
    assert "2 test and 4 train problems left out" in caplog.text
    assert summarise_run(session.run)["left_out"] == {"train": 4, "validation": 0, "test": 2}
    write_report(session.run)
    page = session.run.store.get("small/report.html").decode()
    assert "2 test and 4 train problems left out" in page
    # A run that goes on plays the same, whatever its server would say now.
    async with open_session(parameters) as again:
        assert again.left_out == session.left_out and again.problems == session.problems
        assert split_play(again, 0, "train").plan == plan


async def test_a_run_that_must_leave_out_nothing_does_not_begin(tmp_path):
    config = too_long(tmp_path, dataset_options={"on_too_long": "stop"})
    with pytest.raises(
        SettingsError, match=r"problem 'test-1-0' takes more than all of 700 .*on_too_long"
    ):
        async with open_session(load_parameters(config)):
            pass
    assert not list((tmp_path / "runs").glob("*/run.json"))


def test_what_has_become_too_long_since_the_run_began_is_refused(tmp_path):
    facts = {"agent": "prover", "prompt": 690, "answer": 32, "context": 700}
    parameters = load_parameters(too_long(tmp_path))
    with pytest.raises(SettingsError, match="was not so when the run began"):
        settle_left_out(parameters, {"train": []}, {"train": {"b": facts}}, {"a": facts})


async def test_that_all_problems_are_too_long_is_said_as_such(tmp_path):
    config = too_long(tmp_path, sizes={split: [2000] for split in SIZES})
    with pytest.raises(SettingsError) as refused:
        async with open_session(load_parameters(config)):
            pass
    said = str(refused.value)
    assert "the prompt for the shortest problem, 't" in said and "is too long (" in said
    assert "use shorter problems or another model" in said and "chat_format" not in said


async def test_a_split_of_which_nothing_would_be_left_is_refused(tmp_path):
    config = too_long(tmp_path, sizes={**SIZES, "test": [2000, 3000]})
    with pytest.raises(SettingsError, match="all 4 test problems are too long"):
        async with open_session(load_parameters(config)):
            pass
