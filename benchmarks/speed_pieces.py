"""The pieces of the speed bar: each does one kind of work, and counts its processor seconds.

    python benchmarks/speed_pieces.py PIECE [PIECE ...]

`speed_bar.py` starts this with the code of one commit or another on the path, so it goes by
interfaces that both have. Prints a line of JSON for each piece: by figure the processor seconds
and the number of units. A piece that fails prints its error in their place.
"""

import asyncio
import contextlib
import io
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import psutil

Figures = dict[str, tuple[float, float]]
"""By figure, processor seconds and units."""
WORDS = "A prover says that the second step of four is right, since seven and five make twelve."


def count_cpu_s() -> float:
    """Count the processor seconds of this process and all below it, those that ended included."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = time.process_time() + ended.ru_utime + ended.ru_stime
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            seconds += sum(process.cpu_times()[:4])
    return seconds


@dataclass
class Clock:
    """Processor seconds of a block."""

    seconds: float = 0.0


@contextlib.contextmanager
def clock() -> Iterator[Clock]:
    """Measure a block."""
    measured, began_s = Clock(), count_cpu_s()
    yield measured
    measured.seconds = count_cpu_s() - began_s


async def ask_chats(server: Any, bodies: list[dict[str, Any]], at_once: int) -> list[Any]:
    """Ask for chat completions, so many at a time; returns their usage."""
    places = asyncio.Semaphore(at_once)
    headers = {"Authorization": f"Bearer {server.api_key}"}
    async with aiohttp.ClientSession(headers=headers) as session:

        async def ask(body: dict[str, Any]) -> Any:
            url = f"{server.url}/v1/chat/completions"
            async with places, session.post(url, json=body) as response:
                answer = await response.json()
                if response.status != 200:
                    raise RuntimeError(f"HTTP {response.status}: {answer}")
                return answer["usage"]

        return await asyncio.gather(*map(ask, bodies))


def make_chats(count: int, words: str, max_tokens: int, model: str = "tiny") -> list[Any]:
    """Make the bodies of so many different chats."""
    return [
        {
            "model": model,
            "messages": [{"role": "user", "content": f"{number}. {words}"}],
            "max_tokens": max_tokens,
            "temperature": 1.0,
            "seed": number,
        }
        for number in range(count)
    ]


def generate(place: Path) -> Figures:
    """Generate with the embedded engine, eight answers in flight; read long prompts."""
    from nip_lm_server.testing import serve_double

    with serve_double(place, ("tiny",), has_weights=True) as server:
        asyncio.run(ask_chats(server, make_chats(8, WORDS, 16), 8))  # everything is loaded
        with clock() as generated:
            usage = asyncio.run(ask_chats(server, make_chats(24, WORDS, 128), 8))
        with clock() as read:
            prompts = asyncio.run(ask_chats(server, make_chats(24, 10 * WORDS, 1), 8))
    return {
        "generated token": (generated.seconds, sum(u["completion_tokens"] for u in usage)),
        "prompt token": (read.seconds, sum(u["prompt_tokens"] for u in prompts)),
    }


def call(place: Path) -> Figures:
    """Ask the scripted engine, 64 calls in flight."""
    from nip_lm_server.testing import serve_double

    with serve_double(place, ("scripted",)) as server:
        asyncio.run(ask_chats(server, make_chats(64, WORDS, 32, "scripted"), 64))
        with clock() as called:
            asyncio.run(ask_chats(server, make_chats(2000, WORDS, 32, "scripted"), 64))
    return {"call through nip serve": (called.seconds, 2000)}


def play(place: Path) -> Figures:
    """Play episodes with functions that answer at once."""
    from nip_core.library import make_game
    from nip_core.library import play as play_game

    async def argue(messages: Any, **sampling: Any) -> str:
        return WORDS

    async def judge(messages: Any, **sampling: Any) -> str:
        return "Decision: accept"

    settings = ["dataset_options.max_test_size=300", "run_name=bar"]
    game = make_game(protocol="debate", scenario="arithmetic", settings=settings)
    models = {"prover0": argue, "prover1": argue, "verifier": judge}
    asyncio.run(play_game(game, models, limit=20))
    with clock() as played:
        episodes = asyncio.run(play_game(game, models)).episodes
    return {"episode of debate": (played.seconds, episodes.num_rows)}


def train(place: Path) -> Figures:
    """Train LoRA adapters by two jobs; what the longer one takes more is the training."""
    from nip_lm_server.testing import serve_double

    answer = {"role": "assistant", "content": WORDS}
    rows = [{"messages": [*chat["messages"], answer]} for chat in make_chats(64, WORDS, 1)]
    data = "".join(json.dumps(row) + "\n" for row in rows).encode()
    seconds, tokens = [], []
    with serve_double(place, ("tiny",), has_weights=True) as server:
        for epochs in (1, 6):
            with clock() as trained:
                tokens.append(asyncio.run(_run_job(server, data, epochs)))
            seconds.append(trained.seconds)
    return {
        "trained token": (seconds[1] - seconds[0], tokens[1] - tokens[0]),
        "training job's start": (seconds[0], 1),
    }


async def _run_job(server: Any, data: bytes, epochs: int) -> int:
    headers = {"Authorization": f"Bearer {server.api_key}"}
    settings = {"n_epochs": epochs, "batch_size": 8}
    async with aiohttp.ClientSession(server.url, headers=headers) as session:
        form = aiohttp.FormData({"purpose": "fine-tune"})
        form.add_field("file", io.BytesIO(data), filename="data.jsonl")
        async with session.post("/v1/files", data=form) as response:
            file = (await response.json())["id"]
        body = {
            "model": "tiny",
            "training_file": file,
            "seed": 1,
            "method": {"type": "supervised", "supervised": {"hyperparameters": settings}},
        }
        async with session.post("/v1/fine_tuning/jobs", json=body) as response:
            job = await response.json()
        while job["status"] not in ("succeeded", "failed", "cancelled"):
            await asyncio.sleep(0.2)
            async with session.get(f"/v1/fine_tuning/jobs/{job['id']}") as response:
                job = await response.json()
    if job["status"] != "succeeded":
        raise RuntimeError(f"the job {job['status']}: {job['error']}")
    return int(job["trained_tokens"])


def tinker(place: Path) -> Figures:
    """Take steps by Tinker's API: gradients of eight texts of 64 tokens, and an optimizer step."""
    from nip_lm_server.testing import serve_double
    from nip_tinker.datums import Gradient, make_probe
    from nip_tinker.wire import TinkerClient, json_send

    gradient = Gradient("cross_entropy", {}, [*make_probe(tuple(range(5, 69))).datums] * 8)
    adam = {"learning_rate": 1e-3, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.0}

    async def step(url: str, key: str) -> float:
        client = TinkerClient(url, key)
        session = await client.create_session({})
        shape = {"rank": 16, "train_unembed": False, "train_mlp": True, "train_attn": True}
        body = {
            "session_id": session,
            "model_seq_id": 0,
            "base_model": "tiny",
            "lora_config": shape,
        }
        created = await client.submit(json_send("create_model", {**body, "type": "create_model"}))
        model = str((await client.fetch_json(created))["model_id"])
        for number in range(34):
            if number == 4:
                began_s = count_cpu_s()
            first = await client.submit(gradient.send(model, 2 * number + 1))
            body = {"model_id": model, "seq_id": 2 * number + 2, "adam_params": adam}
            second = await client.submit(json_send("optim_step", {**body, "type": "optim_step"}))
            await client.fetch_output(first)
            await client.fetch_json(second)
        await client.aclose()
        return count_cpu_s() - began_s

    with serve_double(place, ("tiny",), has_weights=True) as server:
        return {"Tinker step of 512 tokens": (asyncio.run(step(server.url, server.api_key)), 30)}


