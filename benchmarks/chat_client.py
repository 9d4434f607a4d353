"""How much a chat completion costs the client: the `openai` client's two transports and nip's.

    python benchmarks/chat_client.py [--requests 1000] [--out docs/results/chat_client.json]

A stub server in a process of its own answers every chat completion after 200 ms. Each client runs
in a process of its own, one after the other, so that they do not disturb each other; the whole
turn is repeated and medians are reported. Levels are 64 and 1,000 calls in flight, always with
`--requests` calls.

What is covered: the client's own speed and processor time on one event loop, with each client's
default time-outs and no retries, so that every lost call counts as an error. What is not: TLS,
streaming, a real model, and the network.
"""

import argparse
import asyncio
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from importlib.metadata import version
from pathlib import Path
from typing import Any

from measured_commit import describe_commit

LATENCY_S = 0.2
LEVELS = (64, 1000)
CLIENTS = {
    "openai, default transport": "openai",
    "openai, aiohttp transport": "openai-aiohttp",
    "nip ChatClient": "nip",
}
BODY: dict[str, Any] = {
    "model": "stub",
    "messages": [
        {"role": "system", "content": "You check whether code does what is asked. " * 20},
        {"role": "user", "content": "Question: what does the loop do when the list is empty? " * 4},
    ],
    "max_tokens": 225,
    "seed": 1,
}
ANSWER_TEXT = "The loop is never entered and the function returns its start value. " * 8
CLIENT_DEADLINE_S = 300.0

Ask = Callable[[], Awaitable[str | None]]


