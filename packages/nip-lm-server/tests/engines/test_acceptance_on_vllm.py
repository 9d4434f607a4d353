"""P(accept) of verdicts that vLLM gives is what the answers on the wire say, and changes none."""

import math

import aiohttp
from aiohttp import web
from playing import MemoryLog, make_context

from nip_core.game.render import Game
from nip_core.parameters import load_parameters
from nip_core.rollouts.client.chat_client import ChatClient
from nip_core.rollouts.engine import play_episodes
from nip_core.rollouts.plan import plan_episodes
from nip_core.scenarios.datasets import load_problems

EPISODES = 6


async def play(game, url, key, specs, **recorded):
    """One call at a time: how vLLM batches calls has a say in the last bits."""
    async with ChatClient(concurrency=1, timeout_s=120, retries=0) as client:
        context = make_context(
            game, url, client, MemoryLog(), model="tiny", key=key, of_players=recorded
        )
        shard = await play_episodes(specs, context)
    return {row.key: row for row in shard.generations}


def estimate(content, word, temperature):
    """The odds of both words, among the likeliest tokens where the word begins, by hand."""
    text, places = "", []
    for token in content:
        places += [token] * len(token["token"])
        text += token["token"]
    top = places[text.lower().index(word)]["top_logprobs"]
    masses = dict.fromkeys(("accept", "reject"), 0.0)
    for other in top:
        written = other["token"].strip().lower()
        for name in masses:
            masses[name] += (
                math.exp(other["logprob"]) if written and name.startswith(written) else 0
            )
    assert all(masses.values())
    accept, reject = (mass ** (1 / temperature) for mass in masses.values())
    return accept / (accept + reject)


async def test_p_accept_equals_what_the_answers_on_the_wire_say(server):
    game = Game(load_parameters("quickstart", ["run_name=a"]))
    problems = load_problems(game.scenario, "families", "train")
    specs = plan_episodes(game.parameters, problems, "train", 0)[:EPISODES]
    answers, key = [], server.handle.api_key
    async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {key}"}) as session:

        async def relay(request):
            url = f"{server.handle.url}{request.path}"
            async with session.post(url, json=await request.json()) as response:
                answers.append(await response.json())
                return web.json_response(answers[-1], status=response.status)

        app = web.Application()
        app.router.add_post("/v1/chat/completions", relay)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
        with_it = await play(game, url, key, specs, record_p_accept=True)
        by_text = [
            (choice["message"]["content"], choice["logprobs"]["content"])
            for answer in answers
            for choice in answer["choices"]
            if choice["logprobs"]
        ]
        without = await play(game, url, key, specs)
        await runner.cleanup()
    decided = [row for row in with_it.values() if row.decision in (0, 1)]
    assert len(decided) == EPISODES and {row.decision for row in decided} == {0, 1}
    for row in decided:
        word = "accept" if row.decision == 1 else "reject"
        # Several answers may have the same text: it is one of those.
        found = [estimate(content, word, 0.5) for text, content in by_text if text == row.text]
        assert min(abs(row.p_accept - p) for p in found) < 1e-6
    assert {key: row.text for key, row in without.items()} == {
        key: row.text for key, row in with_it.items()
    }
    assert {row.p_accept for row in without.values()} == {None}
