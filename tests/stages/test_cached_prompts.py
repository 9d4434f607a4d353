"""Prompt tokens that a provider has read before cost what the settings say, on record and at a cap.

A real server bills each call here, with cached tokens as they come: no two runs have the same.
"""

import asyncio
import itertools
import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from random_play import game, play
from scripted_game import settings
from scripted_server import DROP, scripted_server

from nip_core import loop
from nip_core.errors import BudgetError, SettingsError
from nip_core.parameters.blocks.loop_settings import Price
from nip_core.records.attack_measured import add_up_efforts
from nip_core.records.blocks import BlockPart
from nip_core.records.iterations import Records
from nip_core.records.spent_in_all import add_up_spending
from nip_core.rollouts.client.thoughts import read_usage
from nip_core.rollouts.storage.schema import EARLIER, TIMINGS
from nip_core.rollouts.storage.shard_manifests import committed_shards
from nip_core.rollouts.storage.table_rows import Timing, read_rows
from nip_core.rollouts.storage.tables import StoredRollouts, commit_shard, join_shards
from nip_core.run_store.facts import ShardFacts, read_split_digest
from nip_core.run_store.run import RunStore
from nip_core.run_store.store import open_store
from nip_core.stages.publishing import list_spending
from nip_core.upkeep.verify import verify_run

HELPERS = Path(__file__).parents[1] / "helpers"
PRICE = {"prompt_usd": 200.0, "completion_usd": 800.0}
CACHED = {**PRICE, "cached_prompt_usd": 50.0}
MODELS = ("prover", "verifier")
PLAYED = {
    "rl": {"num_iterations": 1, "rollouts_per_iteration": 8},
    "text_rl": {"test_scheme": "first_and_last"},
    "rollouts": {"episodes_per_shard": 3, "transport_retries": 0, "concurrency": 4},
}
TREES = {
    "trainer": "pure_text_malt",
    "pure_text_malt": {"frozen_agents_generate_one_response": False},
}
NOT_COUNTS = (-5, 10**6, "many", True, 0, None)


@pytest.fixture(autouse=True)
def _key(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "key")


