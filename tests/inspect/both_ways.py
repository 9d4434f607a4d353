"""The same episodes, played by nip and by Inspect.

write_config  a configuration that both play
play_here     its episodes by `nip play`, measured
play_there    the same as a task of Inspect
"""

import asyncio
import os
from pathlib import Path
from typing import Any

import yaml
from inspect_ai import eval
from inspect_ai.log import EvalLog

from nip_core import loop
from nip_core.parameters import load_parameters
from nip_core.rollouts.plan import TEST
from nip_core.run_store.run import RunStore
from nip_core.stages.session import open_session
from nip_inspect.registry import play

MODEL = "openai-api/nip/deterministic"
EPISODES = int(os.environ.get("NIP_INSPECT_EPISODES", "200"))
"""Of each protocol; quick with 20."""


def write_config(folder: Path, url: str, **changes: Any) -> Path:
    """A game on the server at `url`; `changes` replace top-level settings."""
    agent = {
        "model_provider": "SelfHosted",
        "model_name": "deterministic",
        "max_tokens_per_message": 64,
        "temperature": 0.7,
        "chat_format": "alternating",
    }
    settings: dict[str, Any] = {
        "run_name": "both",
        "run_store": str(folder / "runs"),
        "dataset": "problems",
        "agents": {"_default": agent},
        "lm_server": {"engine": "deterministic", "url": url},
        "rl": {"num_iterations": 1, "rollouts_per_iteration": 20},
        "rollouts": {"failure_threshold": 1.0},  # episodes that fail are compared, too
        "dataset_options": {"max_test_size": EPISODES, "max_train_size": 40},
        **changes,
    }
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(settings))
    return path


def play_here(config: Path, split: str = TEST) -> RunStore:
    """The run, in which a split of the first iteration is played and measured."""

    async def work() -> RunStore:
        async with open_session(load_parameters(config)) as session:
            await loop.play_and_measure(session, 0, split)
            return session.run

    return asyncio.run(work())


def play_there(
    folder: Path, limit: int | None = None, *, requests: bool = False, **parameters: Any
) -> EvalLog:
    """The log of the task with these parameters; with raw `requests` if asked for."""
    [log] = eval(
        play(**parameters),
        model=MODEL,
        limit=limit,
        log_dir=str(folder),
        display="none",
        log_model_api=requests,
        log_realtime=False,  # nobody looks on
        max_retries=2,
    )
    return log
