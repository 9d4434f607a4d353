"""The pieces of the speed bar: each does one kind of work, and counts what that takes.

    python benchmarks/speed_pieces.py PIECE

`speed_bar.py` starts this with the code of one commit or another on the path, so it goes by
interfaces that both have. A piece is set up once; then each line of standard input asks for a
round, and gets a line of JSON: by figure the amount and the number of units it is for. Figures
whose names end with MB are memory; all others are processor seconds. What fails is an error in
their place.
"""

import asyncio
import contextlib
import gc
import io
import itertools
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import psutil

Figures = dict[str, tuple[float, float]]
"""By figure, processor seconds or megabytes, and units."""
Rounds = Iterator[Figures]
WORDS = "A prover says that the second step of four is right, since seven and five make twelve."
POLL_S = 0.05


def count_cpu_s() -> float:
    """Count the processor seconds of this process and all below it, those that ended included."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = time.process_time() + ended.ru_utime + ended.ru_stime
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            seconds += sum(process.cpu_times()[:4])
    return seconds


def find_processes(words: str = "") -> list[int]:
    """Find this process and those below it with these words in their commands."""
    found, this = [], psutil.Process()
    for process in (this, *this.children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):
            found += [process.pid] if words in " ".join(process.cmdline()) else []
    return found


def peak_mb(pids: list[int] | None = None) -> float:
    """The most memory that one of these has had; of this process and all below it by default."""
    peaks = [0.0]
    for pid in find_processes() if pids is None else pids:
        with contextlib.suppress(OSError):
            status = Path(f"/proc/{pid}/status").read_text()
            peaks += [int(kb) / 1000 for kb in re.findall(r"VmHWM:\s+(\d+)", status)]
    return max(peaks)


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


def trace_mb(work: Callable[[], Any]) -> float:
    """The most that was allocated at once while this works, by what Python traces, in megabytes."""
    gc.collect()
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1] / 1e6
    finally:
        tracemalloc.stop()


def generate(place: Path) -> Rounds:
    """Generate with the embedded engine, eight answers in flight; read long prompts."""
    from nip_lm_server.testing import serve_double

    with serve_double(place, ("tiny",), has_weights=True) as server:
        asyncio.run(ask_chats(server, make_chats(8, WORDS, 16), 8))  # everything is loaded
        for number in itertools.count():
            with clock() as generated:
                usage = asyncio.run(ask_chats(server, make_chats(16, WORDS, 96), 8))
            # A prompt that was read in an earlier round is not read again.
            unread = make_chats(16, f"Round {number}. " + 10 * WORDS, 1)
            with clock() as read:
                prompts = asyncio.run(ask_chats(server, unread, 8))
            yield {
                "generated token": (generated.seconds, sum(u["completion_tokens"] for u in usage)),
                "prompt token": (read.seconds, sum(u["prompt_tokens"] for u in prompts)),
                "server of tiny, MB": (peak_mb(), 1),
            }


def call(place: Path) -> Rounds:
    """Ask the scripted engine, 64 calls in flight."""
    from nip_lm_server.testing import serve_double

    with serve_double(place, ("scripted",)) as server:

        def ask_few() -> None:
            asyncio.run(ask_chats(server, make_chats(300, WORDS, 32, "scripted"), 64))

        asyncio.run(ask_chats(server, make_chats(256, WORDS, 32, "scripted"), 64))
        while True:
            with clock() as called:
                asyncio.run(ask_chats(server, make_chats(1500, WORDS, 32, "scripted"), 64))
            yield {
                "call through nip serve": (called.seconds, 1500),
                "300 calls, traced MB": (trace_mb(ask_few), 1),
            }


def play(place: Path) -> Rounds:
    """Play episodes with functions that answer at once; once more with allocations traced."""
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
    while True:
        with clock() as played:
            episodes = asyncio.run(play_game(game, models)).episodes
        traced_mb = trace_mb(lambda: asyncio.run(play_game(game, models, limit=100)))
        yield {
            "episode of debate": (played.seconds, episodes.num_rows),
            "100 episodes, traced MB": (traced_mb, 1),
        }


def train(place: Path) -> Rounds:
    """Train a LoRA adapter by a job: until its first steps, and from there on."""
    from nip_lm_server.testing import serve_double

    answer = {"role": "assistant", "content": WORDS}
    rows = [{"messages": [*chat["messages"], answer]} for chat in make_chats(64, WORDS, 1)]
    data = "".join(json.dumps(row) + "\n" for row in rows).encode()
    with serve_double(place, ("tiny",), has_weights=True) as server:
        seed = 0
        while True:
            seed += 1  # a job that is asked for again is not trained again
            yield asyncio.run(_run_job(server, data, seed))


async def _run_job(server: Any, data: bytes, seed: int) -> Figures:
    headers = {"Authorization": f"Bearer {server.api_key}"}
    settings = {"n_epochs": 4, "batch_size": 8}
    began_s, first_s, first_step, most_mb = count_cpu_s(), 0.0, 0, 0.0
    trainers: list[int] = []
    async with aiohttp.ClientSession(server.url, headers=headers) as session:
        form = aiohttp.FormData({"purpose": "fine-tune"})
        form.add_field("file", io.BytesIO(data), filename="data.jsonl")
        async with session.post("/v1/files", data=form) as response:
            file = (await response.json())["id"]
        body = {
            "model": "tiny",
            "training_file": file,
            "seed": seed,
            "method": {"type": "supervised", "supervised": {"hyperparameters": settings}},
        }
        async with session.post("/v1/fine_tuning/jobs", json=body) as response:
            job = await response.json()
        path = f"/v1/fine_tuning/jobs/{job['id']}"
        while job["status"] not in ("succeeded", "failed", "cancelled"):
            await asyncio.sleep(4 * POLL_S)
            async with session.get(path) as response:
                job = await response.json()
            if not first_step and (steps := await _list_steps(session, path)):
                first_step, first_s = max(steps), count_cpu_s()
                # This takes long on a busy machine, and is counted: once is enough.
                trainers = find_processes("nip_lm_server.training")
            most_mb = max(most_mb, peak_mb(trainers))
        if job["status"] != "succeeded":
            raise RuntimeError(f"the job {job['status']}: {job['error']}")
        last_step = max(await _list_steps(session, path))
    if last_step == first_step or not most_mb:
        raise RuntimeError(f"the job ended after step {last_step}, too soon to be looked at")
    tokens = int(job["trained_tokens"]) * (last_step - first_step) / last_step
    return {
        "trained token": (count_cpu_s() - first_s, tokens),
        "training job's start": (first_s - began_s, 1),
        "trainer, MB": (most_mb, 1),
    }


async def _list_steps(session: aiohttp.ClientSession, path: str) -> list[int]:
    """The newest steps of a job; empty before its first one."""
    async with session.get(f"{path}/events?limit=20") as response:
        events = (await response.json())["data"]
    return [int(event["data"]["step"]) for event in events if event["type"] == "metrics"]


def tinker(place: Path) -> Rounds:
    """Take steps by Tinker's API: gradients of eight texts of 64 tokens, and an optimizer step."""
    from nip_lm_server.testing import serve_double
    from nip_tinker.datums import Gradient, make_probe
    from nip_tinker.wire import TinkerClient, json_send

    gradient = Gradient("cross_entropy", {}, [*make_probe(tuple(range(5, 69))).datums] * 8)
    adam = {"learning_rate": 1e-3, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.0}

    async def steps(url: str, key: str) -> float:
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
        for number in range(10):
            if number == 2:
                began_s = count_cpu_s()
            first = await client.submit(gradient.send(model, 2 * number + 1))
            body = {"model_id": model, "seq_id": 2 * number + 2, "adam_params": adam}
            second = await client.submit(json_send("optim_step", {**body, "type": "optim_step"}))
            await client.fetch_output(first)
            await client.fetch_json(second)
        seconds = count_cpu_s() - began_s
        await client.aclose()
        return seconds

    with serve_double(place, ("tiny",), has_weights=True) as server:
        asyncio.run(steps(server.url, server.api_key))  # its trainer is started
        while True:
            seconds = asyncio.run(steps(server.url, server.api_key))
            yield {"Tinker step of 512 tokens": (seconds, 8), "Tinker, MB": (peak_mb(), 1)}


