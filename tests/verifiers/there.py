"""The same episodes, played by nip and by verifiers' own command.

write_config  a configuration that both play
evaluate      vf-eval, as a process
episodes_of   what it has written, by verifiers' own reader
play_in_code  an episode of an environment, without the command
"""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import played_elsewhere
import verifiers.v1 as vf
from verifiers.v1.utils.trace_store import read_episodes

EPISODES = int(os.environ.get("NIP_VERIFIERS_EPISODES", "200"))
"""Of each protocol; quick with 20."""


def write_config(folder: Path, url: str, **changes: Any) -> Path:
    """A game on the server at `url`; `changes` replace top-level settings."""
    return played_elsewhere.write_config(folder, url, EPISODES, **changes)


def evaluate(
    folder: Path, url: str, *options: str, model: str = "deterministic"
) -> subprocess.CompletedProcess[str]:
    """Run vf-eval on the server at `url`; what it writes is `folder`/run."""
    command = [
        *(str(Path(sys.executable).parent / "vf-eval"), "nip-verifiers", *options),
        *("--model", model, "--client.base-url", f"{url}/v1"),
        *("--client.api-key-var", "NIP_API_KEY", "--no-push", "--no-rich"),
        *("--output-dir", str(folder), "--run.name", "run"),
    ]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=3000)


def episodes_of(folder: Path) -> list[vf.WireEpisode]:
    """The episodes of a run, as a consumer without this package reads them."""
    return read_episodes(folder / "run", vf.WireTrace)


async def play_in_code(
    env: vf.Env, client: vf.ClientConfig, model: str, task: vf.Task | None = None
) -> vf.Episode:
    """An episode of the environment's first task, or another."""
    context = vf.ModelContext(model=model, client=client, sampling=vf.SamplingConfig())
    async with env.serving():
        return await env.run_episode(task or next(iter(env.taskset)), context)
