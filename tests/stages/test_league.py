"""Opponents of earlier iterations: who is drawn, what is trained on, what is the same after a stop."""

import json
import shutil
from collections import defaultdict
from unittest import mock

import pytest
from small_game import train_here, write_config
from trained_here import TrainerHere

from nip_core import loop
from nip_core.errors import SettingsError
from nip_core.game.render import Game
from nip_core.parameters import load_parameters
from nip_core.parameters.blocks.opponents import list_opponents
from nip_core.rollouts.league import draw_opponents, find_earlier_models
from nip_core.rollouts.plan import plan_episodes
from nip_core.rollouts.storage.tables import read_rollouts
from nip_core.run_store.manifest import read_manifest
from nip_core.run_store.run import RunStore
from nip_core.run_store.store import open_store
from nip_core.session.opening import open_session
from nip_core.session.problems_of_run import load_all_problems
from nip_core.trainers.dataset import open_dataset
from nip_core.upkeep.verify import verify_run

HALF = {"kind": "league", "share": 0.5}
RL = {"num_iterations": 2, "rollouts_per_iteration": 40, "num_epochs": 1}
FROM_THE_LAST = {
    "model_provider": "SelfHosted",
    "model_name": "deterministic",
    "max_tokens_per_message": 32,
    "fine_tune_from_scratch": False,
}


def run_in(folder):
    return RunStore(open_store(folder / "runs"), "small")


def played(run, iteration, split="train"):
    return read_rollouts(run.store, run.rollouts(iteration, split))


def stopped_in_iteration_1():
    """A hook that ends the run when a shard of iteration 1 is played and the others are not."""
    done = []

    async def call(stage, session, *arguments):
        if stage.__name__ in ("iterate", "play_shards"):
            arguments = (*arguments[:-1], call)
        if stage.__name__ == "play_shard" and arguments[:2] == (1, "train"):
            if done:
                raise StopAsyncIteration
            done.append(arguments[2])
        return await loop.directly(stage, session, *arguments)

    return call


@pytest.mark.usefixtures("server_in_thread")
async def test_a_run_that_was_stopped_meets_the_same_opponents_and_trains_on_none_of_their_words(
    tmp_path,
):
    changes = {"opponents": HALF, "rl": RL, "text_rl": {"test_scheme": "none"}}
    config = write_config(tmp_path, **changes)
    with pytest.raises(StopAsyncIteration):
        await loop.train(load_parameters(config), call=stopped_in_iteration_1())
    result = await train_here(config)
    run = run_in(tmp_path)
    # The same, not stopped and with fewer episodes at a time, gives the same.
    (tmp_path / "again").mkdir()
    shutil.copytree(tmp_path / "runs", tmp_path / "again/runs")
    again = run_in(tmp_path / "again")
    shutil.rmtree(tmp_path / "again/runs" / again.iteration(1))
    config = write_config(tmp_path / "again", **changes)
    async with open_session(load_parameters(config, ["rollouts.concurrency=2"])) as session:
        await loop.play(session, 1, "train")
    first, second = (
        read_manifest(r.store, r.rollouts(1, "train")).extra["canonical_digest"]
        for r in (run, again)
    )
    assert first == second
    # The first iteration is played as ever, the second against the model that played the first.
    assert set(played(run, 0).episodes["opponent"].to_pylist()) == {None}
    second = played(run, 1)
    opponents = {e["key"]: e["opponent"] for e in second.episodes.to_pylist()}
    assert set(opponents.values()) == {None, "prover"}
    assert 10 <= [*opponents.values()].count("prover") <= 30
    asked = defaultdict(set)
    for row in second.generations.to_pylist():
        assert row["model_served"] == row["model_asked"]
        asked[row["agent"], opponents[row["episode"]]].add(row["model_asked"])
    groups = run.read_json(run.models(0))["groups"]
    now = {group: model["model"] for group, model in groups.items()}
    assert asked == {
        ("prover", None): {now["prover"]},
        ("prover", "prover"): {"deterministic"},
        ("verifier", None): {now["verifier"]},
        ("verifier", "prover"): {now["verifier"]},
    }
    # What the earlier model said is no example, what was said against it is.
    examples = {
        group: [*open_dataset(run.store, run.dataset(1, group)).rows()]
        for group in ("prover", "verifier")
    }
    assert {opponents[e["episode"]] for e in examples["prover"]} == {None}
    assert {opponents[e["episode"]] for e in examples["verifier"]} == {None, "prover"}
    counts = read_manifest(run.store, run.dataset(1, "prover")).extra["counts"]
    assert counts["earlier_model"] == [*opponents.values()].count("prover")
    # It is shown, and what is on record is compared.
    league = result["iterations"][1]["league"]
    assert [(r["opponent"], r["opponent_iteration"]) for r in league] == [
        (None, None),
        ("prover", 0),
    ]
    assert sum(row["episodes"] for row in league) == 40
    assert league[1]["model"] == "deterministic"
    assert "league" not in result["iterations"][0]
    assert "prover of iteration 0" in (tmp_path / "runs/small/report.html").read_text()
    assert verify_run(run).problems == {}
    path = tmp_path / "runs" / f"{run.rollouts(1, 'train')}/manifest-0000.json"
    assert "opponents" in json.loads(path.read_text())["inputs"]


