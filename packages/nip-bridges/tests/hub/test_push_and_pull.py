"""What a run has trained and played goes to the Hub and comes back, whatever happens on the way.

The Hub is `hub_server`; `huggingface_hub` is the real one.
"""

import hashlib
import json
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import datasets
import huggingface_hub.constants
import pyarrow as pa
import pytest
import yaml
from hub_server import ELSEWHERE, READ_ONLY, TOKEN, Fault
from huggingface_hub import ModelCard, snapshot_download
from made_examples import made as made_examples
from small_game import FEW, train_here, write_config

from nip_bridges.commands import export as export_command
from nip_bridges.commands import hub as commands
from nip_bridges.hub.adapter_of_run import choose_model, write_adapter
from nip_bridges.hub.client import connect
from nip_bridges.hub.dataset_of_run import (
    _Part,
    _remove_places,
    write_run_tables,
)
from nip_bridges.hub.nip_json import AdapterFacts, Lineage
from nip_bridges.hub.privacy import (
    LEFT_OUT,
    check_nothing_leaks,
    find_secrets,
    hide_places,
    without_places,
)
from nip_bridges.hub.repository import list_files, seal
from nip_bridges.hub.transfer import push_directory
from nip_cli import cli
from nip_core.errors import CorruptionError, ServerError, SettingsError
from nip_core.models import BUNDLED
from nip_core.parameters.services.published import Reference
from nip_core.rollouts.storage.parquet import parquet_bytes, parquet_table
from nip_core.rollouts.storage.tables import read_rollouts
from nip_core.run_store import manifest
from nip_core.run_store.run import RunStore
from nip_core.run_store.store import open_store
from nip_core.trainers.dataset import FILES, write_examples

pytestmark = pytest.mark.timeout(600)  # whoever comes first makes the run
NIP = Path(sys.executable).with_name("nip")


def push(run, to="ada/verifier", **options):
    defaults = {"kind": "adapter", "iteration": None, "group": None, "public": False}
    defaults |= {"license_id": None, "base_model": None, "as_json": False}
    store = str(run.store.local_path(run.root).parent)
    commands.push(run.name, address=to, run_store=store, **{**defaults, **options})


def pull(name, directory, what="adapter"):
    commands.pull(name, directory, what, False)


def commits(hub, name="ada/verifier", kind="model"):
    return [commit for commit, _, _ in hub.repository(name, kind).commits[1:]]


def refused(call, *arguments, **options) -> str:
    with pytest.raises(SettingsError) as caught:
        call(*arguments, **options)
    assert TOKEN not in str(caught.value) and "\n" not in str(caught.value)
    return str(caught.value)


def seal_small(directory, files, **lineage):
    """Write a repository of nip's that has these files."""
    for name, content in files.items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_bytes(content)
    return seal(
        directory, AdapterFacts(lineage=Lineage(**{"run": "small", "group": "both", **lineage}))
    )


def texts(directory):
    return {p: p.read_text() for p in directory.rglob("*") if p.suffix in (".json", ".md")}


# Adapters -----------------------------------------------------------------------------------------


def test_an_adapter_is_pushed_privately_in_one_commit_and_the_same_again_makes_none(
    hub, run, capsys
):
    push(run)
    [commit] = commits(hub)
    assert f"hf://ada/verifier@{commit}\n" in capsys.readouterr().out
    assert hub.repository("ada/verifier").private
    sent = len(hub.uploads)
    push(run)
    assert commits(hub) == [commit] and len(hub.uploads) == sent
    assert "has all of it already" in (said := capsys.readouterr()).out
    assert TOKEN not in said.out + said.err
    # The token goes to the Hub, and not to where its large files lie.
    assert {sent for path, sent in hub.sent if path.startswith("/api/")} == {f"Bearer {TOKEN}"}
    assert all(sent is None for path, sent in hub.sent if path.startswith("/cdn/"))


