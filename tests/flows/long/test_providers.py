"""Each group plays and trains where its settings say, with the key that belongs there."""

import urllib.request
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest
from scripted_server import scripted_server
from small_game import FEW, train_here, write_config

from nip_base.spec import ServerSpec
from nip_core.errors import SettingsError
from nip_core.loop import play
from nip_core.parameters import load_parameters
from nip_core.rollouts.storage.tables import read_rollouts
from nip_core.run_store.run import RunStore
from nip_core.run_store.store import open_store
from nip_core.session.opening import open_session
from nip_core.session.prepare import plan_run, prepare
from nip_lm_server.launch import ServerHandle, start_or_attach, stop
from nip_verify.whole import verify_all

pytestmark = pytest.mark.usefixtures("server_in_thread")
FOUR = {**FEW, "rollouts_per_iteration": 4}
DUMMY = {"use_dummy_api": True, "max_tokens_per_message": 32}


@pytest.fixture
def lm_server(tmp_path) -> Iterator[ServerHandle]:
    handle = start_or_attach(ServerSpec("deterministic", "sim"), tmp_path / "server")
    yield handle
    stop(handle)


def served(run: RunStore, iteration: int = 0) -> dict[str, set[str]]:
    rows = read_rollouts(run.store, run.rollouts(iteration, "train")).generations.to_pylist()
    return {a: {r["model_served"] for r in rows if r["agent"] == a} for a in ("prover", "verifier")}


async def test_an_lm_server_is_asked_at_one_address_and_trained_at_the_other(
    lm_server, tmp_path, monkeypatch
):
    monkeypatch.setenv("NIP_API_KEY", lm_server.api_key)
    async with scripted_server(lambda body: "Answer: they match") as engine:
        agents = {
            "prover": {
                "model_provider": "SelfHosted",
                "model_name": "sim",
                "language_model_server_scheme_host": "http://127.0.0.1",
                "language_model_server_port": urlsplit(lm_server.url).port,
                "vllm_server_port": urlsplit(engine.url).port,
                "max_tokens_per_message": 32,
            },
            "verifier": {"model_provider": "OpenAI", "model_name": "gpt-x", **DUMMY},
        }
        rl = {"num_iterations": 1, "rollouts_per_iteration": 60, "num_epochs": 1}
        common = {"shared_reward": True, "force_guess": "y"}
        config = write_config(
            tmp_path,
            agents=agents,
            rl=rl,
            protocol_common=common,
            fine_tuning={"poll_interval_s": 0.05, "settle_s": 0.0},
        )
        result = await train_here(config)
    first, last = result["iterations"]
    assert {job["status"] for job in first["jobs"].values()} == {"succeeded"}
    assert first["models"] == {"prover": "sim", "verifier": "dummy-gpt-x"}
    assert last["models"]["prover"].startswith("ft:sim:small-0000-prover")
    assert last["models"]["verifier"].startswith("ft:dummy-gpt-x:small-0000-verifier")
    assert {body["model"] for body in engine.bodies} == {"sim", last["models"]["prover"]}
    assert {h["Authorization"] for h in engine.headers} == {f"Bearer {lm_server.api_key}"}
    await asks_both_servers_whether_all_is_there(tmp_path, lm_server, last["models"]["prover"])


async def asks_both_servers_whether_all_is_there(folder, lm_server, model):
    run = RunStore(open_store(folder / "runs", read_only=True), "small")
    findings = await verify_all(run)
    assert not findings.problems and not findings.notes and not findings.unknown
    delete = urllib.request.Request(f"{lm_server.url}/v1/models/{model}", method="DELETE")
    delete.add_header("Authorization", f"Bearer {lm_server.api_key}")
    urllib.request.urlopen(delete, timeout=60).close()
    (problem,) = (await verify_all(run)).problems.values()
    assert problem.path == run.job(0, "prover") and model in problem.what
    stop(lm_server)
    findings = await verify_all(run)
    assert not findings.problems
    assert findings.notes[0].startswith("jobs and models of prover: not checked")


