"""Trajectories, jobs and configurations that the tests of ART share."""

from pathlib import Path
from typing import Any

import art
from openai.types.chat.chat_completion import Choice
from served import Server

from nip_by_hand.fine_tuning.art_adapter import (
    ARTBackendConfig,
    ARTTrainerAdapter,
    ARTTrainerAdapterConfig,
)
from nip_by_hand.fine_tuning.interface import EpisodeItem, Trajectory, TrajectoryCollection

names = {"model": "m"}
"""What models are called in this test. A server knows the same data of the same model again."""


def choice(text: str, ids: list[int] | None = None, logprob: float = -0.5) -> Choice:
    """A sampled answer; with `ids` its tokens are named by them, as ART's servers do it."""
    names = [f"token_id:{i}" for i in ids] if ids else ["x", "y"]
    return Choice.model_validate(
        {
            "index": 0,
            "finish_reason": "stop",
            "message": {"role": "assistant", "content": text},
            "logprobs": {
                "content": [{"token": n, "logprob": logprob, "top_logprobs": []} for n in names]
            },
        }
    )


def group(name: str, rewards: list[float], **more: Any) -> art.TrajectoryGroup:
    """One task, answered once for each reward."""
    return art.TrajectoryGroup(
        art.Trajectory(
            messages_and_choices=[
                {"role": "user", "content": f"Task {name}?"},
                choice(f"Answer {index}.", more.get("ids")),
            ],
            reward=reward,
        )
        for index, reward in enumerate(rewards)
    )


def groups(
    count: int = 4, rewards: tuple[float, ...] = (0.0, 1.0, 1.0)
) -> list[art.TrajectoryGroup]:
    return [group(str(number), list(rewards)) for number in range(count)]


def model(
    base_model: str = "sim", name: str | None = None, base_path: str = ".art", **config: Any
) -> art.TrainableModel:
    return art.TrainableModel(
        name=name or names["model"],
        project="p",
        base_model=base_model,
        base_path=base_path,
        _internal_config=art.dev.InternalModelConfig(**config) if config else None,
    )


def episode(*roles: str) -> list[EpisodeItem]:
    return [
        EpisodeItem(
            role=role,
            content=f"{role} {index}",
            logprobs={"content": [{"token": "a", "logprob": -0.5}]}
            if role == "assistant"
            else None,
        )
        for index, role in enumerate(roles)
    ]


def collection(run_id: str = "run", answers: int = 3, tasks: int = 4) -> TrajectoryCollection:
    return TrajectoryCollection(
        run_id=run_id,
        trajectories=[
            [
                Trajectory(
                    episode=[
                        EpisodeItem(role="user", content=f"Task {task}?"),
                        EpisodeItem(
                            role="assistant",
                            content=f"Answer {answer}.",
                            logprobs={"content": [{"token": "a", "logprob": -0.5}]},
                        ),
                    ],
                    reward=float(answer),
                )
                for answer in range(answers)
            ]
            for task in range(tasks)
        ],
    )


def config(server: Server, state: Path, **more: Any) -> ARTTrainerAdapterConfig:
    """The configuration of an adapter on a server."""
    host, port = server.url.removeprefix("http://").split(":")
    backend = {
        "ip": host,
        "port": int(port),
        "base_model": "sim",
        "api_key": server.api_key,
        "name": names["model"],
        **more.pop("backend", {}),
    }
    return ARTTrainerAdapterConfig(
        backend=ARTBackendConfig(**backend), state_dir=str(state), **more
    )


def adapter(server: Server, state: Path, **more: Any) -> ARTTrainerAdapter:
    return ARTTrainerAdapter(config(server, state, **more))
