"""`model_name` may be the name of a published model wherever it may be a path."""

import json
from dataclasses import replace

import pytest
import typer
from small_game import write_config

from nip_base.published.added_models import AddedModel, ModelSource, describe_files, digest_model
from nip_cli import cli
from nip_cli.printing.plans_and_runs import show_plan
from nip_core.errors import ServerError, SettingsError
from nip_core.models import BUNDLED, KNOWN
from nip_core.parameters import load_parameters
from nip_core.servers.own_server import make_server_spec
from nip_core.session.prepare import plan_run, prepare
from nip_up import doctor_checks as doctor

KNOWN_HERE = replace(KNOWN["smollm2"], name="tiny-published")


@pytest.fixture
def named(tmp_path, monkeypatch):
    """A model that nip knows and that is not on this machine, and a configuration with its name."""
    monkeypatch.setitem(KNOWN, KNOWN_HERE.name, KNOWN_HERE)
    monkeypatch.setenv("NIP_MODELS_DIR", str(tmp_path / "models"))
    monkeypatch.chdir(tmp_path)
    agents = {"_default": {"model_provider": "SelfHosted", "model_name": KNOWN_HERE.name}}
    return write_config(tmp_path, agents=agents, lm_server={"engine": "embedded"})


def put_there(root):
    """The weights of the bundled tiny model, with what `nip models add` would write of them."""
    path = root / "models" / KNOWN_HERE.name
    path.mkdir(parents=True)
    for file in BUNDLED["tiny"].iterdir():
        if file.is_file():
            (path / file.name).write_bytes(file.read_bytes())
    files = describe_files(path)
    document = AddedModel(
        name=KNOWN_HERE.name,
        title="nobody/tiny",
        source=ModelSource(
            distribution="tiny",
            version="1",
            wheel_sha256="0",
            file="tiny.gguf",
            sha256=KNOWN_HERE.file_sha256,
        ),
        license="MIT",
        parameters=1,
        context=1024,
        blocks={},
        weights="bfloat16",
        made_by={},
        content_digest=digest_model(files),
        files=files,
    )
    (path / "nip_model.json").write_text(document.model_dump_json())
    return path


ABSENT = r"tiny-published .* is not on this machine yet; `nip models add tiny-published` adds it"


@pytest.mark.parametrize("check", [prepare, plan_run])
def test_a_model_that_was_not_added_is_named_with_its_command_before_anything_starts(
    named, tmp_path, check
):
    with pytest.raises(SettingsError, match=rf"^agents\.prover\.model_name: {ABSENT}"):
        check(load_parameters(named))
    assert not (tmp_path / "runs" / "small").exists()


def test_a_name_that_means_no_model_ends_a_run_before_it_is_one_and_a_plan_says_so(
    named, tmp_path, capsys
):
    """Offline, as tests are, only the Hub could explain it: a plan may be another machine's."""
    wrong = load_parameters(named, ["agents._default.model_name=tiny-publisched"])
    words = r"^agents\.prover\.model_name: there is no model 'tiny-publisched' .*'tiny-published'"
    with pytest.raises(ServerError, match=words):
        prepare(wrong)
    assert not (tmp_path / "runs" / "small").exists()
    show_plan(wrong, as_json=False)
    assert (
        "nip: warning: agents.prover.model_name: there is no model 'tiny-pub"
        in capsys.readouterr().err
    )
    never = load_parameters(named, ["agents._default.model_name=tiny published"])
    for check in (prepare, lambda settings: show_plan(settings, as_json=True)):
        with pytest.raises(SettingsError, match=r"^agents\.prover\.model_name: .* is no name of a"):
            check(never)


def nip(*arguments):
    typer.main.get_command(cli.app).main([*arguments], standalone_mode=False)


def test_a_server_is_started_with_a_name_that_means_a_model_or_not_at_all(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    typed = ["--state", "state", "--model", "./absent", "--engine", "embedded"]
    with pytest.raises(SettingsError, match=r"^--model: there is no directory \./absent"):
        nip("serve", *typed)
    assert not (tmp_path / "state").exists()


def test_the_runs_server_serves_it_by_its_name_and_the_run_has_its_digest_on_record(
    named, tmp_path
):
    path = put_there(tmp_path)
    parameters = load_parameters(named)
    spec = make_server_spec(parameters)
    assert (spec.model, spec.served_model_name) == (str(path), "tiny-published")
    document = json.loads((path / "nip_model.json").read_text())
    contents = prepare(parameters).identity.contents
    assert contents["models"] == {"tiny-published": document["content_digest"]}


def test_an_engine_without_weights_needs_none(named, tmp_path):
    settings = load_parameters(named, ["lm_server.engine=deterministic"])
    assert prepare(settings).identity.contents["models"] == {}


def test_a_name_that_is_a_directory_as_well_is_refused_with_both_ways_to_write_it(named, tmp_path):
    path = put_there(tmp_path)
    (tmp_path / "tiny-published").mkdir()
    words = (
        r"agents\._default\.model_name: tiny-published: a directory \(.*\) and a model of "
        r"`nip models`; write \./tiny-published for the directory, or the path that `nip models "
        "path tiny-published` prints for the model"
    )
    with pytest.raises(SettingsError, match=words):
        load_parameters(named)
    default = "agents._default.model_name"
    for written in ("./tiny-published", str(path)):
        chosen = load_parameters(named, [f"{default}={written}"])
        assert chosen.model_agents["prover"].model_name == written


def test_a_directory_beside_the_configuration_counts_as_one(named, tmp_path):
    (tmp_path / "exp").mkdir()
    (tmp_path / "exp" / "tiny-published").mkdir()
    moved = named.rename(tmp_path / "exp" / "config.yaml")
    with pytest.raises(SettingsError, match=r"write exp/tiny-published for the directory"):
        load_parameters("exp/config.yaml")
    assert moved.exists()


def test_nip_serve_takes_the_name_and_says_what_brings_it(named, tmp_path):
    with pytest.raises(SettingsError, match=ABSENT):
        nip("serve", "--engine", "embedded", "--model", "tiny-published", "--state", "state")
    assert not (tmp_path / "state").exists()


def test_the_doctor_says_what_is_here_and_what_brings_it(named, tmp_path):
    assert "nip models add tiny-published (93 MB)" in doctor._published("tiny-published").detail
    path = put_there(tmp_path)
    assert doctor._published("tiny-published").detail == str(path)
    (path / "config.json").write_text("{}")
    finding = doctor._published("tiny-published")
    assert (finding.ok, finding.remedy) == (False, "nip models add tiny-published")
    assert "config.json has 2 bytes" in finding.detail
