"""Generated tokens per second of the embedded engine, with a closed loop of requests in flight.

    python benchmarks/embedded_engine.py [--http] [--model PATH] [--in-flight 64]
        [--prompt-tokens 200] [--max-tokens 64] [--requests 256] [--turns 9] [--rounds 3]
        [--out FILE]

Without --model, the bundled tiny model; --model takes the directory of any other. Request i names
adapter i modulo three; its message has about --prompt-tokens tokens. The ways of asking are
measured one after the other in each round, and medians over the rounds are compared:

    base, whole            the base model alone, whole answers
    adapters, whole        three adapters in the same batch
    adapters, streamed     the same, each answer in pieces
    turns, whole           (--turns) conversations whose next prompt is the last one, its answer and
                           something new, after a system prompt that all share
    http, whole            (--http) a real server in a process of its own, plain aiohttp client
    http, streamed         (--http) the same with server-sent events

`prompt_tokens` are those asked for, computed and reused, in all rounds.

`cpu_ms_per_token` is the processor time of the benchmark's process: with the engine in it, or
the client's alone with --http. Unlike the speed it hardly depends on what else the machine does.

What is covered: the engine with its batching, and with --http everything that a client waits for.
The adapters are random ones saved by PEFT, with --http those of three real fine-tuning jobs.
What is not: long answers, large models, a GPU. The client runs on the same processors.
"""

import argparse
import asyncio
import itertools
import json
import os
import platform
import shlex
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import aiohttp
from measured_commit import describe_commit

from nip_base import formats
from nip_base.spec import ServerSpec
from nip_core.models import BUNDLED
from nip_lm_server import launch as owner
from nip_lm_server.chats import chat_template
from nip_lm_server.engines.base import GenerationRequest
from nip_lm_server.engines.embedded.embedded_engine import EmbeddedEngine

ADAPTERS = 3
JOB_DEADLINE_S = 300.0
START_DEADLINE_S = 120.0
FIGURES = (
    "generated_tokens_per_s", "requests_per_s", "first_text_median_s", "cpu_ms_per_token"
)  # fmt: skip
WORDS = (
    "the",
    "loop",
    "adds",
    "each",
    "number",
    "twice",
    "and",
    "returns",
    "before",
    "it",
    "is",
    "seen",
)


@dataclass
class Answer:
    """One answered request."""

    tokens: int
    first_s: float  # from asking to the first text


Ask = Callable[[str, int], Awaitable[Answer]]


def content(number: int, words: int) -> str:
    """A user message that no other request has."""
    return " ".join(WORDS[(number * 7 + i * (1 + number % 5)) % len(WORDS)] for i in range(words))


def words_for(model: str, tokens: int) -> int:
    """Count how many words of `content` have about so many tokens."""
    tokenizer = chat_template.load_tokenizer(model)
    sample = [len(chat_template.encode(tokenizer, content(i, 50))) for i in range(10)]
    return max(1, round(tokens * 50 / statistics.mean(sample)))