def test_what_is_pulled_is_what_was_pushed_and_weights_are_those_on_record(
    hub, run, tmp_path, capsys
):
    push(run)
    pull("ada/verifier", tmp_path / "pulled")
    assert "files are what was published, of run quickstart" in capsys.readouterr().out
    model = choose_model(run, None, None).model
    source = Path(run.store.local_path(run.root)) / "lm_server" / "models"
    source /= model.model.rpartition(":")[2]
    weights = (tmp_path / "pulled" / "adapter_model.safetensors").read_bytes()
    assert weights == (source / "adapter_model.safetensors").read_bytes()
    facts = json.loads((tmp_path / "pulled" / "nip.json").read_text())
    for name, entry in facts["files"].items():
        content = (tmp_path / "pulled" / name).read_bytes()
        assert hashlib.sha256(content).hexdigest() == entry["sha256"]
    assert facts["lineage"]["content_digest"] == model.digest
    assert facts["lineage"]["job_key"] == run.read_json(run.job(0, "both"))["key"]
    # The directory is left as it is the second time, and another one's content is not mixed in.
    pull(f"hf://ada/verifier@{commits(hub)[0]}", tmp_path / "pulled")
    (tmp_path / "pulled" / "mine.txt").write_text("mine")
    assert "other files" in refused(pull, "ada/verifier", tmp_path / "pulled")


def test_the_card_has_results_with_intervals_lineage_proof_and_no_licence_that_nobody_named(
    hub, run
):
    push(run)
    text = hub.content("ada/verifier", "README.md").decode()
    card = ModelCard(text)
    measured = run.read_json(run.metrics(1, "test"))
    results = {result.metric_type: result for result in card.data.eval_results}
    for name in ("accuracy", "completeness", "soundness"):
        assert results[name].metric_value == measured[name]
        assert results[name].metric_args == {"ci95": measured[f"{name}_ci95"]}
        assert results[name].dataset_split == "test"
    low, high = measured["accuracy_ci95"]
    assert f"| {measured['accuracy']:.4g} | {low:.4g} to {high:.4g} |" in text
    assert card.data.library_name == "peft" and card.data.license is None
    assert card.data.base_model is None  # a name that no hub has would lead to a stranger's model
    document = run.read_json(run.job(0, "both"))
    for fact in (document["key"], document["dataset_digest"], run.open().code_version):
        assert fact in text
    proof = run.read_json(run.models(0))["groups"]["both"]["proof"]["detail"]
    assert f"| distance | {proof['distance']:.4g} |" in text
    assert "has named no licence" in text
    push(run, license_id="apache-2.0")
    card = ModelCard(hub.content("ada/verifier", "README.md").decode())
    assert card.data.license == "apache-2.0" and len(commits(hub)) == 2


