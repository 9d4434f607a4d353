"""Runs that the viewer shows: one trained on the deterministic engine, and one by a script."""

import asyncio
import json
import random
from pathlib import Path

import pytest
from scripted_server import scripted_server
from small_game import train_here, write_config
from viewing import HOSTILE

from nip_core import loop
from nip_core.parameters import load_parameters


@pytest.fixture(scope="session")
def trained(tmp_path_factory) -> Path:
    """The store of a small run with two iterations."""
    folder = tmp_path_factory.mktemp("trained")
    rl = {"num_iterations": 2, "rollouts_per_iteration": 40, "num_epochs": 1}
    asyncio.run(train_here(write_config(folder, rl=rl)))
    return folder / "runs"


def script(bodies):
    """Answers of a prover who writes markup, and of a verifier on a scale of eleven."""

    def answer(body):
        bodies.append(json.loads(json.dumps(body)))
        drawn = random.Random(str(body["seed"]))
        if body["model"] == "prover":
            return HOSTILE
        return drawn.choice(["I do not know", *(f"Decision: {n}" for n in (0, 2, 5, 8, 10))])

    return answer


@pytest.fixture(scope="session")
def scripted(tmp_path_factory):
    """The store of a test by scripted models, and the bodies of all requests that they got."""
    folder, bodies = tmp_path_factory.mktemp("scripted"), []

    async def play():
        async with scripted_server(script(bodies)) as server:
            model = {"model_provider": "OpenAI", "base_url": server.url, "freeze_agent": True}
            model["retry_hint"] = True
            settings = {
                "run_name": "scripted",
                "run_store": str(folder),
                "scenario": "arithmetic",
                "scenario_settings": {"train_size": 8, "validation_size": 4, "test_size": 24},
                "dataset": "chains",
                "interaction_protocol": "adp",
                "protocol_common": {"verifier_decision_scale": "likert_int_scale_11"},
                "agents": {name: {**model, "model_name": name} for name in ("prover", "verifier")},
                "rl": {"num_iterations": 0},
                "rollouts": {"episodes_per_shard": 7, "transport_retries": 0},
            }
            await loop.train(load_parameters(settings))

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPENAI_API_KEY", "key")
        asyncio.run(play())
    return folder, bodies
