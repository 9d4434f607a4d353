"""A run begins with an adapter of the Hub, pinned and proved; others load it without nip."""

import json
import subprocess
import sys
from pathlib import Path

import openai
import pytest
from finished_run import CHANGES, CONFIG
from huggingface_hub import snapshot_download
from server_here import one_here
from small_game import train_here
from trained_here import tiny

from nip_bridges.commands import hub as commands
from nip_bridges.hub.adapter_of_run import choose_model, write_adapter
from nip_cli.printing.plans_and_runs import show_plan
from nip_core.errors import SettingsError
from nip_core.parameters import load_parameters
from nip_core.rollouts.storage.tables import read_rollouts
from nip_core.run_store.run import RunStore
from nip_core.run_store.store import open_store
from nip_core.session.prepare import prepare

pytestmark = pytest.mark.timeout(600)  # whoever comes first makes the run


def push(run, to="ada/verifier"):
    store = str(run.store.local_path(run.root).parent)
    commands.push(
        run.name, to, "adapter", None, None, False, None, None, run_store=store, as_json=False
    )


def settings(store, *more, adapter="hf://ada/verifier"):
    """Of a run that only plays with what it begins with."""
    return [
        f"run_store={store}",
        *CHANGES,
        "run_name=second",
        "rl.rollouts_per_iteration=4",
        "agents._default.freeze_agent=true",
        f"agents._default.published_adapter={adapter}",
        *more,
    ]


async def test_a_run_plays_with_a_published_adapter_pinned_and_proved(hub, run, tmp_path, capsys):
    push(run)
    [pushed] = [commit for commit, _, _ in hub.repository("ada/verifier").commits[1:]]
    changes = settings(tmp_path / "runs")
    # 1. A dry run says what the name means now, and makes nothing.
    capsys.readouterr()
    show_plan(load_parameters(str(CONFIG), changes), as_json=False)
    assert "both begins with ft:tiny:ada-verifier:" in (said := capsys.readouterr().out)
    assert f"of hf://ada/verifier@{pushed}" in said and not (tmp_path / "runs").exists()
    # 2. The run has the commit on record, and every answer is that model's.
    result = await train_here(CONFIG, changes)
    second = RunStore(open_store(tmp_path / "runs"), "second")
    [begun] = second.read_json("second/run.json")["contents"]["origin"]
    assert begun["both"]["from_run"] == f"hf://ada/verifier@{pushed}"
    name = begun["both"]["model"]
    rows = read_rollouts(second.store, second.rollouts(0, "train")).generations.to_pylist()
    assert {row["model_served"] for row in rows} == {name}
    assert result["iterations"][0]["models"] == {"both": name}
    # 3. What is published later, or goes, changes nothing any more.
    hub.add(hub.repository("ada/verifier"), "later", {"nip.json": None})
    asked = len(hub.requests)
    assert (await train_here(CONFIG, changes))["iterations"] == result["iterations"]
    assert len(hub.requests) == asked
    # 4. What is published of it says where it began.
    facts = write_adapter(choose_model(second, None, None), tmp_path / "out", place="x", probe=True)
    assert facts.lineage.from_run == f"hf://ada/verifier@{pushed}"


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["agents._default.model_name=tiny-reading"], "over the base model 'tiny', but model_name"),
        (["lm_server.engine=deterministic"], "needs an engine with a model"),
        (["lm_server.url=http://127.0.0.1:9"], "served by the run's own server"),
        (["base_run.base_run_type=parameters", "base_run.run_id=x"], "leave out base_run"),
        (["agents.prover.published_adapter=hf://ada/other"], "must agree"),
        (
            ["agents._default.published_adapter=ada/verifier"],
            "write it as hf://OWNER/NAME@REVISION",
        ),
        (["agents._default.published_adapter=hf://verifier"], "no name of a repository"),
        (["agents._default.published_adapter=hf://datasets/a/b"], "a repository of data"),
        (["agents._default.published_adapter=hf://ada/none"], "there is no such repository"),
        (["agents._default.published_adapter=hf://ada/verifier@v9"], "there is no such revision"),
        (["agents._default.published_adapter=hf://ada/pickled"], "weights are read as safetensors"),
    ],
)
def test_an_adapter_that_can_not_play_here_is_refused_before_anything_starts(
    hub, run, tmp_path, published, more, said
):
    hub.make("ada/pickled", **{"adapter_config.json": b"{}", "adapter_model.bin": b"\x80"})
    hub.repositories["model", "ada/verifier"] = published
    with pytest.raises(SettingsError, match=said):
        prepare(load_parameters(str(CONFIG), settings(tmp_path / "runs", *more)))
    assert not (tmp_path / "runs" / "second").exists()


