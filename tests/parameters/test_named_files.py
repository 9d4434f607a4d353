"""Files that a configuration names are found beside it, from wherever nip is started."""

import shutil
from pathlib import Path

import pytest
import yaml

from nip_core.errors import DatasetError, RunConflictError, SettingsError
from nip_core.parameters import load_parameters
from nip_core.parameters.stored import read_settings
from nip_core.run_store.local_store import LocalStore
from nip_core.run_store.run import RunStore
from nip_core.session.prepare import Prepared, prepare
from nip_study.plan.swept_runs import read_sweep

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
SCENARIO = '''
from nip_core.scenarios import Scenario, Words


class Sums(Scenario):
    """Sums that are right or wrong."""

    name = "sums"
    words = Words("an accountant", "sum", "a sum is right", "It may be wrong.", "it is right", "it")
'''


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A project whose folder `exp` has a configuration with all that it names beside it."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "exp"
    shutil.copytree(EXAMPLES / "two_questions", folder)
    (folder / "sums.py").write_text(SCENARIO)
    (folder / "sums.jsonl").write_text(
        "".join(
            f'{{"question": "{n} + {n}", "solution": "{2 * n + 1 - y}", "y": {y}}}\n'
            for n in range(40)
            for y in (0, 1)
        )
    )
    settings = yaml.safe_load((folder / "config.yaml").read_text())
    settings |= {"run_name": "sums", "scenario": "sums.py:Sums", "dataset": "sums.jsonl"}
    settings["agents"]["verifier"] = {"system_prompt_template_path": "verifier.txt"}
    (folder / "config.yaml").write_text(yaml.safe_dump(settings))
    return folder


def prepared(config: str, *overrides: str) -> Prepared:
    return prepare(load_parameters(config, overrides), {})


def created(config: str, *overrides: str) -> RunStore:
    made = prepared(config, *overrides)
    made.run.create_or_open(made.identity)
    return made.run


def test_scenario_protocol_data_replies_and_templates_beside_the_yaml_work_from_elsewhere(folder):
    parameters = prepared("exp/config.yaml").parameters
    assert parameters.scenario == "exp/sums.py:Sums"
    assert parameters.interaction_protocol == "exp/protocol.py:TwoQuestions"
    assert parameters.dataset == "exp/sums.jsonl"
    assert parameters.lm_server.replies == "exp/replies.yaml"
    assert parameters.model_agents["verifier"].system_prompt_template_path == "exp/verifier.txt"


def test_beside_the_yaml_they_stay_as_they_are_written(folder, monkeypatch):
    monkeypatch.chdir(folder)
    assert load_parameters("config.yaml").dataset == "sums.jsonl"
    assert load_parameters(str(folder / "config.yaml")).dataset == "sums.jsonl"


def test_a_file_names_what_lies_beside_it_and_what_is_typed_lies_here(folder):
    shutil.copy(folder / "sums.jsonl", "sums.jsonl")
    shutil.copy(folder / "sums.jsonl", "here.jsonl")
    assert load_parameters("exp/config.yaml").dataset == "exp/sums.jsonl"
    assert load_parameters("exp/config.yaml", ["dataset=sums.jsonl"]).dataset == "sums.jsonl"
    (folder / "config.yaml").write_text(
        (folder / "config.yaml").read_text().replace("sums.jsonl", "here.jsonl")
    )
    assert load_parameters("exp/config.yaml").dataset == "here.jsonl"
    assert load_parameters("exp/config.yaml", ["dataset=sums.jsonl"]).dataset == "sums.jsonl"
    Path("sums.jsonl").unlink()
    assert load_parameters("exp/config.yaml", ["dataset=sums.jsonl"]).dataset == "exp/sums.jsonl"


def test_data_of_the_scenario_are_not_taken_for_a_directory_of_that_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "exp" / "families").mkdir(parents=True)
    (tmp_path / "exp" / "mine").mkdir()
    config = tmp_path / "exp" / "config.yaml"
    agents = {"_default": {"model_provider": "SelfHosted", "model_name": "tiny"}}
    config.write_text(yaml.safe_dump({"run_name": "a", "dataset": "families", "agents": agents}))
    assert load_parameters("exp/config.yaml").dataset == "families"
    assert load_parameters("exp/config.yaml", ["dataset=mine"]).dataset == "exp/mine"