def run(place: Path) -> Rounds:
    """Train by the command with scripted answers, Prefect's server included, and list runs."""
    number = 0
    while True:
        number += 1
        marks, most_mb = _train_by_command(place, f"bar-{number}")
        with clock() as listed:
            for _ in range(2):
                _nip(place, "ls")
        with clock() as helped:
            for _ in range(2):
                _nip(place, "--help")
        yield {
            "start of nip train": (marks["iteration 0"] - marks["start"], 1),
            "iteration of tasks": (marks["iteration 3"] - marks["iteration 1"], 2),
            "nip train, MB": (most_mb, 1),
            "nip ls": (listed.seconds, 2),
            "nip --help": (helped.seconds, 2),
        }


def _train_by_command(place: Path, name: str) -> tuple[dict[str, float], float]:
    """Train a run; the processor seconds until each iteration began, and the most memory."""
    settings = {
        "rl.num_iterations": 4,
        "rl.rollouts_per_iteration": 20,
        "dataset_options.max_test_size": 10,
        "run_name": name,
    }
    given = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
    command = [sys.executable, "-u", "-m", "nip_cli", "train", "deterministic"]
    marks, most_mb, printed = {"start": count_cpu_s()}, 0.0, []
    with subprocess.Popen(
        [*command, "--progress", "lines", *given],
        cwd=place,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            printed.append(line)
            begun = re.search(r"(iteration \d+): playing test", line)
            if begun is not None:
                marks[begun[1]] = count_cpu_s()
                most_mb = max(most_mb, peak_mb(find_processes("nip_cli")))
    if process.returncode:
        raise RuntimeError(f"nip train: {''.join(printed)[-500:]}")
    return marks, most_mb


def _nip(place: Path, *arguments: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "nip_cli", *arguments], cwd=place, capture_output=True, text=True
    )
    if done.returncode:
        raise RuntimeError(f"nip {arguments[0]}: {(done.stderr or done.stdout)[-500:]}")


PIECES: Mapping[str, Callable[[Path], Rounds]] = {
    piece.__name__: piece for piece in (generate, call, play, train, tinker, run)
}


def main() -> None:
    """Do a piece, a round for each line that is read."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory() as folder:
        rounds = PIECES[sys.argv[1]](Path(folder))
        for _ in sys.stdin:
            try:
                figures: Any = next(rounds)
            except Exception as error:
                figures = {"error": f"{type(error).__name__}: {error}"[:500]}
            print(json.dumps(figures), flush=True)
        rounds.close()  # type: ignore[attr-defined]


if __name__ == "__main__":
    main()