def run(place: Path) -> Figures:
    """Train by the command with scripted answers, Prefect's server included, and list runs."""
    seconds = {}
    for iterations in (1, 3):
        settings = {
            "rl.num_iterations": iterations,
            "rl.rollouts_per_iteration": 20,
            "dataset_options.max_test_size": 10,
            "run_name": f"bar-{iterations}",
        }
        given = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
        with clock() as trained:
            _nip(place, "train", "deterministic", "--progress", "none", *given)
        seconds[iterations] = trained.seconds
    with clock() as listed:
        for _ in range(3):
            _nip(place, "ls")
    with clock() as helped:
        for _ in range(3):
            _nip(place, "--help")
    return {
        "iteration of tasks": ((seconds[3] - seconds[1]) / 2, 1),
        "start of nip train": (seconds[1] - (seconds[3] - seconds[1]) / 2, 1),
        "nip ls": (listed.seconds, 3),
        "nip --help": (helped.seconds, 3),
    }


def _nip(place: Path, *arguments: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "nip_cli", *arguments], cwd=place, capture_output=True, text=True
    )
    if done.returncode:
        raise RuntimeError(f"nip {arguments[0]}: {(done.stderr or done.stdout)[-500:]}")


PIECES: Mapping[str, Callable[[Path], Figures]] = {
    piece.__name__: piece for piece in (generate, call, play, train, tinker, run)
}


def main() -> None:
    """Do the pieces that are named."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    for name in sys.argv[1:]:
        with tempfile.TemporaryDirectory() as folder:
            try:
                figures: Any = PIECES[name](Path(folder))
            except Exception as error:
                figures = {"error": f"{type(error).__name__}: {error}"[:500]}
        print(json.dumps({name: figures}), flush=True)


if __name__ == "__main__":
    main()
