"""Runs that begin with models of another run, test them again, or load an agent from there."""

import hashlib
import json
import shutil

import pytest
from small_game import FEW, train_here, write_config

from nip_core import loop
from nip_core.errors import CorruptionError, SettingsError
from nip_core.parameters import load_parameters
from nip_core.rollouts.storage.tables import read_rollouts
from nip_core.run_store.run import RunStore
from nip_core.run_store.store import open_store
from nip_core.session.opening import open_session
from nip_core.session.prepare import fork_run, prepare

pytestmark = pytest.mark.usefixtures("server_in_thread")
AGENT = {
    "model_provider": "SelfHosted",
    "model_name": "deterministic",
    "max_tokens_per_message": 32,
}
RL = {**FEW, "num_iterations": 2}
GOES_ON = ["base_run.base_run_type=parameters", "base_run.run_id=small"]
CONTINUING = ["agents._default.fine_tune_from_scratch=false", "rl.lr=0.01"]
RETEST = ["run_name=again", "base_run.base_run_type=rerun_tests", "base_run.run_id=small"]


@pytest.fixture(scope="module")
async def base(tmp_path_factory):
    """A folder with the finished run `small`, and its summary."""
    folder = tmp_path_factory.mktemp("base")
    agents = {"_default": AGENT, "prover": {"temperature": 0.25}}
    return folder, await train_here(write_config(folder, rl=RL, agents=agents))


@pytest.fixture(scope="module")
async def gone_on(base, tmp_path_factory):
    """A folder with that run and `next`, which began with its models; the summary of `next`."""
    folder = copied(base[0], tmp_path_factory.mktemp("gone-on"))
    return folder, await go_on(folder, *GOES_ON, *CONTINUING)


@pytest.fixture
def folder(base, tmp_path):
    """A copy of the folder of the base run."""
    return copied(base[0], tmp_path)


def copied(folder, place):
    shutil.copytree(folder, place / "copy")
    agents = {"_default": AGENT, "prover": {"temperature": 0.25}}
    return write_config(place / "copy", rl=RL, agents=agents).parent


def run_in(folder, name) -> RunStore:
    return RunStore(open_store(folder / "runs"), name)