def settings(**changes):
    return load_parameters(
        {
            "run_name": "a",
            "dataset": "families",
            "agents": {"_default": FROM_THE_LAST},
            "lm_server": {"engine": "deterministic"},
            **changes,
        }
    )


def test_opponents_are_drawn_by_seed_and_problem_and_alike_in_a_group():
    few = {"max_train_size": 200}
    grpo = {
        "trainer": "pure_text_grpo",
        "pure_text_grpo": {"group_size": 4},
        "rl": {"num_iterations": 3, "rollouts_per_iteration": 400},
        "dataset_options": few,
        "opponents": {"kind": "league", "share": 0.3, "of": ["prover", "verifier"]},
    }
    parameters = settings(**grpo)
    problems = load_all_problems(parameters)["train"]
    earlier = {"prover": [0, 2], "verifier": [1]}

    def drawn(parameters, iteration=3):
        specs = plan_episodes(parameters, problems, "train", iteration)
        return draw_opponents(specs, parameters, earlier)

    specs = drawn(parameters)
    by_problem = defaultdict(set)
    for spec in specs:
        by_problem[spec.problem.id].add((spec.opponent, spec.opponent_iteration))
    assert {len(opponents) for opponents in by_problem.values()} == {1}
    assert 0.15 < sum(s.opponent is not None for s in specs) / len(specs) < 0.45
    met = {(s.opponent, s.opponent_iteration) for s in specs}
    assert met == {(None, None), ("prover", 0), ("prover", 2), ("verifier", 1)}

    def opponents(specs):
        return [(s.problem.id, s.opponent, s.opponent_iteration) for s in specs]

    assert opponents(drawn(settings(**{**grpo, "run_name": "b"}))) == opponents(specs)
    assert opponents(drawn(settings(**grpo, seed=1))) != opponents(specs)
    plain = plan_episodes(parameters, problems, "train", 3)
    assert draw_opponents(plain, parameters, {}) == plain
    assert draw_opponents(plain, parameters, {"prover": []}) == plain


def test_earlier_models_are_the_newest_others_each_by_the_first_iteration_that_it_played():
    played_ = ["base", "a", "a", "b", "base"]
    assert find_earlier_models(played_, "c", None) == {0: "base", 1: "a", 3: "b"}
    assert find_earlier_models(played_, "c", 2) == {1: "a", 3: "b"}
    assert find_earlier_models(played_, "a", 2) == {0: "base", 3: "b"}  # the gate went back to it
    assert find_earlier_models(["base"], "base", None) == {}


FROZEN = {"freeze_agent": True}


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"opponents": "leage"}, "opponents.kind: Input should be 'present', 'league' or 'runs'"),
        ({"opponents": {"share": 0.5}}, "opponents: share: no effect without kind: league"),
        ({"opponents": {"kind": "league", "shares": 1}}, "opponents.shares: unknown setting"),
        ({"opponents": {"kind": "league", "share": 0}}, "opponents.share"),
        ({"opponents": {"kind": "league", "last": 0}}, "opponents.last"),
        ({"opponents": {"kind": "league", "of": ["bob"]}}, "no agent 'bob'; it has prover, ver"),
        ({"opponents": {"kind": "league", "of": ["prover"] * 2}}, "names an agent twice"),
        ({"rl": {"num_iterations": 1}}, "needs rl.num_iterations of 2 or more (got 1)"),
        ({"interaction_protocol": "solo_verifier"}, "'solo_verifier' has one agent alone"),
        ({"agents": {"_default": FROM_THE_LAST, "prover": FROZEN}}, "no prover of protocol 'nip'"),
        (
            {
                "agents": {"_default": FROM_THE_LAST, "verifier": FROZEN},
                "opponents": {"kind": "league", "of": ["verifier"]},
            },
            "agents.verifier is never trained, so it has no earlier models",
        ),
        (
            {"agents": {"_default": FROM_THE_LAST, "verifier": FROZEN}},
            "nobody but agents.prover is trained",
        ),
        ({"agents": {"_default": {**FROM_THE_LAST, "use_lora": False}}}, "use_lora: false makes"),
        (
            {"base_run": {"base_run_type": "rerun_tests", "run_id": "other"}},
            "rerun_tests trains nobody",
        ),
        (
            {"attack": {"run": "other"}, "agents": {"_default": FROM_THE_LAST}},
            "an attack trains the newest provers against one verifier",
        ),
    ],
)
def test_a_league_that_could_not_be_is_refused(changes, says):
    with pytest.raises(SettingsError) as refused:
        settings(**{"opponents": "league", **changes})
    assert says in str(refused.value)


