"""A capped run stops cleanly, over its cap by no more than what was in flight, and goes on.

Whatever provider is asked, and however models are trained: all go through the same gate. What is
spent is read from the records, and compared here with what servers have answered.
"""

import asyncio
import shutil
from types import SimpleNamespace

import pytest
from job_documents import job_record
from playing import MemoryLog, make_context, problems
from scripted_server import scripted_server
from server_here import servers_here
from small_game import FEW, write_config

from nip_core import loop
from nip_core.costs.caps import Budget
from nip_core.errors import BudgetError, SettingsError
from nip_core.game.render import Game
from nip_core.jobs.document import count_billed_tokens
from nip_core.parameters import load_parameters
from nip_core.progress.board import Progress
from nip_core.records.iterations import Records
from nip_core.records.spending import count_shared_prompts
from nip_core.records.spent_in_all import add_up_spending
from nip_core.rollouts.branching import Branching, no_branching
from nip_core.rollouts.client.chat_client import ChatClient
from nip_core.rollouts.engine import play_episodes
from nip_core.rollouts.plan import plan_episodes
from nip_core.rollouts.storage.table_rows import recorded_calls
from nip_core.run_store.documents import decode, encode
from nip_core.run_store.run import RunStore
from nip_core.run_store.store import open_store
from nip_core.session.opening import open_session
from nip_core.session.prepare import fork_run
from nip_core.upkeep.rerun import rerun
from nip_core.upkeep.verify import verify_run

CONCURRENCY = 4
PRICE = {"prompt_usd": 1.0, "completion_usd": 2.0, "training_usd": 3.0}
PROMPT, ANSWER = 7, 3  # tokens that the scripted server says
CAPS = {"tokens": 130, "usd": 170e-6}  # reached by the 13th plain call
PROVIDERS = {
    "OpenAI": {"model_provider": "OpenAI", "model_name": "gpt-4o-mini"},
    "OpenRouter": {"model_provider": "OpenRouter", "model_name": "some/model"},
    "SelfHosted": {"model_provider": "SelfHosted", "model_name": "deterministic"},
    "stand-in": {"model_provider": "OpenAI", "model_name": "m", "use_dummy_api": True},
}
METHODS = {
    "supervised": {},
    "dpo": {"trainer": "pure_text_malt"},
    "trajectories": {"trainer": "pure_text_grpo"},
}
CASES = [
    (provider, method, cap)
    for provider in PROVIDERS
    for method in METHODS
    for cap in CAPS
    if not (provider == "OpenRouter" and method != "supervised")  # trains nobody
    and not (provider == "OpenAI" and method == "trajectories")  # gives no token ids
    and not (provider == "stand-in" and cap == "usd")  # is free
]


def capped(folder, provider, method, cap):
    agent = {"max_tokens_per_message": 32, **PROVIDERS[provider]}
    agent["freeze_agent"] = provider == "OpenRouter"
    if method == "trajectories":
        agent["fine_tune_from_scratch"] = False
    changes = {
        "agents": {"_default": agent},
        "prices": {agent["model_name"]: PRICE},
        "budget": {cap: CAPS[cap]},
        "rollouts": {"concurrency": CONCURRENCY},
        "rl": FEW | {"rollouts_per_iteration": 16},
    }
    return load_parameters(write_config(folder, **changes, **METHODS[method]))


