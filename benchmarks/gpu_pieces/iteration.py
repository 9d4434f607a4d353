"""An iteration of the paper's size over random weights, warm: episodes, then two jobs.

A model of random weights can't play: its answers have no form. So the chats of a game are asked for
with given lengths, by nip's own client through the server: two agents, each an adapter of its own,
speak in turn, each sees what the other said. Half of the episodes are then what two jobs train on.

play            all episodes, from the first call to the last answer
jobs            from asking for both to the first answer of both new models, the engine beside them
jobs, asleep    the same with an engine that leaves the card
whole           play and jobs together, against the bar

Starts of servers are not counted: they are rows of the piece `engines`.
"""

import asyncio
import json
import os
import time
from functools import partial
from pathlib import Path
from typing import Any

from gpu_pieces.chats import adapter_of
from gpu_pieces.jobs import small_rows, transcript
from gpu_pieces.kills import answered
from gpu_pieces.models import words
from gpu_pieces.results import Piece, Row
from gpu_pieces.serving import Served, engine_names
from gpu_pieces.sizes import Session, Shape
from nip_base.machine.devices import compile_caches
from nip_core.rollouts.client.chat_client import ChatClient
from nip_core.rollouts.client.completions import Endpoint

AGENTS = 2
BATCH_SIZE = 8
CALL_S, RETRIES = 300.0, 3

Messages = list[dict[str, str]]


class Players:
    """The episodes' chats, with so many in flight as the largest number that is measured."""

    def __init__(self, session: Session, served: Served, models: list[str], *, ignores_end: bool):
        self._sizes, self._models = session.sizes, models
        self._endpoint = Endpoint(served.through.url + "/v1", served.through.key)
        self._more = {"ignore_eos": True} if ignores_end else {}
        self.calls = self.prompt_tokens = self.completion_tokens = self.retries = 0
        self.slowest_s = 0.0

    async def play(self) -> list[list[Messages]]:
        """Every episode; the transcripts of each by agent."""
        async with ChatClient(
            concurrency=max(self._sizes.in_flight), timeout_s=CALL_S, retries=RETRIES
        ) as client:
            episodes = (self._episode(client, number) for number in range(self._sizes.episodes))
            return list(await asyncio.gather(*episodes))

    async def _episode(self, client: ChatClient, number: int) -> list[Messages]:
        sizes = self._sizes
        prompts = (words(sizes.prompt_tokens, AGENTS * number + agent) for agent in range(AGENTS))
        seen: list[Messages] = [[{"role": "user", "content": prompt}] for prompt in prompts]
        for turn in range(sizes.rounds):
            agent = turn % AGENTS
            answer = await client.complete(
                self._endpoint,
                {
                    "model": self._models[agent],
                    "messages": seen[agent],
                    "max_tokens": sizes.answer_tokens,
                    "temperature": 1.0,
                    "seed": number * sizes.rounds + turn,
                    **self._more,
                },
            )
            self._count(answer)
            # Tokens that stand for no text, one after the other, are nothing to learn from.
            text = answer.text if (answer.text or "").strip() else words(1, turn)
            seen[agent].append({"role": "assistant", "content": text})
            said = f"{text}{words(sizes.said_tokens, turn)}"
            _hear(seen[1 - agent], said)
        return seen

    def _count(self, answer: Any) -> None:
        self.calls += 1
        self.prompt_tokens += answer.prompt_tokens
        self.completion_tokens += answer.completion_tokens
        self.retries += answer.transport_retries
        self.slowest_s = max(self.slowest_s, answer.latency_s)


def _hear(seen: Messages, said: str) -> None:
    """Add what another agent said, to the message before it if that was no answer."""
    if seen[-1]["role"] == "user":
        seen[-1] = {"role": "user", "content": seen[-1]["content"] + said}
    else:
        seen.append({"role": "user", "content": said})