def test_the_short_form_is_a_league_of_the_provers_that_are_trained():
    parameters = settings(opponents="league", interaction_protocol="debate")
    assert list_opponents(parameters) == Game(parameters).protocol.provers
    assert parameters.opponents.to_dict()["kind"] == "league"
    assert list_opponents(settings()) == ()
    assert parameters == load_parameters(parameters.to_dict())


@pytest.mark.long
@pytest.mark.parametrize("trainer", ["pure_text_grpo", "pure_text_malt"])
async def test_no_trainer_learns_what_an_earlier_model_said(tmp_path, trainer):
    agent = {**FROM_THE_LAST, "shared_model_group": "both"}
    result = await train_here(
        write_config(
            tmp_path,
            trainer=trainer,
            agents={"_default": agent},
            protocol_common={"shared_reward": False},
            pure_text_grpo={"group_size": 4},
            opponents={"kind": "league", "share": 0.5, "of": ["prover", "verifier"]},
            rl={"num_iterations": 2, "rollouts_per_iteration": 64, "num_epochs": 1},
            text_rl={"test_scheme": "none"},
        )
    )
    run = run_in(tmp_path)
    assert result["status"] == "finished"
    rollouts = played(run, 1)
    opponents = {e["key"]: e["opponent"] for e in rollouts.episodes.to_pylist()}
    assert set(opponents.values()) == {None, "prover", "verifier"}
    rows = [*open_dataset(run.store, run.dataset(1, "both")).rows()]
    assert all(opponents[row["episode"]] != row["agent"] for row in rows)
    assert {opponents[row["episode"]] for row in rows} == {None, "prover", "verifier"}
    counts = read_manifest(run.store, run.dataset(1, "both")).extra["counts"]
    assert trainer == "pure_text_malt" or counts["earlier_model"] > 0
    if trainer == "pure_text_malt":  # who plays with an earlier model answers once
        leaves = played(run, 1).episodes.to_pylist()
        paths = defaultdict(set)
        for leaf in leaves:
            paths[leaf["problem"], leaf["opponent"]].add(leaf["branch_path"])
        steps = {who: set() for _, who in paths}
        for (_, who), several in paths.items():
            steps[who] |= {tuple(path.split(".")) for path in several}
        assert {path[1] for path in steps["prover"]} == {"0"}
        assert {path[1] for path in steps[None]} > {"0"}
    assert verify_run(run).problems == {}


@pytest.mark.long
async def test_adapters_of_two_iterations_answer_beside_each_other(tmp_path):
    """Real trainings of the tiny model, whose first adapter plays the last iteration, too.

    In this process, which loads torch once.
    """
    agent = {
        "model_provider": "SelfHosted",
        "model_name": "tiny",
        "max_tokens_per_message": 32,
        "fine_tune_from_scratch": False,
        "lora_rank": 8,
        "num_invalid_generation_retries": 3,
        "shared_model_group": "both",  # one training an iteration
    }
    config = write_config(
        tmp_path,
        agents={"_default": agent},
        lm_server={"engine": "embedded"},
        code_validation={"system_prompt_version": "short"},
        opponents=HALF,
        pure_text_ei={"reward_threshold": -1.0},
        rl={"num_iterations": 3, "rollouts_per_iteration": 16, "num_epochs": 1},
        text_rl={"test_scheme": "none"},
        rollouts={"failure_threshold": 1.0},
    )
    with mock.patch("nip_lm_server.placement.SubprocessTrainer", TrainerHere):
        await train_here(config)
    run = run_in(tmp_path)
    last = played(run, 2)
    opponents = {e["key"]: e["opponent_iteration"] for e in last.episodes.to_pylist()}
    names = [
        "tiny",
        *(run.read_json(run.models(i))["groups"]["both"]["model"] for i in range(2)),
    ]
    asked = defaultdict(set)
    for row in last.generations.to_pylist():
        assert row["model_served"] == row["model_asked"]
        if row["agent"] == "prover":
            asked[opponents[row["episode"]]].add(row["model_asked"])
    assert asked == {0: {names[0]}, 1: {names[1]}, None: {names[2]}}
    assert len({*names}) == 3
    assert verify_run(run).problems == {}