@pytest.mark.parametrize(("provider", "method", "cap"), CASES)
async def test_calls_stop_at_a_cap_and_overshoot_it_by_what_was_in_flight(
    provider, method, cap, tmp_path
):
    parameters = capped(tmp_path, provider, method, cap)
    progress, log, game = Progress(), MemoryLog(), Game(parameters)
    budget = Budget(RunStore(open_store(tmp_path / "runs"), "small"), parameters, progress)
    budget.look()

    async def script(body):
        await asyncio.sleep(0.005)
        return ["Why?"] * body.get("n", 1)

    specs = plan_episodes(parameters, problems(16), "train", 0)
    branch = Branching(parameters, game.protocol, 0) if method == "dpo" else no_branching
    async with (
        scripted_server(script) as server,
        ChatClient(concurrency=CONCURRENCY, timeout_s=10, retries=0, admit=budget.call) as client,
    ):
        context = make_context(game, server.url, client, log, progress=progress, branch=branch)
        with pytest.raises(
            BudgetError, match=rf"budget\.{cap}: the cap of .* is reached, with .* spent; raise"
        ):
            await play_episodes(specs, context)
        assert server.in_flight == 0 and server.most_in_flight == CONCURRENCY
    # 1. All that the server has answered is on record, and counted as it was billed.
    calls = recorded_calls(log.records, "log").values()
    rows = [call.generation for call in calls]
    shared = count_shared_prompts(rows, [call.timing for call in calls])
    billed = [(PROMPT, ANSWER * body.get("n", 1)) for body in server.bodies]
    assert sum(row.prompt_tokens for row in rows) - sum(shared.values()) == sum(
        prompt for prompt, _ in billed
    )
    assert budget.spent.tokens == sum(map(sum, billed))
    assert bool(shared) == (method == "dpo" and provider != "OpenRouter")
    # 2. Without those that were in flight at the end the cap was not reached.
    worth = [prompt + answer if cap == "tokens" else (prompt + 2 * answer) / 1e6
             for prompt, answer in billed]  # fmt: skip
    assert CAPS[cap] <= sum(worth) + 1e-12
    assert sum(worth) - sum(sorted(worth)[-CONCURRENCY:]) < CAPS[cap]
    # 3. It was said before that little was left.
    assert progress.warning.startswith(f"budget.{cap}: ")


@pytest.mark.parametrize("cap", [*CAPS, None])
def test_a_job_begins_only_if_it_fits_into_what_is_left(cap, tmp_path, monkeypatch):
    changes = {
        "agents": {"_default": PROVIDERS["SelfHosted"]},
        "prices": {"deterministic": PRICE},
        "budget": {} if cap is None else {cap: {"tokens": 1000, "usd": 3000e-6}[cap]},
    }
    parameters = load_parameters(write_config(tmp_path, **changes))
    budget = Budget(RunStore(open_store(tmp_path / "runs"), "small"), parameters, Progress())
    budget.admit_job("the job", "prover", 1000)
    budget.admit_job("the job", "prover", None)
    if cap is None:
        budget.admit_job("the job", "prover", 10**9)
        return
    with pytest.raises(
        BudgetError, match=rf"budget\.{cap}: the job takes about .* is left; it was not"
    ):
        budget.admit_job("the job", "prover", 1001)


def test_a_job_that_goes_on_counts_with_what_it_is_expected_to_take():
    attempt = job_record(trained_tokens=5).model_dump(exclude={"previous"})
    done = job_record(previous=[attempt], trained_tokens=7)
    assert count_billed_tokens(done, 100) == 12
    assert count_billed_tokens(job_record(id="j", previous=[attempt]), 100) == 105
    assert count_billed_tokens(job_record(creates_open=1), 100) == 100
    assert count_billed_tokens(job_record(id="j", outcome="succeeded"), 100) == 100
    assert count_billed_tokens(job_record(id="j", outcome="failed"), 100) == 0
    assert count_billed_tokens(job_record(state="intent"), 100) == 0


async def go(config, *changes):
    """What came of a run that is started, or goes on; and how many calls were answered."""
    progress = Progress()
    with servers_here():
        parameters = load_parameters(str(config), changes)
        try:
            async with open_session(parameters, progress=progress) as session:
                result = await loop.go_on(session)
        except BudgetError as error:
            result = error
    return SimpleNamespace(result=result, calls=progress.calls, warning=progress.warning)


