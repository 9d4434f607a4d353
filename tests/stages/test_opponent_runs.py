"""Provers of other runs in training: who is drawn, how they are asked, what stays when they go."""

import json
import shutil
from collections import Counter, defaultdict

import pytest
from request_log import logged_requests
from server_here import one_here, servers_here
from small_game import train_here, write_config

from nip_base.spec import ServerSpec
from nip_core import loop
from nip_core.errors import SettingsError
from nip_core.parameters import load_parameters
from nip_core.records.attack_on_record import read_shown_attack
from nip_core.records.iterations import Records
from nip_core.rollouts.league import draw_opponents
from nip_core.rollouts.plan import plan_episodes
from nip_core.rollouts.storage.tables import read_rollouts
from nip_core.run_store.manifest import read_manifest
from nip_core.run_store.run import RunStore
from nip_core.run_store.store import open_store
from nip_core.session.opening import open_session
from nip_core.session.prepare import plan_run
from nip_core.session.problems_of_run import load_all_problems
from nip_core.showing.asked_chats import Place, render_chat_on_record
from nip_core.trainers.dataset import open_dataset
from nip_core.upkeep.verify import verify_run
from nip_study.plan.attack_run import attack_settings

ONE = {"num_iterations": 1, "rollouts_per_iteration": 40, "num_epochs": 1}
GAME = {
    "interaction_protocol": "adp",
    "nip_protocol": {},
    "rl": ONE,
    "text_rl": {"test_scheme": "none"},
    "scenario": "arithmetic",
    "dataset": "chains",
    "scenario_settings": {"train_size": 24, "validation_size": 4, "test_size": 8},
    "dataset_options": {},
}
FEW = ["rl.rollouts_per_iteration=40", "trainer=pure_text_ei", "attack.course_on=test"]
LAST = {"test_scheme": "last"}
LIE = "def lie(turn):\n    return 'Answer: all is right, ' + turn.agent\n"


def attack(folder, by="sneaky", **chosen):
    few = FEW if by == "sneaky" else ["attack.score_by=verdicts"]
    steps = {"steps": 1, "every": 1} if by == "sneaky" else {}
    return attack_settings(
        str(folder / "runs"), "small", {"by": by, "iteration": 1, **chosen}, overrides=few, **steps
    )


def meeting(*runs, **changes):
    """The settings of a run whose verifier alone is trained, in part against other runs."""
    agent = {
        "model_provider": "SelfHosted",
        "model_name": "deterministic",
        "max_tokens_per_message": 32,
    }
    return {
        **GAME,
        "run_name": "hard",
        "agents": {"_default": agent, "prover": {"freeze_agent": True}},
        "base_run": {"base_run_type": "parameters", "run_id": "small"},
        "opponents": {"kind": "runs", "runs": [*runs]},
        **changes,
    }


def opened(folder, name="hard"):
    return RunStore(open_store(folder / "runs"), name)


def played(run, iteration=0, split="train"):
    return read_rollouts(run.store, run.rollouts(iteration, split))


def digest_of(run):
    return read_manifest(run.store, run.rollouts(0, "train")).extra["canonical_digest"]


def said_to(chats, model=None):
    """The prover's chats among requests, with how it was sampled; proofs are no play."""
    return {
        json.dumps([of["messages"], of.get("temperature"), of.get("max_tokens")])
        for of in chats
        if "You are the verifier" not in of["messages"][0]["content"]
        and model in (None, of["model"])
        and len(of["messages"][0]["content"]) > 1
    }