def make_adapter(base: str, directory: Path, seed: int) -> Path:
    """A random LoRA adapter of rank 8 on all linear layers, saved by PEFT."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    torch.manual_seed(seed)
    model = get_peft_model(
        AutoModelForCausalLM.from_pretrained(base),
        LoraConfig(r=8, target_modules="all-linear"),
    )
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.01)
    model.save_pretrained(directory)
    return directory


async def flight(ask: Ask, names: Sequence[str], options: argparse.Namespace) -> dict[str, float]:
    """Keep `in_flight` requests running until all are answered."""

    async def worker(numbers: range) -> list[Answer]:
        return [await ask(names[number % len(names)], number) for number in numbers]

    began, cpu_began_s = time.perf_counter(), time.process_time()
    shares = [
        range(i, options.requests, options.in_flight)
        for i in range(min(options.in_flight, options.requests))
    ]
    answers = [a for share in await asyncio.gather(*map(worker, shares)) for a in share]
    wall_s, cpu_s = time.perf_counter() - began, time.process_time() - cpu_began_s
    tokens = sum(a.tokens for a in answers)
    return {
        "generated_tokens_per_s": round(tokens / wall_s, 1),
        "requests_per_s": round(len(answers) / wall_s, 2),
        "generated_tokens": tokens,
        "cpu_ms_per_token": round(1e3 * cpu_s / tokens, 4),
        "first_text_median_s": round(statistics.median(a.first_s for a in answers), 4),
    }


def engine_ways(engine: EmbeddedEngine, options: argparse.Namespace) -> tuple[Ask, Ask]:
    """Asking the engine for whole answers, and for streamed ones."""

    def request(model: str, number: int) -> GenerationRequest:
        messages = ({"role": "user", "content": content(number, options.words)},)
        return GenerationRequest(model, messages, max_tokens=options.max_tokens, seed=number)

    async def whole(model: str, number: int) -> Answer:
        began = time.perf_counter()
        result = await engine.generate(request(model, number))
        return Answer(result.choices[0].completion_tokens, time.perf_counter() - began)

    async def streamed(model: str, number: int) -> Answer:
        began, first_s, tokens = time.perf_counter(), 0.0, 0
        async for delta in engine.stream(request(model, number)):
            first_s = first_s or time.perf_counter() - began
            tokens += delta.completion_tokens
        return Answer(tokens, first_s)

    return whole, streamed


def turns_way(engine: EmbeddedEngine, options: argparse.Namespace) -> Ask:
    """Asking the engine for the answers of a whole conversation, one after the other."""
    system = {"role": "system", "content": content(0, options.words)}
    rounds = itertools.count()  # no conversation is one that an earlier round had

    async def conversation(model: str, number: int) -> Answer:
        began, tokens, first_s = time.perf_counter(), 0, 0.0
        messages: list[dict[str, Any]] = [system]
        words = max(1, options.words // 10)
        for turn in range(options.turns):
            asked = f"{next(rounds)} {content(number * options.turns + turn, words)}"
            messages.append({"role": "user", "content": asked})
            result = await engine.generate(
                GenerationRequest(model, tuple(messages), max_tokens=options.max_tokens, seed=turn)
            )
            first_s = first_s or time.perf_counter() - began
            tokens += result.choices[0].completion_tokens
            messages.append({"role": "assistant", "content": result.choices[0].text})
        return Answer(tokens, first_s)

    return conversation


def http_ways(
    session: aiohttp.ClientSession, handle: owner.ServerHandle, options: argparse.Namespace
) -> tuple[Ask, Ask]:
    """Asking a server for whole answers, and for streamed ones."""
    url = handle.url + "/v1/chat/completions"

    def body(model: str, number: int, **more: Any) -> dict[str, Any]:
        messages = [{"role": "user", "content": content(number, options.words)}]
        asked = {"model": model, "messages": messages, "seed": number}
        return {**asked, "max_tokens": options.max_tokens, **more}

    async def whole(model: str, number: int) -> Answer:
        began = time.perf_counter()
        async with session.post(url, json=body(model, number)) as response:
            answer = await response.json()
        response.raise_for_status()
        return Answer(answer["usage"]["completion_tokens"], time.perf_counter() - began)

    async def streamed(model: str, number: int) -> Answer:
        began, first_s, tokens = time.perf_counter(), 0.0, 0
        more = {"stream": True, "stream_options": {"include_usage": True}}
        async with session.post(url, json=body(model, number, **more)) as response:
            response.raise_for_status()
            async for line in response.content:
                if not line.startswith(b"data: {"):
                    continue
                event = json.loads(line[6:])
                if any(choice["delta"].get("content") for choice in event["choices"]):
                    first_s = first_s or time.perf_counter() - began
                if event.get("usage"):
                    tokens = event["usage"]["completion_tokens"]
        if not tokens:
            raise RuntimeError(f"request {number}: the stream ended without usage")
        return Answer(tokens, first_s or time.perf_counter() - began)

    return whole, streamed


async def train_adapters(
    session: aiohttp.ClientSession, handle: owner.ServerHandle, base: str
) -> list[str]:
    """Three fine-tuning jobs of one step each; the names of their models."""
    names = []
    for number in range(ADAPTERS):
        rows = [
            {
                "messages": [
                    {"role": "user", "content": content(i, 12)},
                    {"role": "assistant", "content": content(i + number + 1, 6)},
                ]
            }
            for i in range(10)
        ]
        form = aiohttp.FormData({"purpose": "fine-tune"})
        form.add_field("file", formats.to_jsonl(rows), filename="train.jsonl")
        async with session.post(handle.url + "/v1/files", data=form) as response:
            response.raise_for_status()
            file_id = (await response.json())["id"]
        job: dict[str, Any] = {
            "model": base, "training_file": file_id, "seed": number,
            "hyperparameters": {"n_epochs": 1}, "nip": {"lora_rank": 8},
        }  # fmt: skip
        jobs = handle.url + "/v1/fine_tuning/jobs"
        async with session.post(jobs, json=job) as response:
            response.raise_for_status()
            job = await response.json()
        async with asyncio.timeout(JOB_DEADLINE_S):
            while job["status"] not in ("succeeded", "failed", "cancelled"):
                await asyncio.sleep(0.2)
                async with session.get(f"{jobs}/{job['id']}") as response:
                    job = await response.json()
        if job["status"] != "succeeded":
            raise RuntimeError(f"job {number}: {job['error']}")
        names.append(job["fine_tuned_model"])
    return names


async def measure(options: argparse.Namespace, scratch: Path) -> list[dict[str, Any]]:
    """All ways of asking, `rounds` times in turn."""
    base = Path(options.model)
    paths = {
        f"adapter-{i}": scratch / f"adapter-{i}" for i in range(0 if options.http else ADAPTERS)
    }
    for seed, path in enumerate(paths.values()):
        make_adapter(str(base), path, seed)
    async with AsyncExitStack() as stack:
        ways: dict[str, tuple[Ask, Sequence[str]]] = {}
        if options.http:
            spec = ServerSpec("embedded", str(base), options=_engine_options(options))
            state = scratch / "state"
            handle = await asyncio.to_thread(
                owner.start_or_attach, spec, state, timeout_s=START_DEADLINE_S
            )
            stack.callback(owner.stop, handle)
            session = await stack.enter_async_context(
                aiohttp.ClientSession(
                    headers={"Authorization": f"Bearer {handle.api_key}"},
                    connector=aiohttp.TCPConnector(limit=0),
                )
            )
            names = await train_adapters(session, handle, base.name)
            paths = {name: state / "models" / name.rpartition(":")[2] for name in names}
            whole, streamed = http_ways(session, handle, options)
            ways = {"http, whole": (whole, names), "http, streamed": (streamed, names)}
        engine = EmbeddedEngine(str(base), **_engine_options(options))
        await engine.start()
        stack.push_async_callback(engine.stop)
        for name, path in paths.items():
            await engine.load_adapter(name, path)
        whole, streamed = engine_ways(engine, options)
        ways = {
            "base, whole": (whole, [engine.base_model]),
            "adapters, whole": (whole, list(paths)),
            "adapters, streamed": (streamed, list(paths)),
            **(
                {"turns, whole": (turns_way(engine, options), list(paths))} if options.turns else {}
            ),
            **ways,
        }
        rows = []
        for number in range(-1, options.rounds):
            for way, (ask, models) in ways.items():
                before = prompt_tokens(engine)
                row = await flight(ask, models, options)
                counted = {key: value - before[key] for key, value in prompt_tokens(engine).items()}
                if number >= 0:  # the first round warms up
                    rows.append({"way": way, "round": number, **row, "prompt_tokens": counted})
        return rows


def prompt_tokens(engine: EmbeddedEngine) -> dict[str, int]:
    """The engine's counters of prompts: tokens asked for, computed and reused."""
    status = engine.status()
    return {kind: status[f"prompt_tokens_{kind}"] for kind in ("asked", "done", "reused")}