def play(session: Session, served: Served, engine: str, models: list[str], dump: Path) -> Row:
    """All episodes; their transcripts are kept for the jobs."""
    players = Players(session, served, models, ignores_end=engine == "vllm")
    served.until(lambda: all(answered(served, model) for model in models), "the first answers")
    began = time.monotonic()
    seen = asyncio.run(players.play())
    play_s = time.monotonic() - began
    dump.write_text(json.dumps(seen[: max(1, len(seen) // 2)]))
    return {
        "play_s": round(play_s, 2),
        "in_flight": max(session.sizes.in_flight),
        "calls": players.calls,
        "calls_per_s": round(players.calls / play_s, 2),
        "prompt_tokens": players.prompt_tokens,
        "completion_tokens": players.completion_tokens,
        "completion_tokens_per_s": round(players.completion_tokens / play_s, 1),
        "retries": players.retries,
        "slowest_call_s": round(players.slowest_s, 2),
    }


def _datasets(session: Session, dump: Path) -> list[list[dict[str, Any]]]:
    """The rows of each job: the transcripts that were played, or made ones of their lengths."""
    sizes = session.sizes
    if dump.exists():
        seen = json.loads(dump.read_text())
    else:
        tokens = sizes.prompt_tokens + sizes.rounds * (sizes.answer_tokens + sizes.said_tokens)
        count = max(5, sizes.episodes // 2)
        seen = [[transcript(tokens, number) for _ in range(AGENTS)] for number in range(count)]
    while len(seen) < 10:  # a job takes ten examples at least
        seen += seen
    return [[{"messages": _until_answer(both[agent])} for both in seen] for agent in range(AGENTS)]


def _until_answer(messages: Messages) -> Messages:
    """Without what was heard after the last answer, of which nothing is learned."""
    last = max(i for i, message in enumerate(messages) if message["role"] == "assistant")
    return messages[: last + 1]


def jobs(session: Session, served: Served, dump: Path) -> Row:
    """Two jobs, one after the other on one card, until both models answer."""
    datasets = _datasets(session, dump)
    served.until(lambda: answered(served), "the first answer")
    epochs = session.sizes.epochs
    began = time.monotonic()
    ids = [
        served.submit(rows, seed, n_epochs=epochs, batch_size=BATCH_SIZE, learning_rate=1e-4)
        for seed, rows in enumerate(datasets)
    ]
    figures = []
    for id in ids:
        job = served.wait(id)
        name = job["fine_tuned_model"]
        served.until(partial(answered, served, name), f"the first answer of {name}")
        training = served.result(name)
        figures.append(
            {
                "ended_after_s": round(time.monotonic() - began, 2),
                "tokens_per_s": round(training["tokens"] / max(training["train_s"], 1e-3), 1),
                "swap_s": (job.get("nip") or {}).get("result", {}).get("swap_s"),
                **training,
            }
        )
    facts = served.engine()
    return {
        "jobs_s": round(time.monotonic() - began, 2),
        "examples": [len(rows) for rows in datasets],
        "jobs": figures,
        "engine": {key: facts.get(key) for key in ("epoch", "restarts", "state")},
    }


def _agents(session: Session, served: Served) -> Row:
    """Two adapters, by small jobs that also compile what the large ones need."""
    first = adapter_of(session, served)
    second = served.wait(served.submit(small_rows(session, 2), 2, learning_rate=1e-3))
    return {**first, "names": [first["name"], second["fine_tuned_model"]]}


def _whole(shape: Shape, played: Row, trained: Row) -> Row:
    whole_s = round(played["play_s"] + trained["jobs_s"], 2)
    return {"whole_s": whole_s, "bar_s": shape.bar_s, "within": whole_s <= shape.bar_s}


def measure(session: Session, piece: Piece, shape_name: str) -> None:
    """Everything over one shape; only what has not been measured starts a server."""
    engines, vllm = engine_names(session)
    shape = session.shape(shape_name)
    # What one server compiled, the next one has.
    os.environ.update(compile_caches(session.scratch / "caches"))
    beside = {} if session.rehearsal else {"gpu_memory_utilization": session.sizes.stays_beside}
    for engine, reason in engines.items():
        agents, played, trained, asleep, whole = names = [
            f"{engine} {row}" for row in ("agents", "play", "jobs", "jobs, asleep", "whole")
        ]
        if reason:
            piece.without(reason, *names)
        place = session.scratch / f"iteration-{shape.name}" / engine
        place.mkdir(parents=True, exist_ok=True)
        dump = place / "transcripts.json"
        with Served(
            session, shape, engine, place / "beside", vllm, share_device="no", **beside
        ) as served:
            rows: dict[str, Row | None] = {}
            made = piece.row(agents, partial(_agents, session, served))
            models = made["names"] if made else []
            if made is None:
                piece.without("there are no adapters", played, trained)
            rows[played] = piece.row(played, partial(play, session, served, engine, models, dump))
            rows[trained] = piece.row(trained, partial(jobs, session, served, dump))
        one, other = rows[played], rows[trained]
        if one is not None and other is not None:
            piece.row(whole, partial(_whole, shape, one, other))
        piece.without("a part of it is missing", whole)
        with Served(session, shape, engine, place / "asleep", vllm, share_device="yes") as served:
            piece.row(asleep, partial(jobs, session, served, dump))
    piece.finish()
