"""What passing chat completions through our server costs, against asking vLLM directly.

    python benchmarks/pass_through.py [--in-flight 64] [--max-tokens 64] [--requests 192]
        [--rounds 9] [--out docs/results/pass_through.json]
        [--server URL --server-key-env NAME --direct URL --direct-key-env NAME --model NAME]

Starts a server with the engine vllm (NIP_VLLM, or .vllm/bin/vllm) on the bundled tiny model, unless
both URLs are given. A closed loop keeps --in-flight requests running, each for exactly
--max-tokens tokens of the base model. One round asks both places, in alternating order, first not
streamed, then streamed; the figures are medians over the rounds, and the ratio is the median of
the rounds' ratios. Rounds are short, so that what else the machine does falls on both. The client
is the same for both and shares the processors with them.

With its own server it also measures the start, the processor time that the server's process takes
for a request that isn't streamed and for a token that is (which a busy machine changes little), the
same of vLLM's process that answers HTTP, and a fine-tune: from the commit of the adapter to
`succeeded` (loaded and proved), and from there to its first answer. On few processors vLLM has its
engine in that process; with VLLM_ENABLE_V1_MULTIPROCESSING=1, as on a GPU, it has not.
"""

import argparse
import asyncio
import json
import os
import platform
import shlex
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import aiohttp
import psutil
from measured_commit import describe_commit

ROOT = Path(__file__).parents[1]
PROMPT = "Does this function return the sum of a list? def f(xs): return sum(xs[:-1])"
REQUIRED_RATIO = 0.9
"""Of the direct throughput, not streamed and streamed."""


@dataclass(frozen=True)
class Place:
    """Something that answers chat completions."""

    name: str
    url: str
    key: str


async def one(
    session: aiohttp.ClientSession, place: Place, body: dict[str, Any], number: int
) -> tuple[int, float]:
    """(generated tokens, seconds to the first byte of the answer)."""
    began = time.perf_counter()
    sent = {**body, "seed": number}
    async with session.post(
        place.url + "/v1/chat/completions",
        json=sent,
        headers={"Authorization": f"Bearer {place.key}"},
    ) as response:
        if response.status != 200:
            raise RuntimeError(f"{place.name}: {response.status} {await response.text()}")
        if not body.get("stream"):
            answer = json.loads(await response.read())
            return answer["usage"]["completion_tokens"], time.perf_counter() - began
        first, usage = 0.0, None
        async for line in response.content:
            first = first or time.perf_counter() - began
            if b'"usage":{' in line:
                usage = line
        if usage is None:
            raise RuntimeError(f"{place.name}: the stream had no usage")
        return json.loads(usage[5:])["usage"]["completion_tokens"], first


async def run(place: Place, body: dict[str, Any], in_flight: int, requests: int) -> dict[str, Any]:
    """One closed loop: tokens per second and median seconds to the first byte."""
    connector = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(total=600)
    numbers = iter(range(requests))
    results: list[tuple[int, float]] = []
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:

        async def worker() -> None:
            for number in numbers:
                results.append(await one(session, place, body, number))

        began = time.perf_counter()
        await asyncio.gather(*(worker() for _ in range(in_flight)))
        seconds = time.perf_counter() - began
    tokens = sum(count for count, _ in results)
    expected = requests * body["max_tokens"]
    if tokens != expected:
        raise RuntimeError(f"{place.name}: {tokens} tokens, expected {expected}")
    return {
        "tokens_per_s": round(tokens / seconds, 1),
        "first_byte_s": round(median(first for _, first in results), 4),
    }