async def serve() -> None:
    """Answer after LATENCY_S until standard input closes; print the address first."""
    from aiohttp import web

    async def complete(request: web.Request) -> web.Response:
        body = json.loads(await request.read())
        await asyncio.sleep(LATENCY_S)
        return web.json_response(
            {
                "id": "chatcmpl-stub",
                "object": "chat.completion",
                "created": 0,
                "model": body["model"],
                "choices": [
                    {
                        "index": 0,
                        "finish_reason": "stop",
                        "message": {"role": "assistant", "content": ANSWER_TEXT},
                    }
                ],
                "usage": {"prompt_tokens": 300, "completion_tokens": 100, "total_tokens": 400},
            }
        )

    app = web.Application()
    app.router.add_post("/v1/chat/completions", complete)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, backlog=4096).start()
    print(f"http://127.0.0.1:{runner.addresses[0][1]}/v1", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await runner.cleanup()


async def make_client(kind: str, url: str, in_flight: int, stack: AsyncExitStack) -> Ask:
    """A function that makes one call, over one pool that lives as long as `stack`."""
    if kind == "nip":
        from nip_core.rollouts.client.chat_client import ChatClient
        from nip_core.rollouts.client.completions import Endpoint

        chat = await stack.enter_async_context(
            ChatClient(concurrency=in_flight, timeout_s=120.0, retries=0)
        )
        endpoint = Endpoint(url, "key")

        async def ask_nip() -> str | None:
            return (await chat.complete(endpoint, BODY)).text

        return ask_nip

    import openai

    transport = openai.DefaultAioHttpClient() if kind == "openai-aiohttp" else None
    client = await stack.enter_async_context(
        openai.AsyncOpenAI(base_url=url, api_key="key", max_retries=0, http_client=transport)
    )

    async def ask_openai() -> str | None:
        answer = await client.chat.completions.create(**BODY)
        text: str | None = answer.choices[0].message.content
        return text

    return ask_openai


async def measure(kind: str, url: str, in_flight: int, requests: int) -> dict[str, Any]:
    """Make `requests` calls, at most `in_flight` at a time, with one client."""
    slots = asyncio.Semaphore(in_flight)
    errors: Counter[str] = Counter()
    async with AsyncExitStack() as stack:
        ask = await make_client(kind, url, in_flight, stack)
        await ask()  # imports and type adapters that are built on first use

        async def one() -> None:
            async with slots:
                try:
                    if await ask() != ANSWER_TEXT:
                        errors["wrong answer"] += 1
                except Exception as error:
                    errors[type(error).__name__] += 1

        before, started = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
        await asyncio.gather(*(one() for _ in range(requests)))
        wall_s = time.perf_counter() - started
        after = resource.getrusage(resource.RUSAGE_SELF)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    failed = sum(errors.values())
    return {
        "in_flight": in_flight,
        "requests": requests,
        "errors": failed,
        "error_kinds": dict(errors),
        "wall_s": round(wall_s, 3),
        "answers_per_s": round((requests - failed) / wall_s, 1),
        "client_cpu_ms_per_request": round(1000 * cpu_s / requests, 3),
    }


async def run_client(kind: str, url: str, requests: int) -> None:
    """The client process: every level with a client of its own; JSON on standard output."""
    results = [await measure(kind, url, in_flight, requests) for in_flight in LEVELS]
    print(json.dumps(results))


def why_not(kind: str) -> str | None:
    """Tell why a client can't be measured here, or None."""
    if kind == "openai-aiohttp":
        import openai

        try:
            openai.DefaultAioHttpClient()
        except RuntimeError as error:
            return str(error)
    return None


def compare(requests: int, repetitions: int) -> list[dict[str, Any]]:
    """All repetitions of all clients against one server."""
    me = [sys.executable, str(Path(__file__).resolve())]
    rows: list[dict[str, Any]] = []
    server = subprocess.Popen(
        [*me, "--role", "server"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert server.stdout is not None
        url = server.stdout.readline().strip()
        for repetition in range(repetitions):
            for name, kind in CLIENTS.items():
                reason = why_not(kind)
                if reason is not None:
                    print(f"{name}: left out ({reason})", file=sys.stderr)
                    continue
                arguments = ["--role", kind, "--url", url, "--requests", str(requests)]
                done = subprocess.run(
                    [*me, *arguments],
                    stdout=subprocess.PIPE,
                    text=True,
                    check=True,
                    timeout=CLIENT_DEADLINE_S,
                )
                for row in json.loads(done.stdout):
                    rows.append({"client": name, "repetition": repetition, **row})
                    print(f"{name}, {row['in_flight']} in flight: {row}", file=sys.stderr)
    finally:
        assert server.stdin is not None
        server.stdin.close()
        server.wait(timeout=30)
    return rows


def summarise(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Medians over the repetitions, by level and client, with nip's share of each."""
    summary: list[dict[str, Any]] = []
    for in_flight in LEVELS:
        level = []
        for name in CLIENTS:
            measured = [r for r in rows if r["client"] == name and r["in_flight"] == in_flight]
            if not measured:
                continue
            level.append(
                {
                    "client": name,
                    "in_flight": in_flight,
                    "answers_per_s": statistics.median(r["answers_per_s"] for r in measured),
                    "errors": statistics.median(r["errors"] for r in measured),
                    "client_cpu_ms_per_request": statistics.median(
                        r["client_cpu_ms_per_request"] for r in measured
                    ),
                }
            )
        nip = next(row for row in level if row["client"] == "nip ChatClient")
        for row in level:
            row["nip_speed_ratio"] = round(nip["answers_per_s"] / max(row["answers_per_s"], 0.1), 2)
            row["cpu_ratio_to_nip"] = round(
                row["client_cpu_ms_per_request"] / nip["client_cpu_ms_per_request"], 2
            )
        summary += level
    return summary


def show(summary: list[dict[str, Any]], requests: int) -> str:
    """The medians as a Markdown table."""
    lines = [
        "| in flight | client | answers/s | errors | client CPU ms/request "
        "| nip is faster by | CPU next to nip's |",
        "|---:|---|---:|---:|---:|---:|---:|",
    ]
    for row in summary:
        lines.append(
            f"| {row['in_flight']} | {row['client']} | {row['answers_per_s']:.0f} "
            f"| {row['errors']:g} of {requests} | {row['client_cpu_ms_per_request']:.2f} "
            f"| {row['nip_speed_ratio']:.1f}x | {row['cpu_ratio_to_nip']:.1f}x |"
        )
    return "\n".join(lines)


def allow_open_files() -> None:
    """Raise the limit of open files: a socket per call in flight is needed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 8192 if hard == resource.RLIM_INFINITY else min(hard, 8192)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=1000, help="calls per measurement")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--out", type=Path, help="write the JSON there")
    parser.add_argument("--role", choices=["server", *CLIENTS.values()], help=argparse.SUPPRESS)
    parser.add_argument("--url", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    allow_open_files()
    if arguments.role == "server":
        return asyncio.run(serve())
    if arguments.role is not None:
        return asyncio.run(run_client(arguments.role, arguments.url, arguments.requests))
    load_before, started = os.getloadavg()[0], time.monotonic()
    rows = compare(arguments.requests, arguments.repetitions)
    summary = summarise(rows)
    result = {
        "command": f"python benchmarks/chat_client.py --requests {arguments.requests} "
        f"--repetitions {arguments.repetitions}",
        "server_latency_s": LATENCY_S,
        "requests": arguments.requests,
        "repetitions": arguments.repetitions,
        "took_s": round(time.monotonic() - started, 1),
        "commit": describe_commit(),
        "machine": {
            "system": f"{platform.system()} {platform.machine()}",
            "cores": os.cpu_count(),
            "load_average_before": round(load_before, 2),
        },
        "versions": {
            "python": platform.python_version(),
            **{name: version(name) for name in ("nip-loop", "openai", "aiohttp")},
        },
        "medians": summary,
        "measurements": rows,
    }
    text = json.dumps(result, indent=2) + "\n"
    if arguments.out is not None:
        arguments.out.write_text(text, encoding="utf-8")
    print(show(summary, arguments.requests))
    print(text)
    return None


if __name__ == "__main__":
    main()
