"""A small run on the deterministic engine, for tests of the whole loop.

write_config    its settings
train_here      the loop alone: no Prefect, and the run's own server in this process
rerun_here      the same, from a stage of an iteration on
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml
from server_here import servers_here

from nip_core import loop
from nip_core.parameters import load_parameters
from nip_core.records.rewinds import Stage
from nip_core.session.opening import open_session
from nip_core.upkeep.rerun import rerun

FEW = {"num_iterations": 1, "rollouts_per_iteration": 40, "num_epochs": 1}
"""As `rl`, the shortest training of both groups: 10 examples for each."""


def write_config(folder: Path, **changes: Any) -> Path:
    """A configuration whose run lives in `folder`; `changes` replace top-level settings."""
    settings: dict[str, Any] = {
        "run_name": "small",
        "run_store": str(folder / "runs"),
        "dataset": "families",
        "seed": 11,
        "agents": {
            "_default": {
                "model_provider": "SelfHosted",
                "model_name": "deterministic",
                "max_tokens_per_message": 32,
            }
        },
        "lm_server": {"engine": "deterministic"},
        "protocol_common": {"shared_reward": True},
        "nip_protocol": {"max_message_rounds": 3, "min_message_rounds": 3},
        "rl": {"num_iterations": 2, "rollouts_per_iteration": 50, "num_epochs": 1},
        "rollouts": {"episodes_per_shard": 20},
        "dataset_options": {"max_test_size": 20, "max_train_size": 200},
        "fine_tuning": {"poll_interval_s": 0.05},
        **changes,
    }
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(settings))
    return path


async def train_here(
    config: Path | str, changes: Iterable[str] = (), retry_failed_jobs: bool = False
) -> dict[str, Any]:
    """The summary of the run, trained as far as its settings say. What Prefect adds is not shown."""
    with servers_here():
        parameters = load_parameters(str(config), list(changes))
        return await loop.train(parameters, retry_failed_jobs=retry_failed_jobs)


async def rerun_here(
    config: Path | str, iteration: int, stage: Stage, changes: Iterable[str] = ()
) -> dict[str, Any]:
    """The same of a run that is done again from a stage of an iteration on."""
    with servers_here():
        async with open_session(load_parameters(str(config), list(changes))) as session:
            await rerun(session, iteration, stage, token=f"{iteration}:{stage}")
            return await loop.go_on(session)
