"""One episode of any protocol on the real engine, its players scripted over a real HTTP server.

A script says what each agent answers in each round: ``{0: {"verifier": "Question: why?"}}``; a
list is for the attempts at one turn, an answer with log-probabilities is `with_tokens(...)`.
Those in the script must be asked, and nobody else. `Play` has what the server saw and what was
recorded.
"""

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from aiohttp import web
from scripted_server import scripted_server
from stored_rows import stored_shard

from nip_core.game.answer_rows import AnswerPlace
from nip_core.game.render import Game
from nip_core.parameters import HyperParameters, load_parameters
from nip_core.progress.board import Progress
from nip_core.rollouts.client.chat_client import ChatClient
from nip_core.rollouts.client.completions import Endpoint
from nip_core.rollouts.engine import play_episodes
from nip_core.rollouts.model_call import Player
from nip_core.rollouts.plan import EpisodeSpec, plan_episodes
from nip_core.rollouts.shard_context import ShardContext
from nip_core.scenarios import Problem

Script = Mapping[int, Mapping[str, Any]]
Seen = tuple[str, str | None, str]  # role, name, content

BARE_PROMPT = Path(__file__).with_name("bare_prompt.txt")


def bare_settings(protocol: str, *, retries: int = 0, **more: Any) -> HyperParameters:
    """Settings with a system prompt that says nothing about the protocol."""
    agents = more.pop("agents", {})
    default = {
        "model_provider": "SelfHosted",
        "model_name": "m",
        "num_invalid_generation_retries": retries,
        "retry_hint": False,  # what is said is compared with the rules of the protocol alone
        "system_prompt_template_path": str(BARE_PROMPT),
    }
    return load_parameters(
        {
            "run_name": "a",
            "dataset": "x",
            "interaction_protocol": protocol,
            "rollouts": {"failure_threshold": 1.0},
            **more,
            "agents": {"_default": {**default, **agents.get("_default", {})}, **agents},
        }
    )


@dataclass
class Play:
    """What happened in the episode, in order of rounds."""

    game: Game
    spec: EpisodeSpec
    episode: dict[str, Any] = field(default_factory=dict)
    generations: list[dict[str, Any]] = field(default_factory=list)
    bodies: dict[tuple[int, str, int], dict[str, Any]] = field(default_factory=dict)

    @property
    def asked(self) -> list[tuple[int, str]]:
        """Round and agent of each first attempt."""
        names = self.game.protocol.agent_names
        turns = {(round_, agent) for round_, agent, _ in self.bodies}
        return sorted(turns, key=lambda turn: (turn[0], names.index(turn[1])))

    def saw(self, round_: int, agent: str, attempt: int = 0) -> list[Seen]:
        """The chat after the system prompt, which is checked here."""
        about = f"{self.spec.problem.question}\n{self.spec.problem.solution}"
        assert self.system_prompt(round_, agent) == f"Play your part.\n{about}"
        return self.chat(round_, agent, attempt)

    def system_prompt(self, round_: int, agent: str) -> str:
        first = self.bodies[round_, agent, 0]["messages"][0]
        assert first == {"role": "system", "content": first["content"]}
        return str(first["content"])

    def chat(self, round_: int, agent: str, attempt: int = 0) -> list[Seen]:
        """What follows the system prompt."""
        _, *chat = self.bodies[round_, agent, attempt]["messages"]
        return [(m["role"], m.get("name"), m["content"]) for m in chat]

    @property
    def rewards(self) -> dict[str, float]:
        return {entry["agent"]: entry["reward"] for entry in self.episode["rewards"]}

    @property
    def verdict(self) -> tuple[str, int, int, float | None]:
        """Outcome, rounds played, decision and its value."""
        e = self.episode
        return e["outcome"], e["rounds"], e["decision"], e["decision_value"]

    @property
    def recorded(self) -> list[tuple[int, str, int, str, int, bool]]:
        """Round, agent, attempt, text, decision, and whether it is valid."""
        names = self.game.protocol.agent_names
        rows = [
            (
                g["round"],
                g["agent"],
                g["attempt"],
                g["text"],
                g["decision"],
                not g["invalid_reason"],
            )
            for g in self.generations
        ]
        return sorted(rows, key=lambda row: (row[0], names.index(row[1]), row[2]))

    @property
    def last_round_message(self) -> Seen:
        return ("system", None, self.game.prompts.last_round_message)


class _Log:
    async def append(self, record: dict[str, Any]) -> None:
        json.dumps(record)


async def play(
    parameters: HyperParameters,
    script: Script,
    *,
    y: int = 1,
    seed: int = 0,
    stance: int | None = None,
) -> Play:
    """Play one episode of this seed and drawn stance on a problem with this label."""
    problem = Problem("p0", "q0", "Return x plus 0.", "x + 0", y, "sums", None)
    planned = plan_episodes(parameters, [problem], "train", 0)[0]
    spec = replace(planned, seed=seed, stance=stance)
    game = Game(parameters)
    played = Play(game, spec)
    attempts = range(1 + max(a.num_invalid_generation_retries for a in parameters.agents.values()))
    places = {
        spec.generation_seed(parameters.seed, AnswerPlace(round_, agent, attempt)): (
            round_,
            agent,
            attempt,
        )
        for round_ in range(game.protocol.max_message_rounds)
        for agent in game.protocol.agent_names
        for attempt in attempts
    }

    def answer(body: dict[str, Any]) -> Any:
        round_, agent, attempt = places[body["seed"]]
        assert body["model"] == f"{agent}-model"
        played.bodies[round_, agent, attempt] = body
        said = script.get(round_, {}).get(agent)
        if said is None:
            return web.json_response({"error": {"message": "not in the script"}}, status=400)
        return said[min(attempt, len(said) - 1)] if isinstance(said, list) else said

    async with scripted_server(answer) as server:
        players = {
            agent: Player(agent, f"{agent}-model", Endpoint(server.url, "key"), own)
            for agent, own in parameters.agents.items()
        }
        async with ChatClient(concurrency=16, timeout_s=10, retries=0) as client:
            context = ShardContext(game, players, client, _Log(), {}, Progress())
            shard = await asyncio.wait_for(play_episodes([spec], context), 30)
    stored = stored_shard(shard)
    (played.episode,) = stored.episodes
    played.generations = stored.generations
    expected = {(round_, agent) for round_, turns in script.items() for agent in turns}
    assert set(played.asked) == expected, f"asked {played.asked}"
    return played


def with_tokens(*tokens: tuple[str, Mapping[str, float]]) -> dict[str, Any]:
    """An answer of these tokens, each with the log-probabilities of the likeliest there."""
    content = [
        {
            "token": token,
            "logprob": top[token],
            "top_logprobs": [{"token": t, "logprob": p} for t, p in top.items()],
        }
        for token, top in tokens
    ]
    return {"text": "".join(token for token, _ in tokens), "logprobs": {"content": content}}


def said(name: str | None, *texts: str) -> Sequence[Seen]:
    """Messages of another agent, as they are seen."""
    return [("user", name, text) for text in texts]


def own(text: str) -> Seen:
    return ("assistant", None, text)