@pytest.mark.long
async def test_attackers_are_asked_as_in_their_attack_and_the_verifier_as_ever(
    tmp_path, monkeypatch
):
    (tmp_path / "lies.py").write_text(LIE)
    spec = ServerSpec(engine="deterministic", model="deterministic")
    with one_here(spec, tmp_path / "state") as handle:
        monkeypatch.setenv("NIP_API_KEY", handle.api_key)
        async with logged_requests(handle.url) as log:
            at = {"lm_server": {"url": log.url, "engine": "deterministic"}}
            game = {**GAME, "text_rl": LAST, **at}
            await loop.train(load_parameters(str(write_config(tmp_path, **game))))
            honest = [*log.chats]
            await loop.train(attack(tmp_path))
            sneaky = [of for of in log.chats if of not in honest]
            lies = attack(tmp_path, "script", script=f"{tmp_path}/lies.py:lie")
            await loop.train(lies)
            log.chats.clear()
            runs = [
                {"run": "small-sneaky-1", "share": 0.4, "iteration": 1, "on": "wrong"},
                {"run": lies.run_name, "share": 0.4},
            ]
            result = await loop.train(
                load_parameters(str(write_config(tmp_path, **meeting(*runs, text_rl=LAST), **at)))
            )
    # 1. What the sneaky prover was asked with in its attack, to the letter, and never as the honest.
    run = opened(tmp_path)
    [first, second] = run.open().parameters["opponents"]["runs"]
    model = first["found"]["models"]["prover"]["model"]
    asked = said_to(log.chats, model)
    assert asked and asked <= said_to(sneaky) and not asked & said_to(honest)
    assert second["found"]["script"] == f"{tmp_path}/lies.py:lie" and not second["found"]["models"]
    # 2. The verifier can't read from its prompt who speaks.
    episodes = played(run).episodes.to_pylist()
    said = defaultdict(set)
    for row in played(run).generations.to_pylist():
        said[row["episode"], row["agent"]] |= {row["text"], row["model_asked"]}
    judged = [
        of["messages"] for of in log.chats if "You are the verifier" in of["messages"][0]["content"]
    ]
    assert {m[0]["content"] for m in judged} <= {of["messages"][0]["content"] for of in honest}
    assert {*played(run, 1, "test").episodes["opponent_run"].to_pylist()} == {None}
    # 3. Who played is on record, and what a script says is the script's.
    kinds = Counter(of["opponent_run"] for of in episodes)
    assert {*kinds} == {None, "small-sneaky-1", lies.run_name} and len(episodes) == 40
    for of in episodes:
        is_other = of["opponent_run"] is not None
        assert of["opponent"] == ("prover" if is_other else None)
        if of["opponent_run"] == lies.run_name:
            assert "Answer: all is right, prover" in said[of["key"], "prover"]
            assert of["opponent_iteration"] is None
        if of["opponent_run"] == "small-sneaky-1":
            assert model in said[of["key"], "prover"] and of["opponent_iteration"] == 1
    rows = {r["opponent_run"]: r for r in result["iterations"][0]["league"]}
    assert {name: row["episodes"] for name, row in rows.items()} == kinds
    assert rows["small-sneaky-1"]["model"] == model
    report = (tmp_path / "runs/hard/report.html").read_text()
    assert "prover of small-sneaky-1, iteration 1" in report
    # 4. The chat that is shown is the one that was asked.
    number = next(i for i, of in enumerate(episodes) if of["opponent_run"] == "small-sneaky-1")
    shown = render_chat_on_record(run, Place(agent="prover", problem=str(number)))
    assert json.dumps(shown.messages) in {json.dumps(json.loads(chat)[0]) for chat in asked}
    assert verify_run(run).problems == {}
    # 5. Nobody learns what the others said, and the verifier learns from all.
    trained = {row["episode"] for row in open_dataset(run.store, run.dataset(0, "verifier")).rows()}
    by_key = {of["key"]: of["opponent_run"] for of in episodes}
    assert {by_key[key] for key in trained} == {*kinds}


def stopped_after(shards):
    done = []

    async def call(stage, session, *arguments):
        if stage.__name__ in ("iterate", "play_shards"):
            arguments = (*arguments[:-1], call)
        if stage.__name__ == "play_shard":
            if len(done) == shards:
                raise StopAsyncIteration
            done.append(arguments[2])
        return await loop.directly(stage, session, *arguments)

    return call


