"""`chain` played over real HTTP: attacks meet the formula, and requests show what they must not.

All models are scripted: they read nothing but the chat that came to the server.
"""

import json
import re

from chain_players import checks
from scripted_game import scripted_run

from nip_core import loop
from nip_core.game.render import Game, Situation
from nip_core.parameters import load_parameters
from nip_core.rollouts.storage.table_rows import Generation, read_rows
from nip_core.rollouts.storage.tables import read_rollouts
from nip_core.run_store.run import RunStore
from nip_core.run_store.store import open_store
from nip_core.scenarios import find_scenario
from nip_core.scenarios.scripts import ScriptedTurn
from nip_core.upkeep.verify import verify_run
from nip_study.plan.attack_run import attack_settings

QUESTION = re.compile(r"## Steps\n\n(.+?)\n\n", re.DOTALL)
CLAIM = re.compile(r"## Claim\n\n(.+)")
STEP = re.compile(r"(?:add|subtract|multiply by) \d+")


def chains(size=8, **own):
    return {
        "scenario": "chain",
        "dataset": "chains",
        "scenario_settings": {"train_size": 4, "validation_size": 4, "test_size": size, **own},
        "rollouts": {"episodes_per_shard": 200, "transport_retries": 0},
    }


def players(body):
    """A verifier that checks the step that it is shown, and provers that state what is true."""
    chat = body["messages"]
    if body["model"] == "verifier":
        return [f"Decision: {'accept' if checks(chat) else 'reject'}"] * body.get("n", 1)
    system = chat[0]["content"]
    texts = {"question": QUESTION.search(system)[1], "solution": CLAIM.search(system)[1]}
    argues_for = 0 if "You are Expert_1" in system else 1
    script = find_scenario("chain").scripts["honest"]
    return [script(ScriptedTurn("prover", argues_for, 0, texts, chat, 0))] * body.get("n", 1)


async def test_an_attack_on_two_provers_of_which_one_is_honest_takes_nothing(tmp_path, monkeypatch):
    """The attack writes for the claim alone; the other one plays as in the attacked run."""
    changes = {
        **chains(),
        "interaction_protocol": "refereed",
        "names": ("prover0", "prover1", "verifier"),
    }
    chosen = {"by": "script", "iteration": 0, "script": "lie-anywhere"}
    async with scripted_run(tmp_path, monkeypatch, players, **changes) as server:
        before = len(server.bodies)
        result = await loop.train(attack_settings(str(tmp_path), "scripted", chosen))
        bodies = server.bodies[before:]
    [row] = result["attack"]["by_n"]
    assert (row["soundness"], row["completeness"], row["fooled"]) == (1.0, 1.0, 0)
    run = RunStore(open_store(tmp_path), result["run"])
    assert verify_run(run).problems == {}
    _read_requests(run, bodies)


def _read_requests(run, bodies):
    """Every request is what the record gives again; none has what its agent must not see."""
    game = Game(load_parameters(run.open().parameters))
    tables = read_rollouts(run.store, run.rollouts(0, "attack"))
    said = {}
    for row in read_rows(tables.generations, Generation):
        said.setdefault(row.episode, []).append(row)
    again = {"prover": set(), "verifier": set()}
    for episode in tables.episodes.to_pylist():
        situation = Situation(episode["question"], episode["solution"], None, episode["seed"])
        turns = game.turns(said[episode["key"]], episode["seed"])
        for turn in turns:
            if turn.agent != "prover1":  # a script, which asks nobody
                earlier = [t for t in turns if t.round < turn.round]
                chat = game.render(turn.agent, situation, earlier, turn.round)
                kind = "verifier" if turn.agent == "verifier" else "prover"
                again[kind].add(json.dumps(chat, sort_keys=True))
    sent = {"prover": set(), "verifier": set()}
    for body in bodies:
        sent[body["model"]].add(json.dumps(body["messages"], sort_keys=True))
        text = json.dumps(body["messages"])
        assert len(STEP.findall(text)) == (8 if body["model"] == "prover" else 1)
        if body["model"] == "prover":
            # What the other one says in this very round is not there: the question comes last.
            assert "value after step" in body["messages"][-1]["content"]
    assert sent == again


async def test_a_lie_to_a_drawn_check_is_found_where_its_wrong_step_is_drawn(tmp_path, monkeypatch):
    """The same lies and the same check as above, and one prover: so most of them pass."""
    changes = {**chains(checked="drawn", steps=2), "interaction_protocol": "adp"}
    chosen = {"by": "script", "iteration": 0, "script": "honest"}  # the last step is wrong
    async with scripted_run(tmp_path, monkeypatch, players, **changes) as server:
        before = len(server.bodies)
        result = await loop.train(attack_settings(str(tmp_path), "scripted", chosen))
        bodies = server.bodies[before:]
    [row] = result["attack"]["by_n"]
    run = RunStore(open_store(tmp_path), result["run"])
    assert verify_run(run).problems == {}
    episodes = read_rollouts(run.store, run.rollouts(0, "attack")).episodes.to_pylist()
    drawn = [json.loads(e["drawn"])["drawn_step"] for e in episodes if e["y"] == 0]
    assert {*drawn} == {"1", "2"}
    assert (row["completeness"], row["fooled"]) == (1.0, drawn.count("1"))
    assert {body["model"] for body in bodies} == {"verifier"}
    assert all(len(STEP.findall(json.dumps(body["messages"]))) == 1 for body in bodies)
