"""An engine in a file outside of the repository serves clients and a run."""

import asyncio

import openai
import pytest

from nip_base.spec import ServerSpec
from nip_core.errors import RunConflictError, SettingsError
from nip_core.loop import train
from nip_core.parameters import load_parameters
from nip_core.servers.own_server import make_server_spec
from nip_lm_server.__main__ import main
from nip_lm_server.client import find_capabilities, start_or_attach, stop

PARROT = """
from nip_lm_server.engines.base import (
    Capabilities, Delta, Engine, GenerationRequest, GenerationResult,
)


class Parrot(Engine):
    name = "parrot"
    capabilities = Capabilities(has_weights=False)
    max_model_len = 4096

    def __init__(self, model, served_name, *, says="Hello"):
        self.base_model, self._says = served_name, says

    async def generate(self, request):
        choices = [
            Delta(n, self._says, "stop", completion_tokens=len(self._says.split()))
            for n in range(request.n)
        ]
        return GenerationResult(request.model, tuple(choices), len(await self.tokenize(request)))

    async def tokenize(self, request):
        words = [word for message in request.messages for word in message["content"].split()]
        return tuple(range(len(words)))
"""


@pytest.fixture
def parrot(tmp_path):
    file = tmp_path / "outside" / "birds.py"
    file.parent.mkdir()
    file.write_text(PARROT)
    return f"{file}:Parrot"


def settings(engine, folder, **more):
    return load_parameters(
        {
            "run_name": "own",
            "run_store": str(folder / "runs"),
            "dataset": "families",
            "interaction_protocol": "solo_verifier",
            "agents": {"_default": {"model_provider": "SelfHosted", "model_name": "bird"}},
            "lm_server": {"engine": engine, "options": {"says": "Decision: accept"}},
            "rl": {"num_iterations": 1, "rollouts_per_iteration": 4},
            "dataset_options": {"max_test_size": 4},
            **more,
        }
    )


FROZEN = {"_default": {"model_provider": "SelfHosted", "model_name": "bird", "freeze_agent": True}}


def test_it_serves_clients_and_a_run_as_ours_do(parrot, tmp_path):
    parameters = settings(parrot, tmp_path, agents=FROZEN)
    # 1. A server by itself, and OpenAI's client.
    handle = start_or_attach(make_server_spec(parameters), tmp_path / "state", timeout_s=60)
    try:
        client = openai.OpenAI(base_url=f"{handle.url}/v1", api_key=handle.api_key, max_retries=0)
        asked = {"model": "bird", "messages": [{"role": "user", "content": "Is it correct?"}]}
        answer = client.chat.completions.create(**asked, n=2)
        assert [choice.message.content for choice in answer.choices] == ["Decision: accept"] * 2
        assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (3, 4)
        pieces = client.chat.completions.create(**asked, stream=True)
        assert "".join(p.choices[0].delta.content or "" for p in pieces) == "Decision: accept"
        assert client.models.retrieve("bird").nip["engine"] == "parrot"
        # What it can't do is refused by name.
        with pytest.raises(openai.BadRequestError, match="the parrot engine has none"):
            client.chat.completions.create(**asked, logprobs=True)
        rows = b'{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}\n'
        file = client.files.create(file=("rows.jsonl", rows * 20), purpose="fine-tune")
        with pytest.raises(openai.BadRequestError, match="the engine of 'bird' loads no adapters"):
            client.fine_tuning.jobs.create(model="bird", training_file=file.id)
    finally:
        stop(handle)
    # 2. A run with a server of its own.
    summary = asyncio.run(train(parameters))
    # Who accepts everything is right of what is correct, and of nothing else.
    tested = summary["iterations"][0]["test"]
    assert (tested["completeness"], tested["soundness"]) == (1.0, 0.0)
    # 3. With another class in the file it is another run, as with another protocol.
    file = tmp_path / "outside" / "birds.py"
    file.write_text(file.read_text() + "# another one\n")
    with pytest.raises(
        RunConflictError, match=r"birds\.py, in which the engine of lm_server\.engine"
    ):
        asyncio.run(train(parameters))


def test_a_run_that_would_train_over_it_is_refused_before_it_begins(parrot, tmp_path):
    with pytest.raises(SettingsError, match=r"loads no adapters.*freeze_agent: true"):
        asyncio.run(train(settings(parrot, tmp_path)))
    assert not (tmp_path / "runs" / "own" / "run.json").exists()


@pytest.mark.parametrize(
    ("replaced", "by", "said"),
    [
        ("class Parrot(Engine)", "class Finch(Engine)", "it has no 'Parrot'; it defines Finch"),
        ("class Parrot(Engine)", "class Parrot", "not a subclass of nip_lm_server.engines.base"),
        ("def generate", "def answer", "lacks generate, which"),
        ("    max_model_len = 4096\n", "", "lacks max_model_len, which"),
        ("def tokenize", "def words", "lacks tokenize, which"),
        ("(has_weights=False)", "(sleep=True)", "lacks sleep, wake, which"),
        (
            "(has_weights=False)",
            "(trains=True)",
            "lacks load_adapter, loaded_adapters, prove, unload_adapter, which",
        ),
        ("(has_weights=False)", "(trains_resident=True)", "lacks score_prompt, which"),
        ("(has_weights=False)", "(has_weights=False, trains=True)", "trains and has no weights"),
        ("Capabilities(has_weights=False)", "None", "has no capabilities as a value of its class"),
        ('    name = "parrot"\n', "", "has no name"),
        ("async def tokenize", "def tokenize", "has to have `async def` for tokenize"),
        (
            "    max_model_len = 4096\n",
            "    max_model_len = 1 // 0\n",
            "ZeroDivisionError.*, line 10",
        ),
    ],
)
def test_settings_say_what_its_class_lacks(replaced, by, said, parrot, tmp_path):
    assert replaced in PARROT
    file = tmp_path / "outside" / "birds.py"
    file.write_text(PARROT.replace(replaced, by))
    with pytest.raises(SettingsError, match=f"lm_server.engine.*{said}"):
        settings(parrot, tmp_path)


@pytest.mark.parametrize(
    ("engine", "said"),
    [
        (
            "embeded",
            "there is no engine 'embeded'; there are .*embedded, vllm, and one of your own",
        ),
        ("missing.py:Parrot", "No such file"),
        ("no.such.package:Parrot", "No module named"),
    ],
)
def test_settings_say_that_an_engine_is_not_there(engine, said, tmp_path):
    with pytest.raises(SettingsError, match=f"lm_server.engine.*{said}"):
        settings(engine, tmp_path)


def test_a_server_says_it_before_it_begins(parrot, tmp_path, capsys):
    state = ["--model=bird", f"--state={tmp_path / 'state'}", "--port=0", "--no-auth"]
    assert main([f"--engine={parrot}s", *state]) != 0
    assert "it has no 'Parrots'; it defines Parrot" in capsys.readouterr().err
    assert main([f"--engine={parrot}", *state, "--option", "song=1"]) != 0
    assert "which can't be ['song']" in capsys.readouterr().err


def test_its_file_counts_by_its_content_and_its_place(parrot, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path / "outside")
    assert find_capabilities(parrot) == find_capabilities("birds.py:Parrot")
    before = ServerSpec(parrot, "bird").digest()
    assert ServerSpec("birds.py:Parrot", "bird").digest() == before
    (tmp_path / "outside" / "birds.py").write_text(PARROT.replace("Hello", "Hi"))
    assert ServerSpec(parrot, "bird").digest() != before