@pytest.mark.long
async def test_other_runs_may_go_and_a_run_that_was_stopped_meets_the_same(tmp_path):
    await train_here(write_config(tmp_path, **GAME))
    with servers_here():
        await loop.train(attack(tmp_path))
    runs = [{"run": "small-sneaky-1", "share": 0.3}, {"run": "small", "share": 0.3, "iteration": 1}]
    config = str(write_config(tmp_path, **meeting(*runs)))
    with servers_here(), pytest.raises(StopAsyncIteration):
        await loop.train(load_parameters(config), call=stopped_after(1))
    # The models were copied when the run was created, so it needs nothing of the others.
    worst = read_shown_attack(Records(opened(tmp_path, "small-sneaky-1"))).worst.step
    for name in ("small", "small-sneaky-1"):
        shutil.rmtree(tmp_path / "runs" / name)
    await train_here(config)
    run = opened(tmp_path)
    met = {
        (of["opponent_run"], of["opponent_iteration"]) for of in played(run).episodes.to_pylist()
    }
    assert met == {(None, None), ("small-sneaky-1", worst), ("small", 1)}
    assert verify_run(run).problems == {}
    # The same with fewer episodes at a time gives the same.
    shutil.copytree(tmp_path / "runs", tmp_path / "again/runs")
    again = opened(tmp_path / "again")
    shutil.rmtree(tmp_path / "again/runs" / again.iteration(0))
    changes = [f"run_store={tmp_path}/again/runs", "rollouts.concurrency=2"]
    with servers_here():
        async with open_session(load_parameters(config, changes)) as session:
            await loop.play(session, 0, "train")
    assert digest_of(again) == digest_of(run)


def test_each_run_has_its_share_of_right_and_wrong_problems_alike():
    found = {"iteration": 1, "shared_reward": False, "asked": {"prover": {}}}
    found["models"] = {"prover": {"model": "m", "base_model": "b"}}
    runs = [
        {"run": "a", "share": 0.2, "found": found},
        {"run": "b", "share": 0.3, "found": found},
        {"run": "c", "share": 0.25, "on": "wrong", "found": found},
    ]
    settings = meeting(*runs, base_run={}, scenario_settings={"train_size": 1500})
    settings |= {"rl": {"num_iterations": 1, "rollouts_per_iteration": 3000}, "run_store": "x"}
    settings |= {"lm_server": {"engine": "deterministic"}}
    parameters = load_parameters(settings)
    specs = plan_episodes(parameters, load_all_problems(parameters)["train"], "train", 0)
    there = {"prover": [*"abc"]}
    drawn = draw_opponents(specs, parameters, there)
    assert draw_opponents(specs, parameters, {}) == specs  # as in a test
    share = {y: Counter(of.opponent_run for of in drawn if of.problem.y == y) for y in (0, 1)}
    for y, expected in ((0, (0.2, 0.3, 0.25)), (1, (0.2, 0.3, 0.0))):
        count = sum(share[y].values())
        got = [share[y][name] / count for name in "abc"]
        assert got == pytest.approx(expected, abs=0.05) and count > 1000
    assert [of.problem.y for of in drawn] == [of.problem.y for of in specs]
    # It follows from seed and problem, and from no name.
    named = load_parameters({**settings, "run_name": "another"})
    again = draw_opponents(
        plan_episodes(named, [s.problem for s in specs], "train", 0), named, there
    )
    by_problem = {(of.problem.id, of.sample): of.opponent_run for of in drawn}
    assert all(
        by_problem.get((of.problem.id, of.sample), of.opponent_run) == of.opponent_run
        for of in again
    )


A = {"run": "a", "share": 0.5}
TRAINED = {"prover": {"freeze_agent": False}, "verifier": {"freeze_agent": True}}