async def compare(
    places: list[Place],
    model: str,
    options: argparse.Namespace,
    processes: tuple[psutil.Process | None, ...] = (None, None),
) -> dict[str, dict[str, Any]]:
    """Both places, not streamed and streamed, interleaved round by round.

    `processes` are those behind the places; their processor time is in the figures.
    """
    bodies: dict[str, dict[str, Any]] = {}
    for name, stream in (("not_streamed", False), ("streamed", True)):
        bodies[name] = {
            "model": model,
            "messages": [{"role": "user", "content": PROMPT}],
            "max_tokens": options.max_tokens,
            "ignore_eos": True,
            "temperature": 1.0,
        }
        if stream:
            bodies[name] |= {"stream": True, "stream_options": {"include_usage": True}}
    rounds: dict[str, dict[str, list[dict[str, Any]]]] = {
        name: {place.name: [] for place in places} for name in bodies
    }
    for place in places:  # not counted: connections, compiled kernels
        await run(place, bodies["not_streamed"], options.in_flight, options.in_flight)
    for number in range(options.rounds):
        for name, body in bodies.items():
            for place in places if number % 2 == 0 else reversed(places):
                process = processes[places.index(place)]
                before = processor_s(process)
                figures = await run(place, body, options.in_flight, options.requests)
                if process is not None:
                    used = processor_s(process) - before
                    pieces = options.requests * (options.max_tokens if body.get("stream") else 1)
                    figures["server_us"] = round(used / pieces * 1e6, 1)
                rounds[name][place.name].append(figures)
                print(f"round {number + 1} {name} {place.name}: {figures}", flush=True)
    direct, through = places[0].name, places[1].name
    return {
        name: {
            "rounds": of,
            "median_tokens_per_s": {
                place: median(figures["tokens_per_s"] for figures in of[place]) for place in of
            },
            "median_first_byte_s": {
                place: median(figures["first_byte_s"] for figures in of[place]) for place in of
            },
            **(
                {}
                if None in processes
                else {
                    "median_server_us": median(f["server_us"] for f in of[through]),
                    "median_vllm_us": median(f["server_us"] for f in of[direct]),
                }
            ),
            "ratio": round(
                median(
                    ours["tokens_per_s"] / own["tokens_per_s"]
                    for own, ours in zip(of[direct], of[through], strict=True)
                ),
                3,
            ),
        }
        for name, of in rounds.items()
    }


def processor_s(process: psutil.Process | None) -> float:
    """Seconds of processor time that a process has taken, 0 for none."""
    times = process.cpu_times() if process is not None else None
    return 0.0 if times is None else times.user + times.system


async def fine_tune(place: Place, model: str) -> dict[str, Any]:
    """Train a small adapter and time what comes after the training."""
    from nip_base import formats

    question = [{"role": "user", "content": PROMPT}]
    rows = [
        {"messages": [*question, {"role": "assistant", "content": "reject"}]} for _ in range(10)
    ]
    headers = {"Authorization": f"Bearer {place.key}"}
    async with aiohttp.ClientSession(headers=headers) as session:
        form = aiohttp.FormData()
        form.add_field("purpose", "fine-tune")
        form.add_field("file", formats.to_jsonl(rows), filename="train.jsonl")
        async with session.post(place.url + "/v1/files", data=form) as response:
            file = (await response.json())["id"]
        body = {"model": model, "training_file": file, "hyperparameters": {"n_epochs": 5}}
        async with session.post(place.url + "/v1/fine_tuning/jobs", json=body) as response:
            job = await response.json()
        deadline = time.monotonic() + 300
        url = f"{place.url}/v1/fine_tuning/jobs/{job['id']}"
        while job["status"] not in ("succeeded", "failed", "cancelled"):
            if time.monotonic() > deadline:
                raise RuntimeError(f"the job is {job['status']} after 300 s")
            await asyncio.sleep(0.005)
            async with session.get(url) as response:
                job = await response.json()
        succeeded = time.time()
        if job["status"] != "succeeded":
            raise RuntimeError(f"the job failed: {job['error']}")
        one_token = {"model": job["fine_tuned_model"], "messages": question, "max_tokens": 1}
        await one(session, place, one_token, 0)
        answered = time.time()
        async with session.get(f"{place.url}/v1/models/{job['fine_tuned_model']}") as response:
            digest = (await response.json())["nip"]["digest"]
    return {"succeeded": succeeded, "answered": answered, "digest": digest}


