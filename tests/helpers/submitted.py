"""Small collections of trajectories for each training method, and a server to send them to."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from openai import AsyncOpenAI

from nip_base.spec import ServerSpec
from nip_by_hand.fine_tuning.interface import (
    DPOItem,
    EpisodeItem,
    EpisodeItemRole,
    OpenAIMessage,
    Trajectory,
    TrajectoryCollection,
)
from nip_lm_server import launch as owner
from nip_lm_server.launch import ServerHandle


def talk(question: str, answer: str, logprobs: Any = (-0.5,), **metadata: Any) -> list[EpisodeItem]:
    return [
        EpisodeItem(role=EpisodeItemRole.USER, content=question),
        EpisodeItem(
            role=EpisodeItemRole.ASSISTANT,
            content=answer,
            logprobs=list(logprobs) if isinstance(logprobs, tuple) else logprobs,
            metadata=metadata or None,
        ),
    ]


def talks(run_id: str, count: int = 10, word: str = "yes") -> TrajectoryCollection:
    """`count` conversations, each an example of its own, with reward 0 or 1 in turn."""
    return TrajectoryCollection(
        run_id=run_id,
        trajectories=[
            [Trajectory(episode=talk(f"is {i} odd", word), reward=i % 2)] for i in range(count)
        ],
    )


def pairs(run_id: str, count: int = 10) -> TrajectoryCollection:
    item = [
        DPOItem(
            prompt=[OpenAIMessage(role="user", content=f"is {i} odd")],
            chosen_response="yes",
            rejected_response=f"no {i}",
        )
        for i in range(count)
    ]
    return TrajectoryCollection(
        run_id=run_id, trajectories=[[Trajectory(episode=[one], reward=1.0)] for one in item]
    )


def episodes(run_id: str, groups: int = 5) -> TrajectoryCollection:
    """Two answers for each of `groups` questions, with token ids as vLLM writes them."""

    def sampled(*logprobs: float) -> dict[str, Any]:
        pairs = zip((5, 6, 7), logprobs, strict=True)
        return {"content": [{"token": f"token_id:{t}", "logprob": p} for t, p in pairs]}

    return TrajectoryCollection(
        run_id=run_id,
        trajectories=[
            [
                Trajectory(episode=talk(f"is {i} odd", "yes", sampled(-1, -2, -0.5)), reward=1.0),
                Trajectory(episode=talk(f"is {i} odd", "no", sampled(-2, -1, -0.1)), reward=0.0),
            ]
            for i in range(groups)
        ],
    )


async def sampled_episodes(
    url: str, key: str, model: str, run_id: str, groups: int = 5
) -> TrajectoryCollection:
    """Two answers of `model` for each of `groups` questions, rewarded in turn."""
    client = AsyncOpenAI(base_url=f"{url}/v1", api_key=key)
    async with client:
        answers = [
            await client.chat.completions.create(
                model=model,
                messages=[{"role": "user", "content": f"is {i} odd"}],
                max_tokens=4,
                n=2,
                seed=i,
                logprobs=True,
                extra_body={"return_token_ids": True},
            )
            for i in range(groups)
        ]

    def episode(question: str, choice: Any) -> list[EpisodeItem]:
        said, token_ids = choice.message.content, choice.token_ids
        return talk(question, said, choice.logprobs, token_ids=token_ids)

    return TrajectoryCollection(
        run_id=run_id,
        trajectories=[
            [
                Trajectory(episode=episode(f"is {i} odd", choice), reward=float(choice.index))
                for choice in answer.choices
            ]
            for i, answer in enumerate(answers)
        ],
    )


@contextmanager
def served(state: Path, spec: ServerSpec, variable: str) -> Iterator[ServerHandle]:
    """A server of its own process, whose key is in the environment as `variable`."""
    handle = owner.start_or_attach(spec, state, timeout_s=60)
    os.environ[variable] = handle.api_key
    try:
        yield handle
    finally:
        del os.environ[variable]
        owner.stop(handle)


def slow_spec(directory: Path, seconds: float = 60.0) -> ServerSpec:
    """The deterministic engine whose jobs take so long."""
    replies = directory / "replies.yaml"
    replies.write_text(f"training: {{seconds: {seconds}}}\n")
    return ServerSpec("deterministic", "sim", replies=str(replies))