def test_nothing_leaves_that_is_of_this_machine_or_of_the_training_data(hub, run, tmp_path):
    push(run)
    pull("ada/verifier", tmp_path / "pulled")
    folder = Path(run.store.local_path(run.root))
    [probe] = (folder / "lm_server").rglob("probe.json")
    trained = json.loads(probe.read_text())["tokens"]
    published = json.loads((tmp_path / "pulled" / "probe.json").read_text())
    assert published["tokens"] != trained and len(published["logprobs"]) > 50
    config = json.loads((tmp_path / "pulled" / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == "tiny"
    for path, text in texts(tmp_path / "pulled").items():
        for private in (str(folder.parent), str(Path(__file__).parents[4]), TOKEN):
            assert private not in text, path
        assert not re.search(rf"\b{re.escape(socket.gethostname())}\b", text), path
        assert "run_store" not in text and "127.0.0.1" not in text, path


def test_a_key_of_the_environment_in_a_file_is_noticed_before_anything_is_sent(tmp_path):
    (tmp_path / "README.md").write_text("all of sk-the-key-itself")
    with pytest.raises(SettingsError, match=r"README.md has the value of the environment variable"):
        check_nothing_leaks(tmp_path, find_secrets({"OPENAI_API_KEY": "sk-the-key-itself"}))
    with pytest.raises(SettingsError, match="a directory of this machine"):
        check_nothing_leaks(tmp_path, {}, [Path("all of sk")])
    check_nothing_leaks(tmp_path, find_secrets({"OPENAI_API_KEY": "another", "HOME": "all of"}))


def test_a_machine_may_be_called_by_any_word_of_a_card_but_not_be_named_in_it(run, tmp_path):
    facts = write_adapter(choose_model(run, None, None), tmp_path / "made", place="x")
    card = (tmp_path / "made" / "README.md").read_text()
    words = set(re.findall(r"[A-Za-z_]{6,}", re.sub(r"`[^`]*`", "", card.partition("---\n\n")[2])))
    assert {"server", "verifier", "quickstart"} <= words and len(words) > 50
    for host in words:
        check_nothing_leaks(tmp_path / "made", {}, [], host)
    settings = {"dataset": "of the server", "prices": {"on alices-laptop": 1}}
    seal(tmp_path / "made", facts.model_copy(update={"settings": settings}))
    for host in ("server", "alices-laptop"):
        with pytest.raises(SettingsError, match=f"has the name of this machine, {host}, in it"):
            check_nothing_leaks(tmp_path / "made", {}, [], host)
    check_nothing_leaks(tmp_path / "made", {}, [], "laptops")


def test_secrets_are_known_by_the_names_of_their_variables_and_in_addresses():
    database = "postgresql://ada:s3cr%40t-word@db/nip"
    environment = {
        "aws_secret_access_key": "abcdefgh",
        "AWS_ACCESS_KEY_ID": "AKIAabcd",
        "GITHUB_PAT": "ghp_abcd",
        "DATABASE_URL": database,
        "DSN": "host=db password=other-word user=ada",
        "PWD": "/home/ada/runs",
        "PATH": "/usr/bin",
        "PREFECT_API_AUTH_STRING": "admin:word-of-it",
        "prefect_server_api_auth_string": "nip:word-of-the-server",
        "MYAUTH": "ada:word-of-mine",
        "SLACK_WEBHOOK_URL": "https://hooks.example/T0/abc",
        "NIP_WEBHOOK": "https://hooks.example/T0/def",
        "PREFECT_API_URL": "https://ada:word-of-the-proxy@prefect.example/api",
        "TRIED_URL": "postgresql://prefect:prefect@localhost/prefect",
    }
    assert find_secrets(environment, TOKEN).keys() == {
        *("abcdefgh", "AKIAabcd", "ghp_abcd", TOKEN),
        *("s3cr%40t-word", "s3cr@t-word", "other-word"),
        *("admin:word-of-it", "word-of-it", "nip:word-of-the-server", "word-of-the-server"),
        *("ada:word-of-mine", "word-of-mine"),
        *("https://hooks.example/T0/abc", "https://hooks.example/T0/def", "word-of-the-proxy"),
    }


@pytest.mark.parametrize("place", ["messages.content", "reasoning"])
def test_a_key_in_a_chat_or_a_thought_is_not_published(hub, run, tmp_path, monkeypatch, place):
    key = {"messages.content": "Return x plus 2.", "reasoning": "a thought of sk-abc"}[place]
    monkeypatch.setenv("openai_api_key", key)
    said = refused(push, with_thoughts(run, tmp_path, "a thought of sk-abc"), kind="dataset")
    assert f"column {place}, has the value of the environment variable openai_api_key" in said
    assert not hub.uploads
    monkeypatch.delenv("openai_api_key")
    # Nor is the token of a login, which no variable has.
    (tmp_path / "token").write_text(TOKEN)
    monkeypatch.delenv("HF_TOKEN")
    monkeypatch.setattr(huggingface_hub.constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
    talkative = with_thoughts(run, tmp_path / "talkative", f"It is {TOKEN}.")
    with pytest.raises(SettingsError, match="reasoning, has the token of the Hub in it"):
        push(talkative, kind="dataset")


def test_errors_are_quoted_without_addresses_and_paths():
    assert hide_places("asked http://10.0.0.1:8000/v1: no") == "asked … no"
    assert hide_places("in /home/ada/runs/x.py, line 3") == "in …, line 3"
    assert hide_places("prover: 3/4 answers and/or none") == "prover: 3/4 answers and/or none"


def test_settings_are_published_without_places_be_they_names_or_values():
    prices = {"/srv/secret/models/m": {"usd": 1}, "/srv/secret/n": {"usd": 2}, "tiny": {"usd": 3}}
    assert without_places({"prices": prices}) == {
        "prices": {LEFT_OUT: {"usd": 1}, f"{LEFT_OUT} 2": {"usd": 2}, "tiny": {"usd": 3}}
    }
    places = ["/srv/x", "~/x", "~alice/x", "$HOME/x", "${DATA}/x", "../../alice/x", "file:/srv/x"]
    places += ["C:\\Users\\alice", "%USERPROFILE%\\x", "\\\\host\\share", "http://10.0.0.5/v1"]
    places += ["10.0.0.5:8000/v1", "10.0.0.5", "[::1]:8000", "host.internal:8000", "gpu-7:8000"]
    assert without_places(places) == [LEFT_OUT] * len(places)
    plain = ["tiny", "Qwen/Qwen2.5-0.5B", "llama3:8b", "gpt-4o:2024-08-06", "data/problems.jsonl"]
    plain += [
        "ft:tiny:2024:12345678",
        "hf://ada/verifier@main",
        "game.py:120",
        "v1.2.3",
        "12:30:45",
    ]
    assert without_places(plain) == plain


# What goes wrong ----------------------------------------------------------------------------------


@pytest.mark.long
def test_a_push_that_was_killed_while_it_uploaded_goes_on_with_what_is_there(hub, run, tmp_path):
    facts = write_run_tables(run, tmp_path / "data", place="ada/play", secrets={})
    large = [f.sha256 for name, f in facts.files.items() if name.endswith(".parquet")]
    [held] = [f.sha256 for name, f in facts.files.items() if name.startswith("examples")]
    fault = Fault("PUT", held, 0, after=1000, hold=True)
    hub.faults.append(fault)
    command = [NIP, "push", run.name, "--to", "ada/play", "--what", "dataset"]
    command += ["--run-store", str(run.store.local_path(run.root).parent)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    while not fault.seen.is_set() or len(hub.uploads) < len(large) - 1:
        assert process.poll() is None, process.communicate()
        threading.Event().wait(0.02)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    fault.release.set()
    assert commits(hub, "ada/play", "dataset") == [] and held not in hub.uploads
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    [commit] = commits(hub, "ada/play", "dataset")
    assert sorted(hub.uploads) == sorted(large)  # each once
    assert done.stdout.endswith(f"hf://datasets/ada/play@{commit}\n") and TOKEN not in done.stderr


@pytest.fixture
def made(run, tmp_path):
    """A directory to publish, with its facts."""
    chosen = choose_model(run, None, None)
    facts = write_adapter(chosen, tmp_path / "made", place="ada/verifier")
    return tmp_path / "made", facts


def publish_made(made, waited=None):
    waits = [] if waited is None else waited
    hub = connect(sleep=waits.append)
    return push_directory(hub, Reference.parse("ada/verifier"), *made, "a test", public=False)


def test_a_connection_that_breaks_during_an_upload_is_made_again(hub, made):
    hub.faults.append(Fault("PUT", "/large/", 0, after=1000))
    assert publish_made(made).reference.revision == commits(hub)[0]


@pytest.mark.parametrize("status", [0, 500])
def test_a_commit_whose_answer_is_lost_is_looked_up_and_not_made_again(hub, made, status):
    hub.faults.append(Fault("POST", "/commit/main", status, done_first=status == 0))
    waited: list[float] = []
    done = publish_made(made, waited)
    assert done.is_new and commits(hub) == [done.reference.revision] and len(waited) == 1


def test_somebody_who_wrote_meanwhile_is_not_overwritten(hub, made):
    publish_made(made)
    fault = Fault("POST", "/commit/main", 0, hold=True)
    hub.faults.append(fault)
    directory, facts = made
    (directory / "README.md").write_text("---\nlibrary_name: peft\n---\nchanged\n")
    raised: list[BaseException] = []

    def again() -> None:
        try:
            publish_made((directory, facts))
        except SettingsError as error:
            raised.append(error)

    thread = threading.Thread(target=again)
    thread.start()
    assert fault.seen.wait(60)
    hub.add(hub.repository("ada/verifier"), "another's", {"nip.json": None, "x.bin": b"x"})
    fault.release.set()
    thread.join(60)
    assert "has something else" in str(raised[0])


def test_a_push_removes_what_an_earlier_one_brought_says_so_and_leaves_what_people_added(
    hub, tmp_path
):
    said: list[str] = []

    def publish_small(name, files):
        facts = seal_small(tmp_path / name, files)
        reference = Reference.parse("ada/small")
        push_directory(
            connect(), reference, tmp_path / name, facts, "x", public=False, say=said.append
        )
        return hub.repository("ada/small").commits

    names = ("config", "tokenizer", "tokenizer_config", "training", "vocab")
    files = {f"{name}.json": b"{}" for name in names}
    publish_small("all", files)
    mine = {"LICENSE": b"MIT", "notes.md": b"mine", "images/plot.png": b"x"}
    hub.add(hub.repository("ada/small"), "mine", mine)
    assert len(publish_small("all", files)) == 3  # the first, the push and mine
    said.clear()
    [*_, (_, _, tree)] = publish_small("fewer", {"config.json": b"{}"})
    assert tree.keys() == {".gitattributes", "nip.json", "config.json", *mine}
    gone = "tokenizer.json, tokenizer_config.json, training.json, …"
    assert said == [f"removes what only an earlier push had (4): {gone}"]


def test_the_hub_is_asked_again_when_it_says(hub, made):
    hub.faults.append(Fault("GET", "whoami", 429, headers={"Retry-After": "7"}))
    hub.faults.append(Fault("POST", "/repos/create", 503))
    waited: list[float] = []
    assert connect(sleep=waited.append).user(Reference("ada/verifier")) == "ada" and waited == [7.0]
    publish_made(made, waited)
    assert waited == [7.0, 1.0]


def test_a_hub_that_stays_away_is_said_in_a_line(hub, made, monkeypatch):
    hub.faults.append(Fault("GET", "/api/models", 503, times=100))
    with pytest.raises(ServerError, match=r"status 503.*run again later"):
        publish_made(made)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(
        ServerError, match=r"can't be reached|connection to http://127.0.0.1:9 broke"
    ):
        publish_made(made)


@pytest.mark.parametrize(
    ("token", "to", "said"),
    [
        (
            None,
            "ada/verifier",
            "there is no token for the Hub; set HF_TOKEN, or run `hf auth login`",
        ),
        ("hf_wrong", "ada/verifier", "the Hub refuses the token"),
        (READ_ONLY, "ada/verifier", "the token of ada may only read; take a token with the right"),
        (ELSEWHERE, "ada/verifier", "may not make a repository of ada"),
        (TOKEN, "eve/verifier", "ada may not write to eve"),
        (TOKEN, "verifier", "'verifier' is no name of a repository; write it as OWNER/NAME"),
        (TOKEN, "ada/ver ifier", "is no name of a repository"),
        (TOKEN, "ada/ver--ifier", "no '--'"),
        (TOKEN, "ada/verifier@main", "a push makes the revision itself"),
    ],
)
def test_a_push_without_rights_or_name_is_refused_in_a_line(hub, run, monkeypatch, token, to, said):
    monkeypatch.delenv("HF_TOKEN")
    if token is not None:
        monkeypatch.setenv("HF_TOKEN", token)
    assert said in refused(push, run, to)
    assert not hub.repositories and not hub.uploads


def test_a_repository_that_has_something_else_or_is_seen_by_others_is_left_as_it_is(hub, run):
    hub.make("ada/verifier", **{"config.json": b"{}"})
    assert "is there and has something else (config.json)" in refused(push, run)
    hub.make("ada/public", private=False)
    assert "public, and what is pushed would be private" in refused(push, run, "ada/public")
    hub.make("ada/private")
    assert "make it public on its page" in refused(push, run, "ada/private", public=True)
    facts = {"format": 1, "kind": "adapter", "files": {}, "lineage": {"run": "x", "group": "both"}}
    hub.make("ada/other", **{"nip.json": json.dumps(facts).encode()})
    assert "adapter of ('x', 'both')" in refused(push, run, "ada/other")
    assert not any(commits(hub, name) for _, name in hub.repositories)
    push(run, "ada/public", public=True)
    assert commits(hub, "ada/public")


def over_directory(run, store, base):
    """A copy of the run, in whose settings the base model is a directory."""
    shutil.copytree(run.store.local_path(run.root), store / "quickstart")
    record = store / "quickstart" / "run.json"
    document = json.loads(record.read_text())
    for agent in document["parameters"]["agents"].values():
        agent["model_name"] = str(base)
    del document["sha256"]
    record.write_text(json.dumps(document))
    return RunStore(open_store(store), "quickstart")


@pytest.mark.parametrize("weights", [None, b"cut off"])
def test_a_base_model_that_can_not_be_read_is_said_in_a_line(hub, run, tmp_path, weights):
    base = tmp_path / "base"
    if weights is not None:
        shutil.copytree(BUNDLED["tiny"], base)
        (base / "model.safetensors").write_bytes(weights)
    copied = over_directory(run, tmp_path / "runs", base)
    said = refused(push, copied, base_model="ada/tiny")
    assert f"{base}: the probe can't be computed" in said and "`nip export --to peft`" in said
    assert not hub.repositories


def test_a_run_without_a_trained_model_or_with_a_nameless_base_is_refused(hub, run, tmp_path):
    assert "base models, so there is no trained model" in refused(push, run, iteration=0)
    assert "no such model group; it has both" in refused(push, run, group="judge")
    assert "has finished 1 iterations" in refused(push, run, iteration=2)
    assert "use adapter or dataset" in refused(push, run, kind="model")
    assert "use an identifier" in refused(push, run, license_id="my own")
    assert "others have no such path" in refused(push, run, base_model=str(tmp_path))
    copied = over_directory(run, tmp_path / "runs", BUNDLED["tiny"])
    assert "say with --base-model OWNER/NAME where others find it" in refused(push, copied)
    push(copied, base_model="ada/tiny")
    config = json.loads(hub.content("ada/verifier", "adapter_config.json"))
    assert config["base_model_name_or_path"] == "ada/tiny"
    assert (
        ModelCard(hub.content("ada/verifier", "README.md").decode()).data.base_model == "ada/tiny"
    )
    assert str(BUNDLED["tiny"]) not in hub.content("ada/verifier", "nip.json").decode()
    [weights] = (tmp_path / "runs").rglob("adapter_model.safetensors")
    weights.write_bytes(weights.read_bytes()[:-1] + b"\0")
    with pytest.raises(CorruptionError, match=r"adapter_model\.safetensors: damaged"):
        push(copied, base_model="ada/tiny")
    shutil.rmtree(tmp_path / "runs" / "quickstart" / "lm_server")
    assert "does not have the weights of model ft:" in refused(push, copied, base_model="ada/tiny")


async def test_what_the_deterministic_engine_trained_has_no_weights_to_publish(hub, tmp_path):
    await train_here(write_config(tmp_path, rl=FEW, text_rl={"test_scheme": "none"}))
    small = RunStore(open_store(tmp_path / "runs"), "small")
    assert "choose one with --group" in refused(push, small)
    assert "the deterministic engine made it" in refused(push, small, group="verifier")
    push(small, "ada/small", kind="dataset", group="verifier")
    names = {
        name.partition("/")[0] for name in hub.repository("ada/small", "dataset").commits[-1][2]
    }
    assert "examples-verifier" in names and "examples-prover" not in names


def test_a_pull_of_what_is_not_there_or_was_changed_is_refused(hub, run, tmp_path, monkeypatch):
    target = tmp_path / "pulled"
    assert "no such repository" in refused(pull, "ada/nothing", target)
    push(run)
    assert "no such revision" in refused(pull, f"ada/verifier@{'0' * 40}", target)
    assert "use adapter or dataset" in refused(pull, "ada/verifier", target, "model")
    hub.make("ada/pickled", **{"pytorch_model.bin": b"\x80"})
    assert "no file of those that are taken" in refused(pull, "ada/pickled", target)
    with monkeypatch.context() as without:
        without.delenv("HF_TOKEN")
        assert "private, and there is no token" in refused(pull, "ada/verifier", target)
    hub.add(hub.repository("ada/verifier"), "forged", {"README.md": b"better\n"})
    with pytest.raises(CorruptionError, match=r"README.md has SHA-256 .* was changed"):
        pull("ada/verifier", target)
    assert not target.exists()


def test_a_pull_takes_no_pickle_and_no_program_that_lies_in_the_cache_already(hub, tmp_path):
    files = {"adapter_config.json": b"{}", "pytorch_model.bin": b"\x80", "run_me.py": b"print(1)"}
    hub.make("ada/other", **files)
    snapshot_download("ada/other", endpoint=hub.url, token=TOKEN, cache_dir=tmp_path / "hf" / "hub")
    pull("ada/other", tmp_path / "other")
    assert [path.name for path in (tmp_path / "other").iterdir()] == ["adapter_config.json"]
    # Of a repository of nip's, a file that it does not name is not taken either.
    sealed = tmp_path / "sealed"
    seal_small(sealed, {"adapter_config.json": b"{}"})
    hub.make("ada/sealed", **{path.name: path.read_bytes() for path in sealed.iterdir()})
    hub.add(hub.repository("ada/sealed"), "mine", {"notes.md": b"mine"})
    pull("ada/sealed", tmp_path / "mine")
    assert {path.name for path in (tmp_path / "mine").iterdir()} == {
        *("nip.json", "adapter_config.json"),
    }
    # Nor can `nip.json` name a program.
    seal_small(tmp_path / "evil", {"run_me.py": b"print(1)"})
    evil = {path.name: path.read_bytes() for path in (tmp_path / "evil").iterdir()}
    hub.make("ada/evil", **evil)
    said = refused(pull, "ada/evil", tmp_path / "evil-pulled")
    assert "nip.json is not what nip writes" in said and "run_me.py" in said


STRANGE = {
    *(".vscode/tasks.json", ".mcp.json", "CLAUDE.md", "AGENTS.md", ".claude/settings.json"),
    *("a/.hidden/README.md", "base/.mcp.json", "package.json", "-rf.json", "~/config.json"),
    *("sub/adapter_model.safetensors", "x\x1b[2J.json", "base/deeper/config.json", "run_me.py"),
}
DATA = {"README.md", "data/train-00000-of-00001.parquet", "b.parquet"}


def test_a_pull_takes_what_an_adapter_has_and_names_the_rest(hub, tmp_path, capsys):
    adapter = {"adapter_config.json", "adapter_model.safetensors", "README.md", "LICENSE"}
    adapter |= {"base/config.json", "base/model-00001-of-00002.safetensors", "tokenizer.json"}
    hub.make("ada/other", **dict.fromkeys([*adapter, *STRANGE, "x.parquet"], b"{}"))
    pull("ada/other", tmp_path / "other")
    assert set(list_files(tmp_path / "other")) == adapter
    said = capsys.readouterr().out
    assert f"left out, as it is no part of an adapter: {len(STRANGE) + 1} (" in said
    assert ".claude/settings.json" in said and "\x1b" not in said
    commands.pull("ada/other", tmp_path / "again", "adapter", True)
    assert set(json.loads(capsys.readouterr().out)["left_out"]) == {*STRANGE, "x.parquet"}


def test_a_pull_takes_what_a_dataset_has_and_names_the_rest(hub, tmp_path, capsys):
    hidden = {".hidden/a.parquet", "a/.b/c.parquet", "x\x1b.parquet", "x\u202e.parquet"}
    names = [*DATA, *STRANGE, *hidden]
    hub.make("ada/other", kind="dataset", **dict.fromkeys(names, b"{}"))
    pull("ada/other", tmp_path / "other", "dataset")
    assert set(list_files(tmp_path / "other")) == DATA
    assert f"no part of a dataset: {len(STRANGE) + len(hidden)} (" in capsys.readouterr().out


def test_nip_json_can_name_nothing_that_is_not_taken(hub, tmp_path):
    for name in sorted(STRANGE):
        seal_small(tmp_path / "evil", {name: b"{}"})
        evil = {n: p.read_bytes() for n, p in list_files(tmp_path / "evil").items()}
        hub.make("ada/evil", **evil)
        assert "is not what nip writes" in refused(pull, "ada/evil", tmp_path / "pulled")
        shutil.rmtree(tmp_path / "evil")
    assert not (tmp_path / "pulled").exists()


def test_a_pull_from_the_cache_needs_no_network(hub, tmp_path, monkeypatch, capsys):
    made = hub.make("ada/other", **{"adapter_config.json": b"{}", "CLAUDE.md": b"Do."})
    commit = made.commits[-1][0]
    pull("ada/other", tmp_path / "first")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    capsys.readouterr()
    pull(f"ada/other@{commit}", tmp_path / "second")
    assert set(list_files(tmp_path / "second")) == {"adapter_config.json"}
    assert "left out" not in capsys.readouterr().out  # nobody could be asked what there is


def test_what_strangers_wrote_reaches_the_terminal_without_its_control_codes(
    hub, tmp_path, capsys, monkeypatch
):
    evil = "\x1b]0;mine\x07\x9b2J\x7f\u202e"

    def said_by(*arguments) -> str:
        monkeypatch.setattr(sys, "argv", ["nip", "pull", "ada/evil", *map(str, arguments)])
        cli._ended_with()
        shown = "".join(capsys.readouterr())
        assert shown.replace("\n", "").isprintable(), repr(shown)
        return shown

    def offer(**more):
        document = json.loads((sealed / "nip.json").read_text()) | more
        hub.make("ada/evil", **{"config.json": b"{}", "nip.json": json.dumps(document).encode()})

    sealed = tmp_path / "sealed"
    seal_small(sealed, {"config.json": b"{}"}, run=f"r{evil}")
    offer()
    assert r"of run r\u001b]0;mine\u0007\u009b2J\u007f\u202e" in said_by(tmp_path / "a")
    assert json.loads(said_by(tmp_path / "a", "--json"))["lineage"]["run"] == f"r{evil}"
    for forged in (
        {"format": evil},
        {"kind": evil},
        {"files": {"config.json": {"sha256": evil, "bytes": 2}}},
        {"files": {f"{evil}.json": {"sha256": "0", "bytes": 2}}},
    ):
        offer(**forged)
        assert said_by(tmp_path / "b").startswith("nip: hf://ada/evil@")


# Data ---------------------------------------------------------------------------------------------


def test_every_table_of_a_pushed_dataset_is_read_by_its_name(hub, run, tmp_path, capsys):
    push(run, "ada/play", kind="dataset")
    [commit] = commits(hub, "ada/play", "dataset")
    assert f"hf://datasets/ada/play@{commit}\n" in capsys.readouterr().out
    push(run, "ada/play", kind="dataset")
    assert commits(hub, "ada/play", "dataset") == [commit]
    pull("ada/play", tmp_path / "data", "dataset")
    head = yaml.safe_load((tmp_path / "data" / "README.md").read_text().split("---\n")[1])
    assert [c["config_name"] for c in head["configs"]] == [
        *("episodes", "generations", "examples-both"),
    ]
    for name in ("episodes", "generations"):
        loaded = datasets.load_dataset(
            str(tmp_path / "data"), name, cache_dir=str(tmp_path / "cache")
        )
        for split, iteration in (("train", 0), ("test", 1)):
            expected = read_rollouts(run.store, run.rollouts(iteration, split))
            table = getattr(expected, name)
            assert loaded[split]["key"] == table["key"].to_pylist()
    examples = datasets.load_dataset(
        str(tmp_path / "data"), "examples-both", cache_dir=str(tmp_path / "cache")
    )
    assert examples["train"].num_rows == run.read_json(run.job(0, "both"))["examples"]
    assert not list((tmp_path / "data").rglob("timings*"))


def with_thoughts(run, store, thought):
    """A copy of the run, with other training examples, which have thoughts."""
    shutil.copytree(run.store.local_path(run.root), store / "quickstart")
    copied = RunStore(open_store(store), "quickstart")
    directory = copied.dataset(0, "both")
    shutil.rmtree(copied.store.local_path(directory))
    examples = [
        replace(example, reasoning=(None, None, None, thought))
        for example in made_examples("supervised", 3)
    ]
    file = store / FILES["supervised"]
    write_examples(file, "supervised", examples, has_reasoning=True)
    extra = {"digest": "of these", "examples": 3, "episodes": 3, "method": "supervised"}
    manifest.commit(copied.store, directory, {file.name: file}, extra=extra)
    return copied


def test_training_examples_that_have_thoughts_are_published_with_them(hub, run, tmp_path):
    push(with_thoughts(run, tmp_path / "runs", "Hm."), "ada/thoughts", kind="dataset")
    pull("ada/thoughts", tmp_path / "data", "dataset")
    examples = datasets.load_dataset(
        str(tmp_path / "data"), "examples-both", cache_dir=str(tmp_path / "cache")
    )
    assert {thoughts[-1] for thoughts in examples["train"]["reasoning"]} == {"Hm."}
    assert "| reasoning | list" in (tmp_path / "data" / "README.md").read_text()


def test_an_error_in_an_episode_is_published_without_the_address_that_it_quotes(run):
    table = read_rollouts(run.store, run.rollouts(0, "train")).episodes
    errors = [None] * (table.num_rows - 1) + ["http://10.0.0.1:8000/v1: refused"]
    place = table.schema.get_field_index("error")
    table = table.set_column(place, table.schema.field(place), pa.array(errors, pa.string()))
    part = _Part("episodes", "train", 0, "x", parquet_bytes(table), table.schema, "x")
    content, rows = _remove_places(part, {})
    read = parquet_table(content, table.schema, "x")
    assert rows == table.num_rows and read["error"].to_pylist()[-1] == "… refused"
    with pytest.raises(SettingsError, match="column question, has a key in it"):
        _remove_places(part, {table["question"][0].as_py()[:12]: "a key"})


# The plain adapter --------------------------------------------------------------------------------


def test_a_plain_adapter_is_written_once_and_never_over_something_else(run, tmp_path, capsys):
    store = str(run.store.local_path(run.root).parent)
    export_command.export(run.name, tmp_path / "plain", form="peft", run_store=store)
    written = capsys.readouterr().out.splitlines()
    assert str(tmp_path / "plain" / "adapter_model.safetensors") in written
    assert not (tmp_path / "plain" / "probe.json").exists()
    export_command.export(run.name, tmp_path / "plain", form="peft", run_store=store)
    (tmp_path / "plain" / "README.md").write_text("mine")
    options = {"form": "peft", "run_store": store}
    assert "other files" in refused(export_command.export, run.name, tmp_path / "plain", **options)
    assert (tmp_path / "plain" / "README.md").read_text() == "mine"
    assert not [path for path in tmp_path.iterdir() if path.suffix == ".part"]
    both = {**options, "split": ["test"]}
    assert "one --iteration" in refused(export_command.export, run.name, tmp_path / "x", **both)
