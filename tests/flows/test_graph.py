"""The graph of each flow run, as a real Prefect server draws it: what comes after what."""

from typing import Any

import pytest
from flow_graphs import FlowGraph, draw
from server_here import servers_here
from small_game import FEW, write_config

from nip_core.errors import StageError
from nip_core.session.opening import open_session
from nip_core.stages.measuring import measure
from nip_prefect.flows.train import train
from nip_prefect.tasks.calls import TASKS
from nip_prefect.tasks.runtime import offer
from nip_study.plan.attack_run import attack_settings

SIZES = {"max_test_size": 4, "max_validation_size": 8}
TREES_AND_GATE: dict[str, Any] = {
    "run_name": "trees",
    "trainer": "pure_text_malt",
    "rl": {"num_iterations": 1, "rollouts_per_iteration": 12, "num_epochs": 1},
    "rollouts": {"episodes_per_shard": 6},
    "promotion": {"enabled": True, "episodes": 4},
    "dataset_options": SIZES,
}
GROUPS = ("prover", "verifier")
Graphs = dict[str, dict[str, FlowGraph]]


@pytest.fixture(scope="module")
async def drawn(prefect_server, tmp_path_factory) -> Graphs:
    """The graphs of four flow runs, all of them of runs with two groups or an attack."""
    folder = tmp_path_factory.mktemp("drawn")

    async def draw_training(*arguments: Any, **more: Any) -> dict[str, FlowGraph]:
        state = await train(*arguments, **more, return_state=True)
        await state.result()
        return await draw(str(state.state_details.flow_run_id))

    with servers_here():
        # 1. Preferences in trees, and a gate; the same rewound, going on to one iteration more.
        trees = str(write_config(folder, **TREES_AND_GATE))
        graphs = {"trees": await draw_training(trees)}
        again = {"rerun_from_iteration": 0, "rerun_from_stage": "dataset"}
        graphs["rewound"] = await draw_training(trees, num_iterations=2, **again)
        # 2. The quick start in small, and provers that are trained against its verifier.
        small = write_config(folder, rl=FEW, dataset_options=SIZES)
        graphs["plain"] = await draw_training(str(small))
        way = {"by": "sneaky", "problems": 2, "iteration": 0}
        few = ["rl.rollouts_per_iteration=8", "pure_text_grpo.group_size=4"]
        store = str(folder / "runs")
        attack = attack_settings(store, "small", way, steps=1, every=1, overrides=few)
        async with open_session(attack) as session:
            with offer(session):
                graphs["attack"] = await draw_training("attack")
    return graphs


async def test_every_task_run_but_the_first_of_its_flow_run_comes_after_another(drawn):
    assert {kind: sorted(graphs) for kind, graphs in drawn.items()} == {
        "trees": ["", "iteration-trees-0"],
        "rewound": ["", "iteration-trees-0", "iteration-trees-1"],
        "plain": ["", "iteration-small-0"],
        "attack": ["", "iteration-small-sneaky-0-0"],
    }
    for kind, graphs in drawn.items():
        for name, graph in graphs.items():
            assert graph.roots == [graph.first], (kind, name)
            assert len(graph.before) > 5, (kind, name)


async def test_the_graph_of_an_iteration_is_the_iteration(drawn):
    graph = drawn["plain"]["iteration-small-0"]
    shards = {"play-train-0-0000", "play-train-0-0001"}
    assert graph.before == {
        "prove-serving-0": set(),
        "plan-test-0": {"prove-serving-0"},
        "play-test-0-0000": {"plan-test-0"},
        "commit-test-0": {"play-test-0-0000"},
        "measure-test-0": {"commit-test-0"},
        "plan-train-0": {"measure-test-0"},
        **{shard: {"plan-train-0"} for shard in shards},
        "commit-train-0": shards,
        "measure-train-0": {"commit-train-0"},
        "publish-play-0": {"measure-train-0"},
        **{f"dataset-{group}-0": {"commit-train-0"} for group in GROUPS},
        **{f"submit-{group}-0": {f"dataset-{group}-0"} for group in GROUPS},
        **{f"await-{group}-0": {f"submit-{group}-0"} for group in GROUPS},
        "prove-candidates-0": {f"await-{group}-0" for group in GROUPS},
        "swap-0": {"prove-candidates-0"},
        "publish-train-0": {"swap-0", "measure-train-0"},
    }
    assert drawn["plain"][""].before == {
        "iteration-small-0": set(),
        "plan-test-1": {"iteration-small-0"},
        "play-test-1-0000": {"plan-test-1"},
        "commit-test-1": {"play-test-1-0000"},
        "measure-test-1": {"commit-test-1"},
        "publish-test-1": {"measure-test-1"},
    }


async def test_at_a_gate_both_sides_play_between_the_jobs_and_the_swap(drawn):
    before = drawn["trees"]["iteration-trees-0"].before
    # Proved before they play, and once more before they serve.
    jobs = {f"await-{group}-0" for group in GROUPS}
    assert before["prove-candidates-0"] == {*jobs, "measure-candidate-0"}
    assert before["plan-validation-0"] == {"prove-candidates-0"}
    assert before["plan-candidate-0"] == {"measure-validation-0"}
    assert before["swap-0"] == {"prove-candidates-0"}


async def test_a_run_that_goes_on_has_the_steps_that_are_left_in_its_graph(drawn):
    graphs = drawn["rewound"]
    assert graphs[""].before["iteration-trees-1"] == {"iteration-trees-0"}
    assert graphs[""].before["plan-test-2"] == {"iteration-trees-1"}
    # Nothing is played again, and what is there comes after its plan.
    before = graphs["iteration-trees-0"].before
    assert before["commit-train-0"] == {"plan-train-0"}
    assert not [name for name in before if name.startswith(("play-test", "play-train"))]
    assert graphs["iteration-trees-1"].before["swap-1"] == {"prove-candidates-1"}


async def test_an_attack_ends_with_the_test_of_the_provers_that_it_has_trained(drawn):
    before = drawn["attack"][""].before
    assert before["prove-serving-1"] == {"end-attack-1"}  # which provers are the worst
    assert before["plan-attack-1"] == {"prove-serving-1"}
    assert before["play-attack-1-0000"] == {"plan-attack-1"}
    assert before["measure-attack-1"] == {"commit-attack-1"}
    assert before["publish-test-1"] == {"measure-attack-1"}
    assert drawn["attack"]["iteration-small-sneaky-0-0"].before["submit-prover-0"] == {
        "dataset-prover-0"
    }


async def test_a_retried_flow_run_goes_on_after_its_earlier_attempt(
    prefect_server, tmp_path, monkeypatch
):
    run_task, left = TASKS[measure], 3

    async def fail_third_time(*arguments: Any, **needs: Any) -> Any:
        nonlocal left
        left -= 1
        if left == 0:
            raise StageError("as by a full disk")
        return await run_task(*arguments, **needs)

    monkeypatch.setitem(TASKS, measure, fail_third_time)
    config = write_config(tmp_path, run_name="retried", rl=FEW, dataset_options=SIZES)
    with servers_here():
        twice = train.with_options(retries=1, retry_delay_seconds=0)
        state = await twice(str(config), return_state=True)
        await state.result()
    graphs = await draw(str(state.state_details.flow_run_id))
    assert left == -1 and sorted(graphs) == ["", "iteration-retried-0"]
    for name, graph in graphs.items():
        assert graph.roots == [graph.first], name
    # The last test was played, and is measured now: after the newest end that the server knew of.
    [step] = graphs[""].before["prove-serving-1"]
    assert step in {"plan-test-1", "play-test-1-0000", "commit-test-1"}
