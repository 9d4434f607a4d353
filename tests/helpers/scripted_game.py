"""A run of `arithmetic` whose models are scripted over a real HTTP server, and never trained.

settings       of the run `scripted`; its provers' model is called "prover", the verifier's "verifier"
scripted_run   the server, and the run on record
STEP           a step of a calculation, as a prompt has it
"""

import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from scripted_server import ScriptedServer, scripted_server

from nip_core import loop
from nip_core.parameters import HyperParameters, load_parameters

STEP = re.compile(r"^\d+: (-?\d+) ([-+]) (\d+) = (-?\d+)", re.MULTILINE)


def settings(folder: Path, url: str, **changes: Any) -> HyperParameters:
    model = {"model_provider": "OpenAI", "base_url": url, "freeze_agent": True}
    return load_parameters(
        {
            "run_name": "scripted",
            "run_store": str(folder),
            "scenario": "arithmetic",
            "scenario_settings": {"train_size": 20, "validation_size": 4, "test_size": 12},
            "dataset": "chains",
            "interaction_protocol": "adp",
            "agents": {
                name: {**model, "model_name": "verifier" if name == "verifier" else "prover"}
                for name in changes.pop("names", ("prover", "verifier"))
            },
            "rl": {"num_iterations": 0},
            "text_rl": {"test_scheme": "none"},
            "rollouts": {"episodes_per_shard": 7, "transport_retries": 0},
            **changes,
        }
    )


@asynccontextmanager
async def scripted_run(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    script: Callable[[dict[str, Any]], Any],
    **changes: Any,
) -> AsyncIterator[ScriptedServer]:
    monkeypatch.setenv("OPENAI_API_KEY", "key")
    async with scripted_server(script) as server:
        await loop.train(settings(folder, server.url, **changes))
        yield server