async def own_server(options: argparse.Namespace, state_dir: Path) -> dict[str, Any]:
    """Start a server, compare, fine-tune, stop."""
    from nip_base.spec import ServerSpec
    from nip_core.models import BUNDLED
    from nip_lm_server import launch as owner

    vllm = os.environ.get("NIP_VLLM") or str(ROOT / ".vllm" / "bin" / "vllm")
    spec = ServerSpec(
        "vllm",
        str(BUNDLED["tiny"]),
        served_model_name="tiny",
        options={"executable": vllm, "max_num_seqs": 2 * options.in_flight},
    )
    began = time.perf_counter()
    handle = owner.start_or_attach(spec, state_dir, timeout_s=600)
    start_s = time.perf_counter() - began
    try:
        headers = {"Authorization": f"Bearer {handle.api_key}"}
        async with aiohttp.ClientSession(headers=headers) as session:
            async with session.get(handle.url + "/nip/engines/tiny/address") as response:
                address = await response.json()
            async with session.get(handle.url + "/nip/status") as response:
                engine = (await response.json())["engine"]
        direct = Place("direct", address["base_url"].removesuffix("/v1"), address["api_key"])
        through = Place("through_nip", handle.url, handle.api_key)
        processes = (psutil.Process(engine["pid"]), psutil.Process(handle.pid))
        results: dict[str, Any] = dict(await compare([direct, through], "tiny", options, processes))
        tuned = await fine_tune(through, "tiny")
        manifest = state_dir / "models" / tuned["digest"] / "manifest.json"
        committed = manifest.stat().st_mtime
    finally:
        owner.stop(handle)
    return {
        **results,
        "start_s": round(start_s, 1),
        "adapter": {
            "committed_to_succeeded_s": round(tuned["succeeded"] - committed, 3),
            "succeeded_to_first_answer_s": round(tuned["answered"] - tuned["succeeded"], 3),
            "committed_to_first_answer_s": round(tuned["answered"] - committed, 3),
        },
        "engine": {key: engine.get(key) for key in ("versions", "dtype", "device")},
    }


def main() -> None:
    """Measure, print, write; exit 1 if a ratio is too small."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--in-flight", type=int, default=64)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--requests", type=int, default=192)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--server")
    parser.add_argument("--server-key-env", default="NIP_API_KEY")
    parser.add_argument("--direct")
    parser.add_argument("--direct-key-env", default="VLLM_API_KEY")
    parser.add_argument("--model", default="tiny")
    options = parser.parse_args()
    if options.rounds < 3 or bool(options.server) != bool(options.direct):
        parser.error("--rounds must be at least 3, --server and --direct go together")
    load, began = os.getloadavg()[0], time.perf_counter()
    if options.server:
        places = [
            Place("direct", options.direct, os.environ[options.direct_key_env]),
            Place("through_nip", options.server, os.environ[options.server_key_env]),
        ]
        results: dict[str, Any] = dict(asyncio.run(compare(places, options.model, options)))
    else:
        with tempfile.TemporaryDirectory() as directory:
            results = asyncio.run(own_server(options, Path(directory) / "state"))
    report = {
        "command": shlex.join(["python", "benchmarks/pass_through.py", *sys.argv[1:]]),
        "in_flight": options.in_flight,
        "max_tokens": options.max_tokens,
        "requests_per_round": options.requests,
        "commit": describe_commit(),
        "machine": {
            "system": f"{platform.system()} {platform.machine()}",
            "cores": os.cpu_count(),
            "load_average_before": round(load, 2),
            "load_average_after": round(os.getloadavg()[0], 2),
        },
        "took_s": round(time.perf_counter() - began, 1),
        **results,
        "required_ratio": REQUIRED_RATIO,
    }
    text = json.dumps(report, indent=2)
    print(text)
    if options.out:
        options.out.write_text(text + "\n")
    ratios = [report[name]["ratio"] for name in ("not_streamed", "streamed")]
    sys.exit(0 if min(ratios) >= REQUIRED_RATIO else 1)


if __name__ == "__main__":
    main()
