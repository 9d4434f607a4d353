"""Do an engine's answers depend on what it computes beside them, and what does it cost that not?

    python benchmarks/same_answers.py [--model tiny-bags ...] [--conversations 150] [--turns 2]
        [--max-tokens 24] [--rounds 3] [--out FILE]

Seeded conversations with a model and two random adapters of it are held in several ways, each with
an engine of its own, in float32 and in float64:

    alone, nothing kept    one request at a time; no beginning of a prompt is kept
    alone                  one at a time, with what is kept
    64 at once             one thread
    64 at once, 2 threads
    7 at once, last first  in another order

Counted are the answers of which anything differs from the first way's: tokens, or a bit of the
log-probability of a token or of the three likeliest in its place. The seconds are those of all
answers, the median of the rounds; both precisions take turns. Not covered: models that are not
built like Llama, and a GPU.
"""

import argparse
import asyncio
import json
import shlex
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from embedded_engine import content, make_adapter
from measured_commit import describe_commit, describe_machine

from nip_core.models import resolve_model
from nip_lm_server.engines.base import GenerationRequest
from nip_lm_server.engines.embedded.embedded_engine import EmbeddedEngine

DTYPES = ("float32", "float64")


@dataclass(frozen=True)
class Way:
    """How conversations are held."""

    name: str
    at_once: int
    threads: int = 1
    cache_bytes: int | None = None
    backwards: bool = False


WAYS = (
    Way("alone, nothing kept", 1, cache_bytes=0),
    Way("alone", 1),
    Way("64 at once", 64),
    Way("64 at once, 2 threads", 64, threads=2),
    Way("7 at once, last first", 7, backwards=True),
)
Answers = dict[tuple[int, int], tuple[Any, ...]]
"""(conversation, turn) -> tokens, and all else of the answer"""


async def converse(
    engine: EmbeddedEngine, name: str, number: int, options: argparse.Namespace, answers: Answers
) -> None:
    """Hold one conversation; its prompts have the answers so far."""
    messages: list[dict[str, Any]] = []
    for turn in range(options.turns):
        words = content(number * options.turns + turn, 3 + 5 * (number % 7))
        messages.append({"role": "user", "content": f"{number} {words}"})
        request = GenerationRequest(
            name,
            tuple(messages),
            max_tokens=options.max_tokens,
            temperature=0.9,
            seed=number * options.turns + turn,
            logprobs=True,
            top_logprobs=3,
            return_token_ids=True,
        )
        choice = (await engine.generate(request)).choices[0]
        answers[number, turn] = (choice.token_ids, choice.logprobs, str(choice.top_logprobs))
        messages.append({"role": "assistant", "content": choice.text})


async def hold(
    model: str, adapters: Sequence[Path], dtype: str, way: Way, options: argparse.Namespace
) -> tuple[Answers, float]:
    """Hold all conversations one way; their answers and the seconds they took."""
    engine = EmbeddedEngine(
        model, "base", dtype=dtype, threads=way.threads, cache_bytes=way.cache_bytes
    )
    await engine.start()
    for adapter in adapters:
        await engine.load_adapter(adapter.name, adapter)
    names = ["base", *(adapter.name for adapter in adapters)]
    answers: Answers = {}
    waiting = [*range(options.conversations)]
    if not way.backwards:
        waiting.reverse()  # taken from the end

    async def work() -> None:
        while waiting:
            number = waiting.pop()
            await converse(engine, names[number % len(names)], number, options, answers)

    began = time.perf_counter()
    await asyncio.gather(*(work() for _ in range(way.at_once)))
    took_s = time.perf_counter() - began
    await engine.stop()
    return answers, took_s


def measure(model: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Hold the conversations with a model in all ways; a row for each."""
    directory = resolve_model(model)
    seconds: dict[tuple[str, Way], list[float]] = {}
    held: dict[tuple[str, Way], Answers] = {}
    with tempfile.TemporaryDirectory() as place:
        adapters = [make_adapter(directory, Path(place) / f"a{i}", seed=i) for i in range(2)]
        for _ in range(options.rounds):
            for way in WAYS:
                for dtype in DTYPES:
                    held[dtype, way], took_s = asyncio.run(
                        hold(directory, adapters, dtype, way, options)
                    )
                    seconds.setdefault((dtype, way), []).append(took_s)
    rows = []
    for (dtype, way), answers in held.items():
        first = held[dtype, WAYS[0]]
        rows.append(
            {
                "model": model,
                "dtype": dtype,
                "way": way.name,
                "answers": len(answers),
                "tokens": sum(len(answer[0]) for answer in answers.values()),
                "differing": sum(answer != first[place] for place, answer in answers.items()),
                "differing_tokens": sum(
                    answer[0] != first[place][0] for place, answer in answers.items()
                ),
                "seconds": round(statistics.median(seconds[dtype, way]), 2),
            }
        )
        print(json.dumps(rows[-1]), flush=True)
    return rows


def main() -> int:
    """Measure, print, and write the figures."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", nargs="+", default=["tiny-bags"])
    parser.add_argument("--conversations", type=int, default=150)
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--max-tokens", type=int, default=24)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    rows = [row for model in options.model for row in measure(model, options)]
    if options.out:
        record = {
            "command": shlex.join(["python", *sys.argv]),
            "commit": describe_commit(),
            "machine": describe_machine(),
            "rows": rows,
        }
        options.out.write_text(json.dumps(record, indent=1) + "\n")
    return int(any(row["differing"] for row in rows if row["dtype"] == "float64"))


if __name__ == "__main__":
    raise SystemExit(main())