@pytest.mark.parametrize(
    ("setting", "value", "file"),
    [
        ("scenario", "no.py:Sums", "no.py"),
        ("interaction_protocol", "no/no.py:Game", "no/no.py"),
        ("dataset", "no.parquet", "no.parquet"),
        ("lm_server.replies", "no.yaml", "no.yaml"),
        ("agents.prover.system_prompt_template_path", "no.txt", "no.txt"),
        ("agents.prover.model_name", "./no", "no"),
    ],
)
def test_an_error_names_both_places(folder, setting, value, file):
    here, beside = folder.parent / file, folder / file
    with pytest.raises(SettingsError) as typed:
        load_parameters("exp/config.yaml", [f"{setting}={value}"])
    assert str(typed.value).startswith(f"--set: {setting}: there is no ")
    assert f"{str(here)!r} (the working directory), then for {str(beside)!r}" in str(typed.value)
    *groups, name = setting.split(".")
    inner = settings = yaml.safe_load((folder / "config.yaml").read_text())
    for group in groups:
        inner = inner.setdefault(group, {})
    inner[name] = value
    (folder / "config.yaml").write_text(yaml.safe_dump(settings))
    with pytest.raises(SettingsError) as written:
        load_parameters("exp/config.yaml")
    assert str(written.value).startswith(f"exp/config.yaml: {setting}: there is no ")
    assert f"{str(beside)!r} (beside config.yaml), then for {str(here)!r}" in str(written.value)


def test_a_run_goes_on_from_another_directory_and_is_read_from_anywhere(
    folder, tmp_path_factory, monkeypatch
):
    run = created("exp/config.yaml")
    begun = run.open()
    assert begun.parameters["dataset"] == "exp/sums.jsonl"
    # On from the folder of the YAML: the same files, named otherwise.
    monkeypatch.chdir(folder)
    again = prepared("config.yaml", "run_store=../runs")
    opened = again.run.create_or_open(again.identity)
    assert not opened.created and {*opened.changed} == {"run_store"}
    # Read from elsewhere.
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    there = RunStore(LocalStore(folder.parent / "runs", read_only=True), "sums")
    assert read_settings(there.open().parameters).dataset == str(folder / "sums.jsonl")


def test_a_project_that_has_moved_is_read_where_it_lies_now(folder, tmp_path_factory, monkeypatch):
    created("exp/config.yaml")
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    moved = shutil.move(folder.parent, elsewhere / "moved")
    monkeypatch.chdir(elsewhere)
    run = RunStore(LocalStore(Path(moved) / "runs", read_only=True), "sums")
    assert read_settings(run.open().parameters).scenario == f"{moved}/exp/sums.py:Sums"


def test_a_run_of_an_earlier_version_that_recorded_its_paths_goes_on(folder, monkeypatch):
    """It was started here, by a configuration with paths from here."""
    config = (folder / "config.yaml").read_text()
    Path("old.yaml").write_text(
        config.replace("sums.jsonl", "exp/sums.jsonl")
        .replace("sums.py", "exp/sums.py")
        .replace("protocol.py", "exp/protocol.py")
        .replace(" replies.yaml", " exp/replies.yaml")
        .replace(" verifier.txt", " exp/verifier.txt")
    )
    run = created("old.yaml")
    again = prepared("exp/config.yaml")
    assert again.run.check_same(again.identity) == {}
    assert again.identity.parameters == dict(run.open().parameters)


def test_other_content_at_another_path_is_still_another_run(folder):
    created("exp/config.yaml")
    lines = (folder / "sums.jsonl").read_text().splitlines(keepends=True)
    Path("other.jsonl").write_text("".join(lines[:-4]))
    shutil.copy(folder / "sums.py", "other.py")
    with pytest.raises(RunConflictError, match=r"dataset: .*content of problems"):
        prepared("exp/config.yaml", "dataset=other.jsonl")
    copied = prepared("exp/config.yaml", "scenario=other.py:Sums")
    assert copied.run.check_same(copied.identity) == {
        "scenario": ("exp/sums.py:Sums", "other.py:Sums")
    }
    Path("other.py").write_text(SCENARIO.replace("accountant", "auditor"))
    with pytest.raises(RunConflictError, match="scenario: "):
        prepared("exp/config.yaml", "scenario=other.py:Sums")


def test_a_sweep_finds_the_files_beside_it(folder):
    (folder / "sweep.yaml").write_text(
        "name: two\nconfig: config.yaml\naxes:\n  dataset: {sums: {dataset: sums.jsonl}}\n"
        "  seed: [1, 2]\n"
    )
    sweep = read_sweep(Path("exp/sweep.yaml"))
    assert {run.parameters.dataset for run in sweep.runs} == {"exp/sums.jsonl"}
    assert {run.parameters.scenario for run in sweep.runs} == {"exp/sums.py:Sums"}


def test_settings_given_as_a_mapping_are_seen_from_the_working_directory(folder):
    settings = yaml.safe_load((folder / "config.yaml").read_text())
    settings |= {"interaction_protocol": "nip", "scenario": "code_validation"}
    settings |= {"agents": {"_default": settings["agents"]["_default"]}}
    settings["lm_server"] = {"engine": "deterministic"}
    with pytest.raises(DatasetError, match=r"sums\.jsonl"):
        prepare(load_parameters(settings), {})
    assert prepare(load_parameters({**settings, "dataset": "exp/sums.jsonl"}), {}).problems["train"]
