"""prefect.yaml and the configurations: Prefect ignores unknown keys silently, so they are checked here."""

import importlib
from pathlib import Path

import pytest
import yaml
from prefect import Flow
from prefect.utilities.callables import parameter_schema

from nip_core.parameters import load_parameters

ROOT = Path(__file__).parents[2]
PREFECT = yaml.safe_load((ROOT / "prefect.yaml").read_text())
CONFIGS = sorted((ROOT / "deployments" / "configs").glob("*.yaml"))

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


@pytest.mark.parametrize("deployment", PREFECT["deployments"], ids=lambda d: d["name"])
def test_a_deployment_says_nothing_that_prefect_would_ignore(deployment):
    assert set(PREFECT) == {"name", "prefect-version", "pull", "definitions", "deployments"}
    assert set(deployment) <= DEPLOYMENT_KEYS
    for schedule in deployment.get("schedules", ()):
        assert set(schedule) <= SCHEDULE_KEYS
        assert len(schedule["cron"].split()) == 5
    module, _, name = deployment["entrypoint"].rpartition(".")
    flow = getattr(importlib.import_module(module), name)
    assert isinstance(flow, Flow)
    known = parameter_schema(flow).properties
    assert set(deployment["parameters"]) <= set(known)
    load_parameters(
        ROOT / deployment["parameters"]["config"], deployment["parameters"]["overrides"]
    )


def test_there_is_one_for_the_quick_start_and_a_scheduled_one():
    by_name = {d["name"]: d for d in PREFECT["deployments"]}
    assert by_name["quickstart"]["entrypoint"] == "flows.train.train"
    assert any(s["active"] for d in by_name.values() for s in d.get("schedules", ()))


@pytest.mark.parametrize("config", CONFIGS, ids=lambda path: path.stem)
def test_every_configuration_loads_under_its_own_name(config):
    assert load_parameters(config).run_name == config.stem


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
