"""prefect.yaml and the configurations: Prefect ignores unknown keys silently, so they are checked here."""

import importlib
from pathlib import Path

import jsonschema
import pytest
import yaml
from prefect import Flow
from prefect.cli.deploy._models import PrefectYamlModel
from prefect.client.schemas.schedules import CronSchedule
from prefect.utilities.callables import parameter_schema

from nip_core.costs.estimate import Estimate, estimate_run
from nip_core.game.render import Game
from nip_core.parameters import load_parameters
from nip_core.protocols import make_protocol
from nip_core.records.rewinds import STAGES
from nip_core.scenarios import find_scenario
from nip_core.session.problems_of_run import load_all_problems
from nip_prefect.flows.evaluate import evaluate
from nip_prefect.flows.train import continue_run, train
from nip_up.up import POOLS

ROOT = Path(__file__).parents[2]
PREFECT = yaml.safe_load((ROOT / "prefect.yaml").read_text())
CONFIGS = sorted((ROOT / "deployments" / "configs").glob("*.yaml"))
BUNDLED_DATA = [
    c
    for c in CONFIGS
    if yaml.safe_load(c.read_text())["dataset"] in find_scenario("code_validation").bundled
]

DEPLOYMENT_KEYS = {
    "name",
    "description",
    "tags",
    "entrypoint",
    "parameters",
    "schedules",
    "enforce_parameter_schema",
    "concurrency_limit",
    "work_pool",
}
SCHEDULE_KEYS = {"cron", "timezone", "slug", "active"}


# Prefect's own models of the file, strict: they ignore what they don't know.
TOP_KEYS = {"name", "prefect-version", "pull", "definitions", "deployments"}
POOL_KEYS = {"name", "work_queue_name", "job_variables"}
LIMIT_KEYS = {"limit", "collision_strategy", "grace_period_seconds"}


def flow_of(deployment):
    module, _, name = deployment["entrypoint"].rpartition(".")
    return getattr(importlib.import_module(module), name)


def test_the_file_is_what_prefect_reads():
    PrefectYamlModel.model_validate(PREFECT)
    assert set(PREFECT) == TOP_KEYS


@pytest.mark.parametrize("deployment", PREFECT["deployments"], ids=lambda d: d["name"])
def test_a_deployment_says_nothing_that_prefect_would_ignore(deployment):
    assert set(deployment) <= DEPLOYMENT_KEYS
    assert set(deployment["work_pool"]) <= POOL_KEYS
    assert deployment["work_pool"]["name"] in POOLS
    assert set(deployment.get("concurrency_limit", ())) <= LIMIT_KEYS
    for schedule in deployment.get("schedules", ()):
        assert set(schedule) <= SCHEDULE_KEYS
        CronSchedule(cron=schedule["cron"], timezone=schedule["timezone"])
    flow = flow_of(deployment)
    assert isinstance(flow, Flow)
    given, schema = deployment["parameters"], parameter_schema(flow).model_dump()
    assert set(given) <= set(schema["properties"])
    assert deployment["enforce_parameter_schema"]
    jsonschema.validate(given, schema | {"required": [], "additionalProperties": False})
    if "config" in given:
        load_parameters(given["config"], given["overrides"])


@pytest.mark.parametrize("deployment", PREFECT["deployments"], ids=lambda d: d["name"])
def test_the_form_of_a_deployment_explains_each_of_its_fields(deployment):
    for name, field in parameter_schema(flow_of(deployment)).properties.items():
        assert len(field.get("description", "")) > 10, name


def test_stages_in_the_form_are_those_that_there_are():
    for flow in (train, continue_run):
        assert tuple(parameter_schema(flow).properties["rerun_from_stage"]["enum"]) == STAGES


def test_the_configuration_is_a_choice_in_the_form_and_a_file_has_a_field_of_its_own():
    for flow in (train, evaluate):
        fields = parameter_schema(flow).properties
        assert fields["config"]["enum"] == [config.stem for config in CONFIGS]
        assert {"type": "string"} in fields["config_file"]["anyOf"]


