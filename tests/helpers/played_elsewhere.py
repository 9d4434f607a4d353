"""What another program plays, and nip with it: the tests of nip_inspect and of nip_verifiers.

write_config  a configuration that both play
play_here     its episodes by `nip play`, measured
serving       a server that answers equal requests equally
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from nip_base.spec import ServerSpec
from nip_core import loop
from nip_core.parameters import load_parameters
from nip_core.rollouts.plan import TEST
from nip_core.run_store.run import RunStore
from nip_core.session.opening import open_session
from nip_lm_server import launch

SCENARIOS = {
    "arithmetic": "chains",
    "reading": "passages",
    "bags": "lists",
    "chain": "chains",
    "graphs": "pairs",
    "solutions": "functions",
}
PROTOCOLS = {"solutions": "adp", "chain": "refereed"}
"""With a dataset of each, beside the usual one."""


def write_config(folder: Path, url: str, episodes: int, **changes: Any) -> Path:
    """A game of so many episodes on the server at `url`; `changes` replace top-level settings."""
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
        "dataset_options": {"max_test_size": episodes, "max_train_size": 40},
        **changes,
    }
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(settings))
    return path


def scenario_settings(scenario: str) -> dict[str, Any]:
    """What a configuration needs to play few problems of a scenario."""
    return {
        "scenario": scenario,
        "dataset": SCENARIOS[scenario],
        "interaction_protocol": PROTOCOLS.get(scenario, "nip"),
        "dataset_options": {"max_test_size": 6, "max_train_size": 20},
    }


def play_here(config: Path, split: str = TEST) -> RunStore:
    """The run, in which a split of the first iteration is played and measured."""

    async def work() -> RunStore:
        async with open_session(load_parameters(config)) as session:
            await loop.play_and_measure(session, 0, split)
            return session.run

    return asyncio.run(work())


@contextmanager
def serving(state: Path) -> Iterator[launch.ServerHandle]:
    """A server with the deterministic engine."""
    handle = launch.start_or_attach(
        ServerSpec("deterministic", "deterministic"), state, timeout_s=600
    )
    try:
        yield handle
    finally:
        launch.stop(handle)