@pytest.fixture
def published(hub, run):
    push(run)
    return hub.repository("ada/verifier")


def test_an_adapter_over_other_weights_of_the_same_name_is_refused(hub, published, tmp_path):
    facts = json.loads(hub.content("ada/verifier", "nip.json"))
    facts["base"]["weights_sha256"] = "0" * 64
    hub.add(published, "forged", {"nip.json": json.dumps(facts).encode()})
    with pytest.raises(SettingsError, match="trained over other weights of 'tiny'"):
        prepare(load_parameters(str(CONFIG), settings(tmp_path / "runs")))


async def test_an_adapter_that_nip_did_not_publish_plays_as_well(hub, published, tmp_path):
    files = {name: None for name in published.commits[-1][2] if name.startswith("base/")}
    hub.add(published, "plain", {**files, "nip.json": None, "probe.json": None, "README.md": None})
    prepared = prepare(load_parameters(str(CONFIG), settings(tmp_path / "runs")))
    assert prepared.origin.models[0]["both"].model.startswith("ft:tiny:ada-verifier:")
    vllm = settings(tmp_path / "runs", "lm_server.engine=vllm")
    with pytest.raises(SettingsError, match=r"has no probe\.json"):
        prepare(load_parameters(str(CONFIG), vllm))


def test_a_run_asks_for_what_an_adapter_has_and_for_nothing_else(hub, published, tmp_path):
    strange = {".vscode/tasks.json", ".mcp.json", "CLAUDE.md", "base/.mcp.json", "x.parquet"}
    plain = {"nip.json": None, "probe.json": None, **dict.fromkeys(strange, b"{}")}
    hub.add(published, "strange", plain)
    prepare(load_parameters(str(CONFIG), settings(tmp_path / "runs")))
    asked = {path for _, path in hub.requests}
    assert any(path.endswith("/adapter_config.json") for path in asked)
    assert not [path for path in asked for name in strange if path.endswith(f"/{name}")]
    cached = {path.name for path in (tmp_path / "hf").rglob("*") if path.is_file()}
    assert "adapter_config.json" in cached and not cached & {Path(name).name for name in strange}


PLAIN = """
import json, sys
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

folder, ids = sys.argv[1], json.loads(sys.argv[2])
base = AutoModelForCausalLM.from_pretrained(f"{folder}/base")
tokenizer = AutoTokenizer.from_pretrained(f"{folder}/base")
model = PeftModel.from_pretrained(base, folder).eval()
with torch.inference_mode():
    made = model.generate(
        torch.tensor([ids]), max_new_tokens=24, do_sample=False,
        output_logits=True, return_dict_in_generate=True,
    )
tokens = made.sequences[0, len(ids):].tolist()
scores = [step[0].log_softmax(-1)[token].item() for step, token in zip(made.logits, tokens)]
assert not [name for name in sys.modules if name.startswith("nip")]
print(json.dumps({"tokens": tokens, "logprobs": scores}))
"""


@pytest.mark.long
async def test_plain_peft_in_a_process_without_nip_gives_what_the_server_gives(run, tmp_path):
    chosen = choose_model(run, None, None)
    write_adapter(chosen, tmp_path / "plain", place="plain")
    state = run.store.local_path(f"{run.root}/lm_server")
    [question] = read_rollouts(run.store, run.rollouts(0, "train")).episodes["question"][:1]
    # 1. What nip's server says, greedily.
    with one_here(tiny(), state) as server:
        async with openai.AsyncOpenAI(
            base_url=f"{server.url}/v1", api_key=server.api_key
        ) as client:
            answer = await client.chat.completions.create(
                model=chosen.model.model,
                messages=[{"role": "user", "content": question.as_py()}],
                max_tokens=24,
                temperature=0.0,
                logprobs=True,
                extra_body={"return_token_ids": True},
            )
    choice = answer.choices[0]
    # 2. What transformers and PEFT say, of the files alone.
    ids = json.dumps(answer.prompt_token_ids)
    command = [sys.executable, "-I", "-c", PLAIN, str(tmp_path / "plain"), ids]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=280)
    assert done.returncode == 0, done.stderr
    plain = json.loads(done.stdout)
    said = [entry.logprob for entry in choice.logprobs.content]
    assert plain["tokens"][: len(choice.token_ids)] == choice.token_ids and len(said) > 1
    assert plain["logprobs"][: len(said)] == pytest.approx(said, abs=1e-4)


def test_a_stranger_downloads_it_by_its_commit(hub, published, tmp_path):
    commit = published.commits[-1][0]
    folder = snapshot_download(
        "ada/verifier", revision=commit, endpoint=hub.url, cache_dir=tmp_path / "cache"
    )
    config = json.loads(Path(folder, "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == "tiny" and config["peft_type"] == "LORA"
