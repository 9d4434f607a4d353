"""Update schedules decide in which iterations an agent is trained, and the record says so."""

import pytest
from small_game import train_here, write_config

from nip_core.costs.estimate import estimate_run
from nip_core.game.render import Game
from nip_core.parameters import load_parameters
from nip_core.rollouts.storage.parquet import parquet_table
from nip_core.run_store.manifest import is_committed, read_committed_file, read_manifest
from nip_core.run_store.run import RunStore
from nip_core.run_store.store import open_store
from nip_core.session.problems_of_run import load_all_problems
from nip_core.trainers.dataset import EXAMPLES

ALTERNATING = {
    "_type": "AlternatingPeriodicUpdateSchedule",
    "period": 2,
    "first_agent_num_iterations": 1,
}


def alternating(**default):
    return {
        "_default": {
            "model_provider": "SelfHosted",
            "model_name": "deterministic",
            "max_tokens_per_message": 32,
            **default,
        },
        "prover": {"update_schedule": {**ALTERNATING, "first_agent": True}},
        "verifier": {"update_schedule": {**ALTERNATING, "first_agent": False}},
    }


def run_in(folder):
    return RunStore(open_store(folder / "runs"), "small")


@pytest.fixture(scope="module")
async def alternated(tmp_path_factory):
    folder = tmp_path_factory.mktemp("alternated")
    result = await train_here(write_config(folder, agents=alternating()))
    return result, run_in(folder)


@pytest.mark.parametrize(
    ("iteration", "due", "not_due"), [(0, "prover", "verifier"), (1, "verifier", "prover")]
)
async def test_only_the_group_whose_turn_it_is_is_trained(alternated, iteration, due, not_due):
    result, run = alternated
    before, after = (result["iterations"][i]["models"] for i in (iteration, iteration + 1))
    assert after[not_due] == before[not_due]
    assert after[due] != before[due] and f"{iteration:04d}-{due}" in after[due]
    assert is_committed(run.store, run.dataset(iteration, due))
    assert not is_committed(run.store, run.dataset(iteration, not_due))
    assert not run.store.exists(run.job(iteration, not_due))


async def test_a_group_that_was_not_due_is_on_record_as_such(alternated):
    result, run = alternated
    jobs = result["iterations"][0]["jobs"]
    assert jobs["prover"]["status"] == "succeeded"
    assert jobs["verifier"]["status"] == "not scheduled"
    assert "update_schedule" in jobs["verifier"]["reason"] and jobs["verifier"]["id"] is None
    assert run.read_json(run.models(0))["not_scheduled"] == ["verifier"]
    assert b"not scheduled" in run.store.get(f"{run.root}/report.html")


@pytest.mark.long
async def test_a_shared_model_learns_from_those_whose_turn_it_is(tmp_path):
    config = write_config(
        tmp_path,
        agents=alternating(shared_model_group="both"),
        text_rl={"test_scheme": "none"},
    )
    await train_here(config)
    run = run_in(tmp_path)
    for iteration, agent in enumerate(("prover", "verifier")):
        manifest = read_manifest(run.store, run.dataset(iteration, "both"))
        file = read_committed_file(run.store, manifest, "examples.parquet")
        table = parquet_table(file, EXAMPLES, "examples.parquet")
        assert set(table["agent"].to_pylist()) == {agent} == set(manifest.extra["agents"])


def test_the_estimate_counts_only_iterations_in_which_an_agent_is_trained(tmp_path):
    def tokens(agents):
        parameters = load_parameters(write_config(tmp_path, agents=agents))
        return estimate_run(Game(parameters), load_all_problems(parameters)).training_tokens

    always = alternating()
    for name in ("prover", "verifier"):
        always[name] = {}
    assert tokens(alternating()) * 2 == tokens(always) > 0