def tree(folder):
    """Every file of the base run by its content."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in (folder / "runs" / "small").rglob("*")
        if path.is_file()
    }


def served(run, iteration, split="train"):
    rows = read_rollouts(run.store, run.rollouts(iteration, split)).generations.to_pylist()
    return {
        agent: {r["model_served"] for r in rows if r["agent"] == agent}
        for agent in ("prover", "verifier")
    }


async def go_on(folder, *changes):
    return await train_here(
        str(folder / "config.yaml"), ["run_name=next", "rl.num_iterations=1", *changes]
    )


async def test_a_run_goes_on_from_the_final_models_of_another(base, gone_on):
    final, (folder, result) = base[1]["iterations"][-1]["models"], gone_on
    run = run_in(folder, "next")
    assert result["status"] == "finished" and result["iterations"][0]["models"] == final
    assert served(run, 0) == {agent: {model} for agent, model in final.items()}
    for agent, model in final.items():
        assert run.read_json(run.job(0, agent))["parent_model"] == model  # it continues
        [begun] = run.read_json("next/run.json")["contents"]["origin"]
        assert (begun[agent]["from_run"], begun[agent]["trained_in"]) == ("small", 1)
        assert run.read_json(run.models(0))["groups"][agent]["proof"]["matches"]
    assert tree(folder) == tree(base[0])


async def test_a_run_that_began_elsewhere_no_longer_needs_that_run(gone_on, tmp_path):
    folder = copied(gone_on[0], tmp_path)
    shutil.rmtree(folder / "runs" / "small")
    result = await go_on(folder, *GOES_ON, *CONTINUING, "rl.num_iterations=2")
    assert result["status"] == "finished" and len(result["iterations"]) == 3


async def test_a_fork_begins_with_what_its_source_began_with(folder):
    first = await go_on(folder, *GOES_ON, "agents.prover.freeze_agent=true")
    shutil.rmtree(folder / "runs" / "small")
    given = ["agents.prover.freeze_agent=true", *GOES_ON, "rl.num_iterations=2"]
    config = folder / "config.yaml"
    fork_run(
        load_parameters(config, ["run_name=next", *given]),
        load_parameters(config, ["run_name=forked", *given]),
    )
    result = await train_here(config, ["run_name=forked", *given])
    assert result["iterations"][0]["models"] == first["iterations"][0]["models"]
    assert result["iterations"][2]["models"]["prover"] == first["iterations"][0]["models"]["prover"]


async def test_tests_are_played_again_with_the_models_of_every_iteration(base, folder):
    before = tree(folder)
    again = await train_here(str(folder / "config.yaml"), RETEST)
    assert again["status"] == "finished" and len(again["iterations"]) == 3
    for now, then in zip(again["iterations"], base[1]["iterations"], strict=True):
        assert now["models"] == then["models"] and now["jobs"] == {}
        assert now["test"]["accuracy"] == then["test"]["accuracy"]
    run = run_in(folder, "again")
    assert not run.store.list(run.rollouts(0, "train"))
    assert prepare(load_parameters(folder / "config.yaml", RETEST)).estimate.training_tokens == 0
    assert tree(folder) == before


@pytest.mark.kill_matrix
async def test_a_retest_that_was_stopped_goes_on(folder, monkeypatch):
    real = loop.retest

    async def stops(session, iteration, call):
        if iteration == 1:
            raise KeyboardInterrupt
        return await real(session, iteration, call)

    monkeypatch.setattr(loop, "retest", stops)
    with pytest.raises(BaseException):
        await train_here(str(folder / "config.yaml"), RETEST)
    monkeypatch.undo()
    run = run_in(folder, "again")
    assert run.finished_iterations() == 1
    result = await train_here(str(folder / "config.yaml"), [*RETEST, "rl.num_iterations=7"])
    assert result["status"] == "finished" and len(result["iterations"]) == 3


async def test_a_retest_has_its_own_way_of_testing(folder):
    result = await train_here(
        str(folder / "config.yaml"),
        [*RETEST, "rl.num_test_iterations=2", "text_rl.test_scheme=last"],
    )
    assert [e["test"] and e["test"]["episodes"] for e in result["iterations"]] == [None, None, 40]


LOAD = [
    "agents.prover.load_checkpoint_and_parameters=true",
    "agents.prover.checkpoint_run_id=small",
]


@pytest.mark.parametrize(("version", "iteration"), [("latest", 1), ("0", 0)])
async def test_an_agent_begins_with_its_model_and_settings_of_another_run(
    base, folder, version, iteration
):
    changes = [
        *LOAD,
        f"agents.prover.checkpoint_version={version}",
        "agents.prover.temperature=1.5",
        "text_rl.test_scheme=none",
    ]
    result = await go_on(folder, *changes)
    began = result["iterations"][0]["models"]
    assert began == {
        "prover": base[1]["iterations"][iteration + 1]["models"]["prover"],
        "verifier": "deterministic",
    }
    record = run_in(folder, "next").open()
    assert record.parameters["agents"]["prover"]["temperature"] == 0.25
    assert record.parameters["agents"]["prover"]["checkpoint_run_id"] == "small"
    assert (await go_on(folder, *changes))["iterations"] == result["iterations"]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            ["base_run.base_run_type=parameters", "base_run.run_id=nobody"],
            "there is no run 'nobody'",
        ),
        (
            [*GOES_ON, "agents._default.shared_model_group=x"],
            "no model group 'x'; it has prover, verifier",
        ),
        ([*GOES_ON, "agents.prover.model_name=other"], "base model of 'prover' is 'other'"),
        ([*LOAD, "agents.prover.checkpoint_version=5"], "no model of iteration 5; its last is 1"),
    ],
)
async def test_what_can_not_be_taken_over_is_refused_before_anything_starts(folder, changes, said):
    with pytest.raises(SettingsError, match=said):
        prepare(load_parameters(folder / "config.yaml", ["run_name=next", *changes]))


@pytest.mark.parametrize("damage", ["content", "record"])
async def test_a_damaged_adapter_is_not_taken_over(folder, damage):
    models = folder / "runs" / "small" / "lm_server" / "models"
    if damage == "content":
        for file in models.glob("*/adapter.json"):
            file.write_text("{}")
    else:
        record = folder / "runs" / "small" / "iterations" / "0001" / "models.json"
        content = json.loads(record.read_text())
        content["groups"]["prover"]["digest"] = "0" * 64
        del content["sha256"]  # or it would be refused as damaged before
        record.write_text(json.dumps(content))
    with pytest.raises(CorruptionError, match="models of run 'small'"):
        async with open_session(
            load_parameters(folder / "config.yaml", ["run_name=next", *GOES_ON])
        ):
            pass
    assert not (folder / "runs" / "next" / "run.json").exists()
