"""Every protocol with every scenario that has a tool: limits, results and prices, counted anew.

A verifier calls by a line of text, and by OpenAI's `tools` at a server: both are the same on record.
"""

import json
from collections import defaultdict
from random import Random

import pytest
from playing import play_at
from scripted_server import calling, refuse_request, scripted_server

from nip_core.library import make_game, play
from nip_core.protocols import protocol_names

PLACES = ["1", "3", "nine", "0", "400"]
ARGUMENTS = {"Look": PLACES, "Check": PLACES, "Run": ["1", "(", "2, 'a'"]}
GAMES = [
    *((s, p) for s in ("arithmetic", "reading", "code_validation") for p in protocol_names()),
    *(("chain", p) for p in ("adp", "refereed", "solo_verifier")),
]
PER_TURN, PER_EPISODE, PRICE = 2, 3, 0.125


def find_label(prompt):
    """The label of the tool in a system prompt, or None."""
    words = ('begins with "{}:"', 'the tool "{}"')
    labels = (
        (label, told.format(w))
        for label in ARGUMENTS
        for told, w in zip(words, (label, label.lower()), strict=True)
    )
    return next((label for label, told in labels if told in prompt), None)


def choose(system, seed):
    """What an agent says, by its seed alone: a text, and the label and argument of a call."""
    draw, label = Random(seed), find_label(system)
    if label and draw.random() < 0.6:
        first = draw.choice(["", "Let me see.\n", "Result: 7\n"])
        return first, label, draw.choice(ARGUMENTS[label])
    if "Decision: accept" in system and draw.random() < 0.7:
        return draw.choice(["Decision: accept", "Decision: reject"]), None, None
    return "Question: why?" if "Question: <" in system else "It is so.", None, None


def speak(chats):
    """All agents, by lines of text; `chats` gets every chat."""

    async def ask(messages, seed, n=1, **sampling):
        chats.append(messages)
        text, label, argument = choose(messages[0]["content"], seed)
        return text if label is None else f"{text}{label}: {argument}"

    return ask


def call_tools(body):
    """The same agents at OpenAI's API, which refuses what belongs to no call."""
    system = body["messages"][0]["content"]
    text, label, argument = choose(system, body["seed"])
    assert ("tools" in body) == (find_label(system) is not None)
    if (refusal := refuse_request(body)) is not None or label is None:
        return refusal or text
    name = body["tools"][0]["function"]["name"]
    assert name == label.lower() and not any(f"{label}:" in m["content"] for m in body["messages"])
    return calling((name, json.dumps({"argument": argument})), text=text or None)


def make(scenario, protocol, price, *more):
    settings = [
        *more,
        *(f"tool.per_turn={PER_TURN}", f"tool.per_episode={PER_EPISODE}", f"tool.price={price}"),
        *("dataset_options.max_test_size=6", "dataset_options.max_train_size=2"),
        *("rollouts.failure_threshold=1", "agents._default.num_invalid_generation_retries=2"),
    ]
    if (scenario, protocol) == ("chain", "adp"):
        settings.append("scenario_settings.checked=drawn")
    return make_game(protocol=protocol, scenario=scenario, settings=settings)


async def play_with(scenario, protocol, price):
    chats = []
    return await play(make(scenario, protocol, price), speak(chats)), chats


@pytest.mark.parametrize(("scenario", "protocol"), GAMES)
async def test_limits_results_and_prices_are_those_of_the_rows(scenario, protocol):
    played, chats = await play_with(scenario, protocol, PRICE)
    free, _ = await play_with(scenario, protocol, 0)
    # 1. Answers and results are the same at any price.
    columns = ["key", "text", "tool_result", "invalid_reason"]
    rows = played.generations.to_pylist()
    assert rows and free.generations.select(columns) == played.generations.select(columns)
    # 2. Calls by turn, in order; the tool is used as often as the limits allow, and then refused.
    calls = defaultdict(list)
    for row in sorted(rows, key=lambda r: (r["round"], r["exchange"], r["attempt"])):
        if row["tool_result"] is not None:
            assert row["invalid_reason"] is None and row["decision"] == 2
            calls[row["episode"], row["agent"], row["round"]].append(row["tool_result"])
    used = defaultdict(int)
    for (episode, agent, _), results in sorted(calls.items()):
        allowed = min(PER_TURN, PER_EPISODE - used[episode, agent])
        assert len(results) <= allowed + 1
        is_refused = ["no use of" in result for result in results]
        assert is_refused == [number >= allowed for number in range(len(results))]
        used[episode, agent] += min(len(results), allowed)
    # 3. Each use has its price, and nobody else pays.
    for paid, unpaid in zip(played.episodes.to_pylist(), free.episodes.to_pylist(), strict=True):
        without = {entry["agent"]: entry["reward"] for entry in unpaid["rewards"]}
        for entry in paid["rewards"]:
            is_over = paid["outcome"] != "failed"
            price = PRICE * used[paid["key"], entry["agent"]] * is_over
            assert entry["reward"] == pytest.approx(without[entry["agent"]] - price)
    # 4. Who has no tool reads no result.
    told = {row["tool_result"] for row in rows} - {None}
    for messages in chats:
        if find_label(messages[0]["content"]) is None:
            assert not any(result in m["content"] for m in messages for result in told)
    assert calls or protocol not in ("nip", "adp", "solo_verifier")


@pytest.mark.parametrize("form", ["alternating", "named"])
@pytest.mark.parametrize(("scenario", "protocol"), GAMES)
async def test_calls_by_openais_tools_are_the_same_on_record(scenario, protocol, form):
    by_line, _ = await play_with(scenario, protocol, PRICE)
    more = [
        "tool.call=native",
        "agents.verifier.freeze_agent=true",
        f"agents._default.chat_format={form}",
    ]
    game = make(scenario, protocol, PRICE, *more)
    async with scripted_server(call_tools) as server:
        native = await play_at(server.url, game.parameters, game.plan(), game=game.game)
    assert not any(
        isinstance(e["error"], str) and "HTTP" in e["error"] for e in native.shard.episodes
    )
    columns = ["text", "tool_result", "invalid_reason", "decision", "exchange", "attempt"]
    expected = {row["key"]: row for row in by_line.generations.to_pylist()}
    assert {row["key"] for row in native.shard.generations} == {*expected}
    for row in native.shard.generations:
        for name in columns:
            ours, line = row[name], expected[row["key"]][name]
            assert (ours.strip(), 0) == (line.strip(), 0) if name == "text" else ours == line
    rewards = {row["key"]: row["rewards"] for row in by_line.episodes.to_pylist()}
    for episode in native.typed.episodes:
        paid = {entry["agent"]: entry["reward"] for entry in rewards[episode.key]}
        assert {**episode.rewards} == pytest.approx(paid)
