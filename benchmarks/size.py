"""How many bytes the two tables of played episodes take, for each byte of their texts.

    python benchmarks/size.py [--episodes 200] [--out docs/results/size.json]

Plays `nip` episodes of nine rounds with the rollout engine against an lm_server in this process,
whose deterministic engine answers texts of exactly the given length and never decides. What is
counted is what a run commits: the Parquet of `episodes` and `generations`, without compression (but
with the encodings) and with it. The texts are question, solution and every answer in UTF-8, each
once per episode. Arrow's size in memory is given for information.

What is covered: problems of the bundled `families` set and random letters as messages, which
compress badly. What is not: token ids and log-probabilities, which nobody asks for in this game.
"""

import argparse
import asyncio
import json
import platform
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pyarrow as pa
import yaml
from aiohttp import web
from measured_commit import describe_commit

from nip_base.spec import ServerSpec
from nip_core.game.render import Game
from nip_core.parameters import HyperParameters, load_parameters
from nip_core.progress.board import Progress
from nip_core.rollouts.client.chat_client import ChatClient, Endpoint
from nip_core.rollouts.engine import PlayedShard, play_episodes
from nip_core.rollouts.model_call import Player
from nip_core.rollouts.plan import plan_episodes
from nip_core.rollouts.shard_context import ShardContext
from nip_core.rollouts.storage.parquet import parquet_bytes
from nip_core.rollouts.storage.tables import build_tables
from nip_core.scenarios import make_scenario
from nip_core.scenarios.datasets import load_problems
from nip_lm_server.api.app import close_server, make_app, open_server
from nip_lm_server.api.connections import make_runner
from nip_lm_server.auth import KeyRing

ROUNDS = 9
MESSAGES = {"messages of 300 bytes": 300, "messages of 1,000 bytes": 1000, "tiny messages": 20}
BAR, BAR_CASE = 1.2, "messages of 300 bytes"
KEY = "benchmark"


class NoLog:
    """The journal is no part of what is counted."""

    async def append(self, record: dict[str, Any]) -> None:
        """Keep nothing."""


def settings(episodes: int) -> HyperParameters:
    """A run whose texts are limited by the replies alone."""
    return load_parameters(
        {
            "run_name": "size",
            "dataset": "families",
            "nip_protocol": {"max_message_rounds": ROUNDS},
            "rl": {"rollouts_per_iteration": episodes},
            "agents": {
                "_default": {
                    "model_provider": "SelfHosted",
                    "model_name": "deterministic",
                    "max_tokens_per_message": 1000,
                    # The verifier's last answer is of no use, as it never decides: one is enough.
                    "num_invalid_generation_retries": 0,
                }
            },
        }
    )


async def play(parameters: HyperParameters, message_bytes: int, state: Path) -> PlayedShard:
    """Play one iteration's training episodes with answers of that length."""
    replies = state / "replies.yaml"
    replies.write_text(
        yaml.safe_dump({"rules": [], "default": [{"text": f"{{letters:{message_bytes}}}"}]})
    )
    spec = ServerSpec("deterministic", "deterministic", replies=str(replies))
    services = await open_server(state, spec, KeyRing([KEY]), {})
    runner = make_runner(make_app(services), drain_s=0.5)
    try:
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        endpoint = Endpoint(f"http://127.0.0.1:{runner.addresses[0][1]}/v1", KEY)
        players = {
            name: Player(name, "deterministic", endpoint, own)
            for name, own in parameters.agents.items()
        }
        problems = load_problems(make_scenario(parameters), parameters.dataset, "train")
        specs = plan_episodes(parameters, problems, "train", 0)
        async with ChatClient(concurrency=32, timeout_s=60, retries=2) as client:
            game = Game(parameters)
            return await play_episodes(
                specs, ShardContext(game, players, client, NoLog(), {}, Progress())
            )
    finally:
        await runner.cleanup()
        await close_server(services)


def count(shard: PlayedShard, message_bytes: int) -> dict[str, Any]:
    """Bytes of the tables and of the texts in them."""
    tables = build_tables(shard.episodes, shard.generations)
    both: tuple[pa.Table, ...] = (tables.episodes, tables.generations)
    assert {len(row.text.encode()) for row in shard.generations} == {message_bytes}
    assert len(shard.generations) == ROUNDS * len(shard.episodes)
    texts = message_bytes * len(shard.generations)
    texts += sum(len((e.question + e.solution).encode()) for e in shard.episodes)
    sizes = {
        "episodes": len(shard.episodes),
        "generations": len(shard.generations),
        "message_bytes": message_bytes,
        "text_bytes": texts,
        "parquet_uncompressed_bytes": sum(len(parquet_bytes(t, "none")) for t in both),
        "parquet_bytes": sum(len(parquet_bytes(t)) for t in both),
        "arrow_bytes": sum(t.nbytes for t in both),
    }
    for kind in ("parquet_uncompressed", "parquet", "arrow"):
        sizes[f"{kind}_per_text_byte"] = round(sizes[f"{kind}_bytes"] / texts, 3)
    over = sizes["parquet_uncompressed_bytes"] - texts
    sizes["uncompressed_overhead_bytes_per_generation"] = round(over / len(shard.generations), 1)
    return sizes


def main() -> None:
    """Play, count, print, write, and fail above the bar."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--episodes", type=int, default=200)
    parser.add_argument("--out", type=Path, default=None)
    asked = parser.parse_args()
    cases = {}
    for name, message_bytes in MESSAGES.items():
        with tempfile.TemporaryDirectory() as state:
            shard = asyncio.run(play(settings(asked.episodes), message_bytes, Path(state)))
        cases[name] = count(shard, message_bytes)
    result = {
        "commit": describe_commit(),
        "bar": f"{BAR} bytes per byte of text before compression, {BAR_CASE}",
        "python": platform.python_version(),
        "pyarrow": version("pyarrow"),
        "cases": cases,
    }
    print(json.dumps(result, indent=2))
    if asked.out is not None:
        asked.out.write_text(json.dumps(result, indent=2) + "\n")
    if cases[BAR_CASE]["parquet_uncompressed_per_text_byte"] > BAR:
        raise SystemExit(f"above the bar of {BAR}")


if __name__ == "__main__":
    main()