async def test_groups_of_one_provider_may_have_addresses_of_their_own(tmp_path, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "openai-key")
    async with (
        scripted_server(lambda body: "Answer: fine") as common,
        scripted_server(lambda body: "Decision: accept") as own,
    ):
        monkeypatch.setenv("OPENAI_BASE_URL", common.url)
        agents = {
            "_default": {"model_name": "m", "freeze_agent": True},
            "verifier": {"base_url": own.url.removesuffix("/v1")},
        }
        config = write_config(
            tmp_path,
            agents=agents,
            rl=FOUR,
            nip_protocol={"max_message_rounds": 3, "min_message_rounds": 3},
        )
        async with open_session(load_parameters(config)) as session:
            await play(session, 0, "train")
    assert len(common.bodies) == 4 and own.bodies
    for server in (common, own):
        assert {h["Authorization"] for h in server.headers} == {"Bearer openai-key"}


async def test_a_dummy_plays_beside_the_model_that_it_stands_for(tmp_path):
    agents = {
        "_default": {
            "model_provider": "SelfHosted",
            "model_name": "tiny",
            "max_tokens_per_message": 32,
        },
        "prover": {"use_dummy_api": True},
        "verifier": {"num_invalid_generation_retries": 20},
    }
    config = write_config(
        tmp_path,
        agents=agents,
        rl=FOUR,
        lm_server={"engine": "embedded"},
        code_validation={"system_prompt_version": "short"},
    )
    async with open_session(load_parameters(config)) as session:
        await play(session, 0, "train")
        assert served(session.run) == {"prover": {"dummy-tiny"}, "verifier": {"tiny"}}


@pytest.mark.parametrize(
    ("agents", "variable"),
    [
        ({"prover": {"model_provider": "OpenRouter", "freeze_agent": True}}, "OPENROUTER_API_KEY"),
        ({"prover": {"base_url": "http://127.0.0.1:9"}}, "OPENAI_API_KEY"),
        ({"prover": {"model_provider": "SelfHosted", "vllm_server_port": 9}}, "NIP_API_KEY"),
    ],
)
def test_a_missing_key_is_named_with_the_agent_that_needs_it(tmp_path, agents, variable):
    config = write_config(
        tmp_path,
        agents={
            "_default": DUMMY,
            **agents,
            "prover": {"use_dummy_api": False, "model_name": "m", **agents["prover"]},
        },
    )
    with pytest.raises(SettingsError, match=rf"agents\.prover: .*{variable}"):
        prepare(load_parameters(config), {})


def test_nothing_is_bought_of_a_model_that_the_settings_do_not_name(tmp_path):
    agents = {"_default": {"model_name": "m", "base_url": "http://127.0.0.1:9"}, "prover": {}}
    unnamed = {"_default": {"base_url": "http://127.0.0.1:9"}, "verifier": {"model_name": "m"}}
    environment = {"OPENAI_API_KEY": "a key"}
    with pytest.raises(SettingsError, match=r"agents\.prover\.model_name: is missing"):
        prepare(load_parameters(write_config(tmp_path, agents=unnamed)), environment)
    with pytest.raises(SettingsError, match=r"agents\.prover\.model_name: is missing"):
        plan_run(load_parameters(write_config(tmp_path, agents=unnamed)))
    prepare(load_parameters(write_config(tmp_path, agents=agents)), environment)


def test_dummies_need_no_key_whatever_the_provider(tmp_path):
    agents = {
        "prover": {"model_provider": "OpenAI", **DUMMY},
        "verifier": {"model_provider": "OpenRouter", **DUMMY},
    }
    prepared = prepare(load_parameters(write_config(tmp_path, agents=agents)), {})
    assert prepared.endpoints == {} and prepared.estimate.usd == 0.0


def test_quantized_weights_need_a_cuda_device(tmp_path):
    agents = {
        "_default": {
            "model_provider": "SelfHosted",
            "model_name": "tiny",
            "quantization": "bitsandbytes",
        }
    }
    config = write_config(tmp_path, agents=agents, lm_server={"engine": "vllm"})
    with pytest.raises(SettingsError, match="CUDA"):
        prepare(load_parameters(config), {"CUDA_VISIBLE_DEVICES": ""})


@pytest.mark.parametrize("form", ["json", "yaml"])
async def test_transcripts_are_written_where_asked_for(form, tmp_path):
    config = write_config(
        tmp_path,
        rl={**FOUR, "num_iterations": 0},
        text_rl={"save_transcripts": True, "transcript_format": form},
    )
    await train_here(config)
    store = open_store(tmp_path / "runs")
    text = store.get(f"small/iterations/0000/transcripts-test.{form}").decode()
    import yaml

    episodes = yaml.safe_load(text)
    assert len(episodes) == 20 and all(e["messages"] and e["question"] for e in episodes)