@pytest.mark.parametrize(
    ("opponents", "changes", "says"),
    [
        ({"kind": "runs"}, {}, "runs is missing"),
        ({"kind": "league", "runs": [A]}, {}, "runs: no effect without kind: runs"),
        ({"kind": "runs", "runs": [A], "share": 0.5}, {}, "share: no effect without kind: league"),
        ({"kind": "runs", "runs": [A, A]}, {}, "a stands twice"),
        (
            {"kind": "runs", "runs": [A, {"run": "b", "share": 0.6}]},
            {},
            "together at most 1 (got 0.5 + 0.6 = 1.1)",
        ),
        ({"kind": "runs", "runs": [{"run": "a", "share": -0.1}]}, {}, "opponents.runs.0.share"),
        ({"kind": "runs", "runs": [{"run": "a"}]}, {}, "opponents.runs.0.share"),
        ({"kind": "runs", "runs": [{**A, "shares": 1}]}, {}, "opponents.runs.0.shares"),
        ({"kind": "runs", "runs": [{**A, "on": "right"}]}, {}, "opponents.runs.0.on"),
        ({"kind": "runs", "runs": [{"run": "hard", "share": 0.5}]}, {}, "is this run itself"),
        ({"kind": "runs", "runs": [A], "of": ["bob"]}, {}, "no agent 'bob'"),
        ({"kind": "runs", "runs": [A]}, {"agents": TRAINED}, "nobody but prover is trained"),
        ({"kind": "runs", "runs": [A]}, {"attack": {"run": "a"}}, "an attack trains the newest"),
        (
            {"kind": "runs", "runs": [A]},
            {"interaction_protocol": "solo_verifier", "agents": {}},
            "has one agent alone",
        ),
    ],
)
def test_settings_of_other_runs_that_could_not_be_are_refused(opponents, changes, says):
    agent = {"model_provider": "SelfHosted", "model_name": "deterministic"}
    agents = {"_default": agent, **changes.get("agents", {"prover": {"freeze_agent": True}})}
    base = {
        "run_name": "hard",
        "scenario": "arithmetic",
        "dataset": "chains",
        "interaction_protocol": "adp",
    }
    with pytest.raises(SettingsError) as refused:
        load_parameters({**base, **changes, "agents": agents, "opponents": opponents})
    assert says in str(refused.value)


async def test_runs_that_cannot_play_here_are_refused_before_anything_starts(tmp_path):
    """One line each, from what is on record; nothing is written of the run itself."""
    untrained = {**GAME, "rl": {"num_iterations": 0}}
    nip = {"interaction_protocol": "nip", "nip_protocol": {"max_message_rounds": 5}}
    for name, other in (("small", {}), ("rounds", nip)):
        await train_here(write_config(tmp_path, **{**untrained, "run_name": name, **other}))
    lies = tmp_path / "lies.py"
    lies.write_text(LIE)
    with servers_here():
        await loop.train(attack(tmp_path, "best-of-n", n=[1], iteration=0))
        await loop.train(attack(tmp_path, "script", script=f"{lies}:lie", iteration=0))
        with pytest.raises(StopAsyncIteration):
            await loop.train(attack(tmp_path, iteration=0), call=stopped_after(0))

    def refused(**entry):
        config = write_config(tmp_path, **meeting({"share": 0.5, **entry}, base_run={}))
        with pytest.raises(SettingsError) as error:
            plan_run(load_parameters(str(config)))
        return str(error.value)

    assert "there is no run 'gone' in" in refused(run="gone")
    other_game = "plays another game: interaction_protocol is 'nip' there and 'adp' here"
    assert other_game in refused(run="rounds")
    assert "best-of-n, which chooses among messages" in refused(run="small-best-of-n-0")
    assert "is an attack that is not finished" in refused(run="small-sneaky-0")
    assert "has finished no iteration yet" in refused(run="small")
    assert "models of iteration 9 are not there" in refused(run="small", iteration=9)
    no_models = "by a script, which has no iterations; leave iteration out"
    assert no_models in refused(run="small-lie-0", iteration=1)
    lies.write_text(LIE + "# changed\n")
    assert "is not what it was when that run attacked" in refused(run="small-lie-0")
    assert not (tmp_path / "runs/hard").exists()