def _engine_options(options: argparse.Namespace) -> dict[str, Any]:
    threads = {} if options.threads is None else {"threads": options.threads}
    return {"max_batch": options.in_flight, **threads}


def summarise(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Medians over the rounds, and the speed next to whole answers of the engine."""
    medians = []
    for way in dict.fromkeys(row["way"] for row in rows):
        mine = [row for row in rows if row["way"] == way]
        row = {key: statistics.median(row[key] for row in mine) for key in FIGURES}
        medians.append({"way": way, **{key: round(value, 4) for key, value in row.items()}})
    whole = next(row for row in medians if row["way"] == "adapters, whole")
    for row in medians:
        share = row["generated_tokens_per_s"] / whole["generated_tokens_per_s"]
        row["share_of_adapters_whole"] = round(share, 3)
    return medians


def main() -> None:
    """Parse the command line, measure, print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--http", action="store_true")
    parser.add_argument("--model", default=str(BUNDLED["tiny"]))
    parser.add_argument("--in-flight", type=int, default=64)
    parser.add_argument("--prompt-tokens", type=int, default=200)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--requests", type=int, default=256)
    parser.add_argument("--turns", type=int, default=0, help="of a conversation; 0: none")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, help="default: the engine's own")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    options.words = words_for(options.model, options.prompt_tokens)
    load_before, started = os.getloadavg()[0], time.monotonic()
    with tempfile.TemporaryDirectory() as scratch:
        rows = asyncio.run(measure(options, Path(scratch)))
    settings = {
        key: value for key, value in vars(options).items() if key not in ("out", "model", "words")
    } | {"model": Path(options.model).name, "adapters": ADAPTERS}
    result = {
        "command": shlex.join(["python", "benchmarks/embedded_engine.py", *sys.argv[1:]]),
        "settings": settings,
        "took_s": round(time.monotonic() - started, 1),
        "commit": describe_commit(),
        "machine": {
            "system": f"{platform.system()} {platform.machine()}",
            "cores": os.cpu_count(),
            "load_average_before": round(load_before, 2),
        },
        "versions": {
            "python": platform.python_version(),
            **{name: version(name) for name in ("nip-loop", "torch", "transformers", "aiohttp")},
        },
        "medians": summarise(rows),
        "measurements": rows,
    }
    text = json.dumps(result, indent=2) + "\n"
    if options.out is not None:
        options.out.write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
