"""`bags` played: each protocol meets its formula, and no prover's request has a private coin.

Verifiers that compare are scripted over a real HTTP server; runs of models go through the server of
the deterministic engine, with a proxy before it that reads every request.
"""

import json
import re
from itertools import product

import pyarrow.parquet as pq
import pytest
from request_log import logged_requests
from scripted_game import scripted_run
from server_here import one_here
from small_game import FEW, write_config

from nip_base.spec import ServerSpec
from nip_core import loop
from nip_core.errors import SettingsError
from nip_core.evaluation.confidence_intervals import wilson
from nip_core.parameters import load_parameters
from nip_core.rollouts.storage.tables import read_rollouts
from nip_core.run_store.run import RunStore
from nip_core.run_store.store import open_store
from nip_core.session.prepare import estimate_settings
from nip_core.upkeep.verify import verify_run
from nip_study.plan.attack_run import attack_settings

COINS = re.compile(r"^## Coins\n\n(.+)$", re.MULTILINE)
TOSSED, NAMED = re.compile(r"(\d+) is ([AB])"), re.compile(r"(\d+): ([AB])")


def compares(body):
    """A verifier that accepts what names every challenge as its coins fell."""
    system, *chat = (message["content"] for message in body["messages"])
    coins = COINS.search(system)
    said = NAMED.findall(" ".join(chat))
    right = coins is not None and said == TOSSED.findall(coins[1])
    return [f"Decision: {'accept' if right else 'reject'}"] * body.get("n", 1)


def names_everything(body):
    """A prover whose messages are all that can be said of two challenges, in turn."""
    said = [f"1: {a}, 2: {b}" for a, b in product("AB", repeat=2)]
    return [said[number % 4] for number in range(body.get("n", 1))]


def players(body):
    return compares(body) if body["model"] == "verifier" else names_everything(body)


def bags(size=160, **own):
    return {
        "scenario": "bags",
        "dataset": "lists",
        "scenario_settings": {"train_size": 4, "validation_size": 4, "test_size": size, **own},
        "rollouts": {"episodes_per_shard": 200, "transport_retries": 0},
    }


@pytest.mark.parametrize(
    ("coins", "challenges", "script"),
    [
        pytest.param("private", 1, "tell-apart", marks=pytest.mark.long),
        ("private", 3, "tell-apart"),
        ("public", 3, "coins"),
    ],
)
async def test_an_attack_by_script_meets_the_formula(
    tmp_path, monkeypatch, coins, challenges, script
):
    """With private coins no prover could do better than the script, with public coins any does."""
    changes = bags(coins=coins, challenges=challenges)
    chosen = {"by": "script", "iteration": 0, "script": script}
    async with scripted_run(tmp_path, monkeypatch, players, **changes):
        result = await loop.train(attack_settings(str(tmp_path), "scripted", chosen))
    [row] = result["attack"]["by_n"]
    assert row["completeness"] == 1.0
    if coins == "public":
        assert row["soundness"] == 0.0 and row["fooled"] == 80
    else:
        low, high = wilson(80 - row["fooled"], 80)
        assert low <= 1 - 0.5**challenges <= high
        assert row["soundness"] == (80 - row["fooled"]) / 80
    run = RunStore(open_store(tmp_path), result["run"])
    assert verify_run(run).problems == {}


async def test_repeating_coins_that_no_prover_sees_is_refused_before_anybody_is_asked(
    tmp_path, monkeypatch
):
    chosen = {"by": "script", "iteration": 0, "script": "coins"}
    async with scripted_run(tmp_path, monkeypatch, players, **bags(size=4)) as server:
        with pytest.raises(SettingsError, match=r"attack\.script: coins .*no prover is shown the"):
            await loop.train(attack_settings(str(tmp_path), "scripted", chosen))
    assert server.bodies == []


@pytest.mark.long
async def test_choosing_among_messages_does_not_choose_by_the_coins(tmp_path, monkeypatch):
    """Best-of-n has all four answers to two challenges, and is fooled no more often than by one.

    Where the lists differ it finds the right answer; where they don't there is none to find.
    """
    chosen = {"by": "best-of-n", "iteration": 0, "n": [1, 4]}
    async with scripted_run(
        tmp_path, monkeypatch, players, **bags(size=80, challenges=2)
    ) as server:
        parameters = attack_settings(
            str(tmp_path), "scripted", chosen, overrides=["attack.continuations=2"]
        )
        expected, before = estimate_settings(parameters).expected_calls, len(server.bodies)
        result = await loop.train(parameters)
    # Each continuation is a call of its own, and was expected to be.
    assert len(server.bodies) - before == pytest.approx(expected, rel=0.1)
    one, four = result["attack"]["by_n"]
    assert four["completeness"] == 1.0 > one["completeness"]
    low, high = wilson(40 - four["fooled"], 40)
    assert low <= 3 / 4 <= high
    run = RunStore(open_store(tmp_path), result["run"])
    assert verify_run(run).problems == {}
    # A continuation has its own coins, on record beside the problem, and the challenges of all.
    leaves = read_rollouts(run.store, run.rollouts(0, "attack")).episodes.to_pylist()
    drawn = [json.loads(leaf["drawn"]) for leaf in leaves]
    again = [json.loads(leaf["columns"] or "{}") for leaf in leaves]
    assert {tuple(sorted({**a, **b})) for a, b in zip(drawn, again, strict=True)} == {
        ("challenges", "coins")
    }
    by_problem = {}
    for leaf, columns in zip(leaves, drawn, strict=True):
        by_problem.setdefault(leaf["problem"], set()).add(columns["challenges"])
    assert {len(challenges) for challenges in by_problem.values()} == {1}
    assert {"coins"} in [{*columns} for columns in again]


@pytest.mark.parametrize("coins", ["private", "public"])
async def test_no_request_of_a_prover_has_a_private_coin(tmp_path, monkeypatch, coins):
    """Every chat of a whole run, training included, is read as it came to the server."""
    spec = ServerSpec("deterministic", "deterministic")
    with one_here(spec, tmp_path / "server") as server:
        monkeypatch.setenv("NIP_API_KEY", server.api_key)
        async with logged_requests(server.url) as log:
            config = write_config(
                tmp_path,
                scenario="bags",
                dataset="lists",
                scenario_settings={
                    "coins": coins,
                    "challenges": 16,
                    "train_size": 40,
                    "validation_size": 4,
                    "test_size": 4,
                },
                lm_server={"url": log.url},
                rl=FEW,
                fine_tuning={"poll_interval_s": 0.05, "settle_s": 0.0},
            )
            assert (await loop.train(load_parameters(str(config))))["run"] == "small"
            chats = log.chats
    tables = (tmp_path / "runs" / "small").rglob("episodes-*.parquet")
    rows = [row for table in tables for row in pq.read_table(table).to_pylist()]
    tossed = {json.loads(row["drawn"])["coins"] for row in rows}
    assert len(tossed) > 40
    asked = {"prover": 0, "verifier": 0}
    for chat in chats:
        body = json.dumps(chat)
        shown = [coins_ for coins_ in tossed if coins_ in body]
        if chat["messages"][0]["role"] != "system":  # whether a new model answers
            assert shown == []
            continue
        agent = "verifier" if "You are the verifier" in chat["messages"][0]["content"] else "prover"
        asked[agent] += 1
        assert len(shown) == (agent == "verifier" or coins == "public")
        if agent == "prover" and coins == "private":
            assert not COINS.search(chat["messages"][0]["content"])
    assert min(asked.values()) >= 40
