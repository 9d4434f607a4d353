"""The same episodes, played by nip and by Inspect.

write_config  a configuration that both play
play_there    its episodes as a task of Inspect
"""

import os
from pathlib import Path
from typing import Any

import played_elsewhere
from inspect_ai import eval
from inspect_ai.log import EvalLog
from played_elsewhere import play_here

from nip_inspect.registry import play

__all__ = ["EPISODES", "MODEL", "play_here", "play_there", "write_config"]

MODEL = "openai-api/nip/deterministic"
EPISODES = int(os.environ.get("NIP_INSPECT_EPISODES", "200"))
"""Of each protocol; quick with 20."""


def write_config(folder: Path, url: str, **changes: Any) -> Path:
    """A game on the server at `url`; `changes` replace top-level settings."""
    return played_elsewhere.write_config(folder, url, EPISODES, **changes)


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