def test_there_is_one_for_each_purpose():
    by_name = {d["name"]: d for d in PREFECT["deployments"]}
    assert by_name["quickstart"]["entrypoint"] == "nip_prefect.flows.train.train"
    assert by_name["gpu"]["work_pool"]["name"] == "nip-gpu"
    scheduled = {name for name, d in by_name.items() if d.get("schedules")}
    assert scheduled == {
        *("nightly-training", "weekly-training", "nightly-evaluation", "reconcile"),
    }
    # On a schedule, a run that is finished is given more to do.
    trained = [by_name[name]["parameters"] for name in ("nightly-training", "weekly-training")]
    assert all(parameters["more_iterations"] for parameters in trained)
    # What finds dead runs must not be off, nor wait behind them for a GPU.
    assert by_name["reconcile"]["schedules"][0]["active"]
    assert by_name["reconcile"]["work_pool"]["name"] == "nip-cpu"


@pytest.mark.parametrize("config", CONFIGS, ids=lambda path: path.stem)
def test_every_configuration_loads_under_its_own_name_and_says_what_it_is(config):
    parameters = load_parameters(config)
    assert parameters.run_name == config.stem
    assert make_protocol(parameters).agent_names
    comment = config.read_text().partition("run_name:")[0]
    assert comment and all(line.startswith("# ") for line in comment.splitlines())


def _estimate(config: Path) -> Estimate:
    parameters = load_parameters(config)
    return estimate_run(Game(parameters), load_all_problems(parameters))


@pytest.mark.parametrize("config", BUNDLED_DATA, ids=lambda path: path.stem)
def test_the_size_of_a_configuration_is_known_without_a_network(config):
    estimate = _estimate(config)
    assert estimate.train_episodes > 0 and estimate.test_episodes > 0
    assert estimate.training_tokens > 0 and estimate.usd == 0  # one's own hardware


def test_the_comments_of_the_configurations_say_what_they_play():
    for name in ("solo-verifier", "solo-labels", "malt-tiny"):
        config = ROOT / "deployments" / "configs" / f"{name}.yaml"
        found, comment = (
            _estimate(config),
            " ".join(config.read_text().split("run_name:")[0].split()),
        )
        comment = comment.replace(" # ", " ")
        for count, what in ((found.train_episodes, "train"), (found.test_episodes, "test"),
                            (found.calls, "calls")):  # fmt: skip
            assert f"{count:,} " in comment, (name, what, count)


def test_every_trainer_has_a_configuration_for_a_laptop():
    laptop = {
        parameters.trainer
        for parameters in map(load_parameters, BUNDLED_DATA)
        if parameters.group_parameters(next(iter(parameters.groups))).model_name == "tiny"
    }
    assert laptop == {"pure_text_ei", "pure_text_malt", "pure_text_grpo"}


def test_the_papers_experiment_is_as_in_the_paper():
    for name in ("ei-paper-openai", "ei-paper-local"):
        paper = load_parameters(ROOT / "deployments" / "configs" / f"{name}.yaml")
        assert (paper.rl.num_iterations, paper.rl.rollouts_per_iteration) == (8, 200)
        assert make_protocol(paper).max_message_rounds == 9
        assert not paper.protocol_common.shared_reward


def test_the_quick_start_is_what_the_readme_promises():
    quick = load_parameters(ROOT / "deployments" / "configs" / "quickstart.yaml")
    assert quick.rl.num_iterations >= 3
    assert quick.protocol_common.shared_reward
    assert quick.dataset_options.max_test_size is None or quick.dataset_options.max_test_size >= 300
    assert quick.test_dataset_split == "test"


def test_the_deterministic_run_plays_1800_calls():
    quick = load_parameters(ROOT / "deployments" / "configs" / "deterministic.yaml")
    tests = (quick.rl.num_iterations + 1) * quick.dataset_options.max_test_size
    episodes = quick.rl.num_iterations * quick.rl.rollouts_per_iteration + tests
    assert episodes * quick.nip_protocol.max_message_rounds == 1800
    assert quick.nip_protocol.min_message_rounds == quick.nip_protocol.max_message_rounds