async def test_a_run_that_is_stopped_by_its_budget_goes_on_and_pays_nothing_again(tmp_path):
    config = write_config(tmp_path, rl=FEW, rollouts={"concurrency": CONCURRENCY})
    run = RunStore(open_store(tmp_path / "runs"), "small")

    def spent():
        return add_up_spending(Records(run))

    # 1. It stops in the middle of a shard, over the cap by what was in flight.
    first = await go(config, "budget.tokens=30000")
    assert isinstance(first.result, BudgetError) and "the cap of 30,000 tokens is reached" in str(
        first.result
    )
    stopped_at = spent()
    assert 30_000 <= stopped_at.tokens < 30_000 + CONCURRENCY * 500
    assert stopped_at.calls == first.calls and first.warning
    # 2. The same again stops at once; less than is spent is refused, with both figures.
    again = await go(config, "budget.tokens=30000")
    assert isinstance(again.result, BudgetError) and again.calls == 0
    with pytest.raises(SettingsError) as refused:
        await go(config, "budget.tokens=29999")
    for words in ("budget.tokens: 29,999 tokens is below", f"{stopped_at.tokens:,} tokens"):
        assert words in str(refused.value)
    # 3. Enough to play, not to train: no job is asked for.
    dear = ("prices.deterministic.training_usd=1000000", "budget.usd=1")
    second = await go(config, *dear)
    assert "budget.usd: the job of group" in str(second.result)
    assert "$1.00 of $1.00 is left; it was not submitted" in str(second.result)
    assert spent().trained_tokens == 0
    # What was played is measured all the same.
    assert run.read_json(run.metrics(0, "train"))["episodes"] == 40
    # 4. Without a cap it ends, and every answer was paid once.
    last = await go(config)
    assert last.result["status"] == "finished" and not last.warning
    calls = first.calls + second.calls + last.calls
    assert spent().calls == calls == 240
    assert spent().tokens == last.result["costs"]["tokens"]["spent"]
    # 5. It is the run that it would have been without stopping, and shows what was expected.
    assert not verify_run(run).problems
    costs = last.result["costs"]["tokens"]
    assert 0 < costs["expected"] < costs["at_most"] and costs["budget"] is None
    html = (tmp_path / "runs" / "small" / "report.html").read_text()
    assert "Estimate and costs of the whole run" in html
    # 6. What is done again was spent all the same; a fork has paid nothing of what it copies.
    before = spent()
    with servers_here():
        async with open_session(load_parameters(str(config), ["budget.tokens=900000"])) as session:
            await rerun(session, 0, "play", token="t")
            assert session.budget.spent.tokens == before.tokens
    assert spent() == before
    shutil.rmtree(tmp_path / "runs")


@pytest.mark.parametrize("stage", ["play", "train"])
@pytest.mark.long
async def test_a_fork_that_does_again_what_it_copied_pays_for_that_alone(stage, tmp_path):
    config = write_config(tmp_path, rl=FEW)
    with servers_here():
        await loop.train(load_parameters(str(config)))
    source, fork = (RunStore(open_store(tmp_path / "runs"), name) for name in ("small", "again"))
    paid = add_up_spending(Records(source))
    parameters = load_parameters(str(config), ["run_name=again"])
    fork_run(load_parameters(str(config)), parameters)
    assert add_up_spending(Records(fork)).tokens == 0
    with servers_here():
        async with open_session(parameters) as session:
            # 1. What is set aside was paid by the source.
            await rerun(session, 0, stage, token="t")
            assert add_up_spending(Records(fork)).tokens == 0
            await loop.go_on(session)
        spent = add_up_spending(Records(fork))
        # 2. What is done again is paid once more: the jobs in any case, and the test after them.
        assert spent.trained == paid.trained
        of_stages = Records(source).of(0).spent
        left = {"train": ("test", "play"), "play": ("test",)}[stage]
        assert spent.calls == paid.calls - sum(of_stages[s].calls for s in left)
        # 3. Set aside in its turn it stays paid, also where the server counted no tokens of a job.
        for group in spent.trained:
            document = (
                tmp_path / "runs" / "again" / "iterations" / "0000" / "jobs" / f"{group}.json"
            )
            job = decode(document.read_bytes(), str(document))
            document.write_bytes(encode({**job, "trained_tokens": None}))
        expected = {group: facts.tokens for group, facts in Records(fork).of(0).datasets.items()}
        async with open_session(parameters) as session:
            await rerun(session, 0, stage, token="u")
        again = add_up_spending(Records(fork))
        assert again.calls == spent.calls and again.trained == expected
        assert all(expected.values())


def test_a_cap_in_dollars_needs_prices_and_caps_are_above_zero(tmp_path):
    paid = {"agents": {"_default": {"model_provider": "OpenAI", "model_name": "gpt-4o-mini"}}}
    for changes, said in (
        ({**paid, "budget": {"usd": 5}}, "prices: {gpt-4o-mini: {prompt_usd: P, "),
        ({"budget": {"usd": 0}}, "budget.usd"),
        ({"budget": {"tokens": -1}}, "budget.tokens"),
        ({"budget": {"dollars": 5}}, "budget.dollars"),
    ):
        with pytest.raises(SettingsError, match=said):
            load_parameters(write_config(tmp_path, **changes))
    load_parameters(write_config(tmp_path, budget=None))
