"""Episodes played against a scripted HTTP server, with what the server saw.

play       settings, script -> Played
problems   small problems that say their number
saying     a script in which each agent says its next text
"""

import asyncio
import json
from dataclasses import replace
from typing import Any

from scripted_server import scripted_server
from stored_rows import stored_shard

from nip_core.game.answer_rows import AnswerPlace
from nip_core.game.render import Game
from nip_core.parameters import RandomAgentParameters
from nip_core.progress.board import Progress
from nip_core.rollouts.branching import no_branching
from nip_core.rollouts.client.chat_client import ChatClient
from nip_core.rollouts.client.completions import Endpoint
from nip_core.rollouts.engine import play_episodes
from nip_core.rollouts.model_call import RANDOM_MODEL, Player
from nip_core.rollouts.plan import cut_into_shards, plan_episodes
from nip_core.rollouts.shard_context import ShardContext
from nip_core.rollouts.storage.row_tables import build_tables
from nip_core.rollouts.storage.table_rows import Generation, recorded_calls, recorded_labels
from nip_core.scenarios import Problem


class MemoryLog:
    """Keeps finished generations for as long as the process lives."""

    def __init__(self):
        self.records = []

    async def append(self, record):
        self.records.append(json.loads(json.dumps(record)))

    def by_key(self):
        generations = [record for record in self.records if "generation" in record]
        return {record["generation"]["key"]: record for record in generations}


def problems(count, **changes):
    return [
        replace(
            Problem(f"p{i}", f"q{i}", f"Return x plus {i}.", f"x + {i}", i % 2, "sums", None),
            **changes,
        )
        for i in range(count)
    ]


class Played:
    """Episodes that were played, with what the server saw."""

    def __init__(self, game, specs, server, shard, log, progress):
        self.game, self.parameters, self.specs = game, game.parameters, specs
        self.server, self.log, self.progress = server, log, progress
        self.typed, self.shard = shard, stored_shard(shard)

    @property
    def episodes(self):
        return sorted(self.shard.episodes, key=lambda row: row["problem"])

    def generations(self, problem="p0"):
        [episode] = [e for e in self.shard.episodes if e["problem"] == problem]
        rows = [g for g in self.shard.generations if g["episode"] == episode["key"]]
        return sorted(rows, key=lambda g: (g["round"], g["agent"], g["attempt"]))

    def answers(self, problem="p0"):
        """The generations of an episode in order, typed."""
        return [Generation(**row) for row in self.generations(problem)]

    def rewards(self, problem="p0"):
        [episode] = [e for e in self.typed.episodes if e.problem == problem]
        return episode.rewards

    def seed(self, problem, round_, agent, attempt=0):
        spec = next(s for s in self.specs if s.problem.id == problem)
        return spec.generation_seed(self.parameters.seed, AnswerPlace(round_, agent, attempt))

    def tables(self):
        return build_tables(self.typed.episodes, self.typed.generations)


def make_context(
    game, url, client, log, recorded=None, failures=None, model=None, key="key", progress=None,
    branch=no_branching, labels=None, of_players=None, joins=False,
):  # fmt: skip
    """Each agent plays with `model`, or with one that is named like it.

    `recorded` are records of a journal by key, `labels` those of solutions, `of_players` further
    fields of all players with a model.
    """
    endpoint = Endpoint(url, key, joins=joins)
    players = {
        agent: Player(agent, RANDOM_MODEL, None, own)
        if isinstance(own, RandomAgentParameters)
        else Player(agent, model or f"{agent}-model", endpoint, own, **(of_players or {}))
        for agent, own in game.parameters.agents.items()
    }
    progress = progress or Progress()
    return ShardContext(
        game,
        players,
        client,
        log,
        recorded_calls((recorded or {}).values(), "journal"),
        progress,
        failures,
        branch=branch,
        labels=recorded_labels(({"label": row} for row in (labels or {}).values()), "journal"),
    )


async def play_at(
    url, parameters, specs, num_shards=1, log=None, timeout_s=10, follows=False, game=None,
    **more: Any,
) -> Played:  # fmt: skip
    """Play `specs` against the server at `url`, cut into `num_shards`; `more` as for the context."""
    log, game = log or MemoryLog(), game or Game(parameters)
    progress = Progress()
    async with ChatClient(
        concurrency=parameters.rollouts.concurrency,
        timeout_s=timeout_s,
        retries=2,
        follows=follows,
        on_retry=progress.count_retry,
    ) as client:
        context = make_context(game, url, client, log, progress=progress, **more)
        parts = [
            await asyncio.wait_for(play_episodes(part, context), 30)
            for part in cut_into_shards(specs, -(-len(specs) // num_shards))
        ]
    whole = parts[0]
    for part in parts[1:]:
        whole.episodes.extend(part.episodes)
        whole.generations.extend(part.generations)
        whole.timings.extend(part.timings)
        whole.failed.extend(part.failed)
    return Played(game, specs, None, whole, log, context.progress)


async def play(parameters, script, *, on=None, **more: Any) -> Played:
    """Plays the training episodes of iteration 0, by default that of a single problem."""
    specs = plan_episodes(parameters, on or problems(1), "train", 0)
    async with scripted_server(script) as server:
        played = await play_at(server.url, parameters, specs, **more)
    played.server = server
    return played


def saying(**texts):
    """Each agent says its next text; which one is due follows from the chat."""

    def script(body):
        return texts[agent_of(body)][sum(m["role"] == "assistant" for m in body["messages"])]

    return script


def agent_of(body):
    return body["model"].removesuffix("-model")


def number_of(body):
    """Which of `problems` this is about."""
    return int(body["messages"][0]["content"].split("Return x plus ")[1].split(".")[0])
