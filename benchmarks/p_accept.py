"""What recording P(accept) costs: the same episodes with and without it, in turns.

    python benchmarks/p_accept.py [--model PATH] [--config quickstart] [--episodes 128]
        [--rounds 8] [--in-flight 64] [--top 20] [--out FILE]

The episodes are those of a configuration's test, played by one model from a server in a process of
its own, over HTTP, with each answer in a journal. Rounds go without, with, with, without, ...,
after one of each to warm up. Compared are medians of rounds, and the median over pairs of what one
took beside the other, of seconds and of processor seconds (of player and server together), which
hardly depend on what else the machine does. Texts must be the same; the benchmark fails otherwise.

What is covered: asking, the engine's likeliest tokens, the wire, reading them, the estimate.
What is not: training, which takes most of a run's time, and committing tables.
"""

import argparse
import asyncio
import hashlib
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

from measured_commit import describe_commit

from nip_base.spec import ServerSpec
from nip_core.game.render import Game
from nip_core.models import BUNDLED
from nip_core.parameters import HyperParameters, load_parameters
from nip_core.progress.board import Progress
from nip_core.rollouts import model_call
from nip_core.rollouts.client.chat_client import ChatClient, Endpoint
from nip_core.rollouts.engine import play_episodes
from nip_core.rollouts.model_call import Player
from nip_core.rollouts.plan import EpisodeSpec, plan_episodes
from nip_core.rollouts.shard_context import ShardContext
from nip_core.rollouts.storage.journal_segments import open_journal
from nip_core.run_store.store import open_store
from nip_core.scenarios.datasets import load_problems
from nip_lm_server import launch as owner

TICKS = os.sysconf("SC_CLK_TCK")


def read_processor_s(pid: int) -> float:
    """Read the processor seconds of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


class Bench:
    """One server and the episodes that are played at it."""

    def __init__(
        self,
        parameters: HyperParameters,
        specs: list[EpisodeSpec],
        handle: owner.ServerHandle,
        name: str,
    ) -> None:
        """Plays nothing yet; `name` is that of the model."""
        self.game, self.specs, self.handle, self.name = Game(parameters), specs, handle, name

    async def play(self, records: bool, folder: str) -> dict[str, Any]:
        """Play all episodes once; what it took, and a digest of what was said."""
        endpoint = Endpoint(f"{self.handle.url}/v1", self.handle.api_key)
        parameters = self.game.parameters
        players = {
            agent: Player(agent, self.name, endpoint, own, record_p_accept=records)
            for agent, own in parameters.agents.items()
        }
        store = open_store(folder)
        journal = open_journal(store, f"{'with' if records else 'without'}.jsonl", 0)
        concurrency = parameters.rollouts.concurrency
        began, spent = time.perf_counter(), time.process_time()
        served = read_processor_s(self.handle.pid)
        async with ChatClient(concurrency=concurrency, timeout_s=120, retries=0) as client:
            context = ShardContext(self.game, players, client, journal, {}, Progress())
            shard = await play_episodes(self.specs, context)
        row = {
            "seconds": time.perf_counter() - began,
            "player_processor_s": time.process_time() - spent,
            "server_processor_s": read_processor_s(self.handle.pid) - served,
        }
        await journal.aclose()
        journal.remove()
        generations = sorted(shard.generations, key=lambda of: of.key)
        known = [of for of in generations if of.p_accept is not None]
        assert bool(known) == records, "P(accept) is where it was not asked for, or nowhere"
        texts = json.dumps([[of.key, of.text] for of in generations])
        row["processor_s"] = row["player_processor_s"] + row["server_processor_s"]
        return {
            "records": records,
            **{name: round(value, 3) for name, value in row.items()},
            "generations": len(generations),
            "tokens": sum(of.completion_tokens for of in generations),
            "verdicts": len(known),
            "texts": hashlib.sha256(texts.encode()).hexdigest()[:12],
        }


async def measure(options: argparse.Namespace, scratch: Path) -> list[dict[str, Any]]:
    """Play in turns."""
    parameters = load_parameters(options.config, [f"run_name={'bench'}"])
    rollouts = parameters.rollouts.model_copy(update={"concurrency": options.in_flight})
    parameters = parameters.model_copy(update={"rollouts": rollouts})
    game = Game(parameters)
    problems = load_problems(game.scenario, parameters.dataset, "train")
    specs = plan_episodes(parameters, problems, "train", 0)
    specs = [*specs * (options.episodes // len(specs) + 1)][: options.episodes]
    assert len({spec.key for spec in specs}) == len(specs), "there are fewer episodes than that"
    base = Path(options.model)
    spec = ServerSpec("embedded", str(base), options={"max_batch": options.in_flight})
    handle = await asyncio.to_thread(
        owner.start_or_attach, spec, scratch / "state", timeout_s=120.0
    )
    try:
        bench = Bench(parameters, specs, handle, base.name)
        rows = []
        for number in range(-1, options.rounds):
            order = (False, True) if number % 2 == 0 else (True, False)
            for records in order:
                row = await bench.play(records, str(scratch))
                if number >= 0:  # the first round warms up
                    rows.append({"round": number, **row})
                    print(json.dumps(rows[-1]), file=sys.stderr)
    finally:
        owner.stop(handle)
    assert len({row["texts"] for row in rows}) == 1, "what is said depends on what is recorded"
    return rows


def summarise(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Medians with and without, and of the ratios of each round's pair."""
    summary: dict[str, Any] = {}
    for name in ("seconds", "processor_s", "player_processor_s", "server_processor_s"):
        sides = {
            side: [row[name] for row in rows if row["records"] is side] for side in (False, True)
        }
        ratios = [b / a for a, b in zip(sides[False], sides[True], strict=True)]
        summary[name] = {
            "without": round(statistics.median(sides[False]), 3),
            "with": round(statistics.median(sides[True]), 3),
            "ratio": round(statistics.median(ratios), 4),
            "ratios": [round(ratio, 3) for ratio in ratios],
        }
    return summary


def main() -> None:
    """Parse the command line, measure, print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--config", default="quickstart")
    parser.add_argument("--model", default=str(BUNDLED["tiny"]))
    parser.add_argument("--episodes", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--in-flight", type=int, default=64)
    parser.add_argument("--top", type=int, help="likeliest tokens asked for; default: nip's own")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.top:
        model_call.LIKELIEST = options.top
    load_before, started = os.getloadavg()[0], time.monotonic()
    with tempfile.TemporaryDirectory() as scratch:
        rows = asyncio.run(measure(options, Path(scratch)))
    result = {
        "command": " ".join(["python", "benchmarks/p_accept.py", *sys.argv[1:]]),
        "took_s": round(time.monotonic() - started, 1),
        "commit": describe_commit(),
        "machine": {
            "system": f"{platform.system()} {platform.machine()}",
            "cores": os.cpu_count(),
            "load_average_before": round(load_before, 2),
        },
        "versions": {name: version(name) for name in ("nip-loop", "torch", "transformers")},
        "summary": summarise(rows),
        "measurements": rows,
    }
    text = json.dumps(result, indent=2) + "\n"
    if options.out is not None:
        options.out.write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