class Provider:
    """Answers, and writes the bill."""

    def __init__(self, start=0):
        self.bill = []
        self._calls = itertools.count(start)

    def __call__(self, body):
        number, n = next(self._calls), body.get("n", 1)
        prompt = 10 + len(json.dumps(body["messages"])) // 4
        cached = prompt * (3 + number % 7) // 10
        said = cached if number % 5 else NOT_COUNTS[number // 5 % len(NOT_COUNTS)]
        self.bill.append((prompt, cached if number % 5 else 0, 3 * n))
        details = {"prompt_tokens": prompt, "prompt_tokens_details": {"cached_tokens": said}}
        text = "Decision: accept" if body["model"] == "verifier" else "It is right."
        return [{"text": text, "usage": details}, *[text] * (n - 1)]

    def usd(self, price):
        full, low = price["prompt_usd"], price.get("cached_prompt_usd", price["prompt_usd"])
        return sum(
            (prompt - cached) * full + cached * low + generated * price["completion_usd"]
            for prompt, cached, generated in self.bill
        ) / 1e6  # fmt: skip


def priced(folder, url, price, **changes):
    return settings(folder, url, prices=dict.fromkeys(MODELS, price), **{**PLAYED, **changes})


def stored(folder):
    return RunStore(open_store(folder), "scripted")


def spent(folder):
    return add_up_spending(Records(stored(folder)))


@pytest.mark.parametrize("trainer", [{}, TREES], ids=["plain", "trees"])
async def test_dollars_on_record_are_those_of_the_bill(trainer, tmp_path):
    provider = Provider()
    async with scripted_server(provider) as server:
        parameters = priced(tmp_path, server.url, CACHED, **trainer)
        result = await loop.train(parameters)
    if trainer:
        assert any(generated > 3 for *_, generated in provider.bill)
    # 1. By hand; a price alone for cached tokens makes the difference, on all of the run's pages.
    total = spent(tmp_path)
    cached = sum(cached for _, cached, _ in provider.bill)
    assert sum(total.cached.values()) == cached > 0
    assert total.usd(parameters) == pytest.approx(provider.usd(CACHED), abs=1e-9)
    assert result["costs"]["usd"]["spent"] == total.usd(parameters)
    full = priced(tmp_path, server.url, PRICE, **trainer)
    assert total.usd(full) == pytest.approx(provider.usd(PRICE), abs=1e-9)
    assert total.usd(full) > total.usd(parameters)
    run = stored(tmp_path)
    assert [row["USD"] for row in list_spending(run, parameters)][
        -1
    ] == f"{provider.usd(CACHED):.2f}"
    # An attack's effort is a figure of the game, so what was cached has no part in it.
    [_, effort] = add_up_efforts(run, parameters, (0, 1)).values()
    assert effort == add_up_efforts(run, full, (0, 1))[1] and effort.usd
    # 2. They stand with the times of their calls, once for all answers to a prompt.
    for record in Records(run).all():
        for split in ("test", "train"):
            shards = committed_shards(run.store, run.rollouts(record.iteration, split)).values()
            for shard in shards:
                rollouts = StoredRollouts.of_shard(run.store, shard)
                timings = [*read_rows(rollouts.timings(), Timing)]
                names = ("key", "agent", "prompt_tokens")
                rows = rollouts.generations(names).to_pylist()
                assert [row["key"] for row in rows] == [timing.key for timing in timings]
                told = {}
                for row, timing in zip(rows, timings, strict=True):
                    assert timing.cached_tokens is None or timing.cached_tokens > 0
                    told[row["agent"]] = told.get(row["agent"], 0) + (timing.cached_tokens or 0)
                assert ShardFacts.from_manifest(shard).cached_tokens == told
        # 3. A block of iterations repeats them; one of before there were any has none.
        document = json.loads(json.dumps(record.to_block()))
        assert BlockPart.model_validate(document).spent == record.spent
        for stage in document["spent"].values():
            del stage["cached"]
        bare = {stage: replace(part, cached={}) for stage, part in record.spent.items()}
        assert BlockPart.model_validate(document).spent == bare
    assert not verify_run(run).problems


async def test_without_the_price_all_stays_as_it_was_and_it_may_come_later(tmp_path):
    digests, written = [], []
    for start, price in ((0, PRICE), (3, CACHED)):
        folder, provider = tmp_path / str(start), Provider(start)
        async with scripted_server(provider) as server:
            await loop.train(priced(folder, server.url, price))
            run = stored(folder)
            digests.append([read_split_digest(run.store, run.rollouts(0, "train"))])
            digests[-1] += [run.read_json(run.metrics(0, name)) for name in ("train", "test")]
            written.append(run.open().parameters["prices"])
            # The same run goes on with another price: nothing is played again.
            calls = len(provider.bill)
            result = await loop.train(priced(folder, server.url, CACHED))
            assert len(provider.bill) == calls
        assert result["costs"]["usd"]["spent"] == pytest.approx(provider.usd(CACHED), abs=1e-9)
    # What was cached is no part of the game.
    assert digests[0] == digests[1]
    assert written[0]["prover"] == {"_type": "Price", **PRICE, "training_usd": 0.0}
    assert written[1]["prover"]["cached_prompt_usd"] == 50.0


PROGRAM = """
import asyncio, sys
from scripted_game import settings
from test_cached_prompts import CACHED, priced
from pathlib import Path
from nip_core import loop
one = {"episodes_per_shard": 3, "transport_retries": 0, "concurrency": 1}
asyncio.run(loop.train(priced(Path(sys.argv[1]), sys.argv[2], CACHED, rollouts=one)))
"""


@pytest.mark.parametrize("call", [4, pytest.param(30, marks=pytest.mark.long)])
async def test_a_run_that_is_killed_and_goes_on_has_the_dollars_of_its_bill(call, tmp_path):
    provider, children = Provider(), []

    def script(body):
        if len(provider.bill) == call and len(children) == 1:
            os.kill(children[0].pid, signal.SIGKILL)
            children[0].wait()
            return DROP
        return provider(body)

    async with scripted_server(script) as server:
        one = {**PLAYED["rollouts"], "concurrency": 1}
        parameters = priced(tmp_path, server.url, CACHED, rollouts=one)
        path = os.pathsep.join([str(HELPERS), str(Path(__file__).parent)])
        command = [sys.executable, "-c", PROGRAM, str(tmp_path), server.url]
        environment = {**os.environ, "PYTHONPATH": path}
        for killed in (True, False):
            children.append(subprocess.Popen(command, env=environment, stderr=subprocess.PIPE))
            _, said = await asyncio.to_thread(children[-1].communicate)
            assert children[-1].returncode == (-signal.SIGKILL if killed else 0), said
            # By journals, by shards and by metrics, whichever there are.
            usd = spent(tmp_path).usd(parameters)
            assert usd == pytest.approx(provider.usd(CACHED), abs=1e-9)
            assert sum(spent(tmp_path).cached.values()) == sum(c for _, c, _ in provider.bill)
            assert (len(provider.bill) == call) == killed


async def test_a_budget_goes_by_the_lower_price(tmp_path):
    whole = Provider()
    async with scripted_server(whole) as server:
        await loop.train(priced(tmp_path / "whole", server.url, CACHED))
    low, high = whole.usd(CACHED), whole.usd(PRICE)
    free = {**PRICE, "cached_prompt_usd": 0}
    # 1. Enough by the lower price, not by the full one: the run ends, without a stop.
    provider, cap = Provider(), {"usd": (low + high) / 2}
    async with scripted_server(provider) as server:
        await loop.train(priced(tmp_path / "enough", server.url, CACHED, budget=cap))
        assert len(provider.bill) == len(whole.bill) and provider.usd(PRICE) > cap["usd"]
        # Without that price it stops.
        with pytest.raises(BudgetError):
            await loop.train(priced(tmp_path / "full", server.url, PRICE, budget=cap))
    # 2. Not enough: it stops over the cap by what was in flight, and goes on with a higher one.
    for price in (CACHED, free):
        provider, folder = Provider(), tmp_path / str(price["cached_prompt_usd"])
        cap = {"usd": 0.4 * whole.usd(price)}
        async with scripted_server(provider) as server:
            with pytest.raises(BudgetError, match=r"budget\.usd: the cap of .* is reached"):
                await loop.train(priced(folder, server.url, price, budget=cap))
            provider_usd = provider.usd(price)
            assert spent(folder).usd(priced(folder, server.url, price)) == pytest.approx(
                provider_usd, abs=1e-9
            )
            provider.bill, last = provider.bill[:-4], provider.bill
            assert provider.usd(price) < cap["usd"] <= provider_usd
            provider.bill = last
            await loop.train(priced(folder, server.url, price))
            assert len(provider.bill) == len(whole.bill)


def test_a_count_that_can_not_be_is_none():
    def cached(**usage):
        return read_usage({"prompt_tokens": 10, "completion_tokens": 1, **usage}).cached_tokens

    for value in NOT_COUNTS:
        assert cached(prompt_tokens_details={"cached_tokens": value}) is None
    assert cached(prompt_tokens_details="?") is cached(prompt_tokens_details=None) is None
    assert cached(prompt_tokens_details={"cached_tokens": 10}) == 10
    assert cached(prompt_cache_hit_tokens=4) == 4
    assert cached(prompt_cache_hit_tokens=4, prompt_tokens_details={"cached_tokens": 6}) == 6


def test_a_price_above_that_of_the_prompt_is_refused(tmp_path):
    dear = {**PRICE, "cached_prompt_usd": 250}
    with pytest.raises(
        SettingsError, match=r"prover: cached_prompt_usd is 250, above .* 200; give"
    ):
        priced(tmp_path, "http://127.0.0.1:1/v1", dear)
    assert priced(tmp_path, "http://127.0.0.1:1/v1", {**PRICE, "cached_prompt_usd": 200})
    assert "cached_prompt_usd" not in Price().to_dict()
    assert Price(cached_prompt_usd=0.0).to_dict()["cached_prompt_usd"] == 0.0


def test_timings_of_before_the_column_are_read_beside_those_with_it(tmp_path):
    store = open_store(tmp_path)
    tables = play(game(), 0, 4).tables
    assert tables.timings["cached_tokens"].null_count == tables.timings.num_rows
    earlier = tables.timings.drop_columns(["cached_tokens"])
    earlier = earlier.replace_schema_metadata(EARLIER["timings"].metadata)
    assert earlier.schema.equals(EARLIER["timings"], check_metadata=True)
    commit_shard(store, "d", "0000", replace(tables, timings=earlier))
    commit_shard(store, "d", "0001", play(game(), 1, 4).tables)
    manifest = join_shards(store, "d", ["0000", "0001"])
    assert "cached_tokens" not in manifest.extra
    timings = StoredRollouts(store, ["d"]).timings()
    assert timings.schema.equals(TIMINGS) and timings["cached_tokens"].null_count == len(timings)
    assert [row.cached_tokens for row in read_rows(timings, Timing)] == [None] * len(timings)
