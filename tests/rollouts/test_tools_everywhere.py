"""Every protocol with every scenario that has a tool: limits, results and prices, counted anew."""

from collections import defaultdict
from random import Random

import pytest

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
    return next((label for label in ARGUMENTS if f'begins with "{label}:"' in prompt), None)


def speak(chats):
    """All agents, by their seeds alone; `chats` gets every chat."""

    async def ask(messages, seed, n=1, **sampling):
        system, draw = messages[0]["content"], Random(seed)
        chats.append(messages)
        label = find_label(system)
        if label and draw.random() < 0.6:
            first = draw.choice(["", "Let me see.\n", "Result: 7\n"])
            return f"{first}{label}: {draw.choice(ARGUMENTS[label])}"
        if "Decision: accept" in system and draw.random() < 0.7:
            return draw.choice(["Decision: accept", "Decision: reject"])
        return "Question: why?" if "Question: <" in system else "It is so."

    return ask


async def play_with(scenario, protocol, price):
    settings = [
        *(f"tool.per_turn={PER_TURN}", f"tool.per_episode={PER_EPISODE}", f"tool.price={price}"),
        *("dataset_options.max_test_size=6", "dataset_options.max_train_size=2"),
        *("rollouts.failure_threshold=1", "agents._default.num_invalid_generation_retries=2"),
    ]
    if (scenario, protocol) == ("chain", "adp"):
        settings.append("scenario_settings.checked=drawn")
    game = make_game(protocol=protocol, scenario=scenario, settings=settings)
    chats = []
    return await play(game, speak(chats)), chats


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
