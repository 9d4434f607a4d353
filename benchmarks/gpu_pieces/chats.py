"""Chats in flight, through nip and directly: tokens per second, seconds to the first byte.

`benchmarks/pass_through.py` measures, over the largest shape: with the base model, and with an
adapter. The embedded engine has no address of its own and is asked through nip alone, as
`benchmarks/embedded_engine.py` asks it.
"""

import argparse
import asyncio
import time
from functools import partial
from statistics import median

import aiohttp
from embedded_engine import flight, http_ways
from pass_through import compare

from gpu_pieces.jobs import small_rows
from gpu_pieces.results import Piece, Row
from gpu_pieces.serving import Served, engine_names
from gpu_pieces.sizes import Session


def adapter_of(session: Session, served: Served) -> Row:
    """Train a small adapter; its name, and what a job of no length takes."""
    served.handle  # noqa: B018 (its start is told by itself)
    began = time.monotonic()
    job = served.wait(served.submit(small_rows(session, 1), 1, learning_rate=1e-3))
    name = job["fine_tuned_model"]
    return {
        "start_s": served.start_s,
        "name": name,
        "job_s": round(time.monotonic() - began, 2),
        "training": served.result(name),
    }


def chats(session: Session, served: Served, model: str, in_flight: int) -> Row:
    """One number of chats in flight."""
    sizes = session.sizes
    options = argparse.Namespace(
        in_flight=in_flight,
        requests=in_flight * sizes.requests_per_slot,
        max_tokens=sizes.chat_tokens,
        rounds=sizes.chat_rounds,
    )
    direct = served.direct
    if direct is not None:
        return asyncio.run(compare([direct, served.through], model, options))
    return asyncio.run(_through_nip(session, served, model, options))


async def _through_nip(
    session: Session, served: Served, model: str, options: argparse.Namespace
) -> Row:
    """The same for an engine in the server's process, whose answers may end by themselves."""
    options.words = session.sizes.prompt_tokens // 10
    headers = {"Authorization": f"Bearer {served.handle.api_key}"}
    connector = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(total=600)
    row: Row = {"not_streamed": [], "streamed": []}
    async with aiohttp.ClientSession(headers=headers, connector=connector, timeout=timeout) as http:
        ways = http_ways(http, served.handle, options)
        await flight(ways[0], [model], options)  # not counted
        for _ in range(options.rounds):
            for rounds, ask in zip(row.values(), ways, strict=True):
                rounds.append(await flight(ask, [model], options))
    speed = "generated_tokens_per_s"
    medians = {f"median_{name}": median(r[speed] for r in rounds) for name, rounds in row.items()}
    return {**medians, **row}


def measure(session: Session, piece: Piece) -> None:
    """Every number in flight, with base and adapter."""
    engines, vllm = engine_names(session)
    shape = session.largest
    for engine, reason in engines.items():
        cases = {
            f"{engine} {kind} {in_flight}": (kind, in_flight)
            for in_flight in session.sizes.in_flight
            for kind in ("base", "adapter")
        }
        small_job = f"{engine} a small job"
        if reason:
            piece.without(reason, small_job, *cases)
        state = session.scratch / "chats" / engine
        with Served(session, shape, engine, state, vllm) as served:
            trained = piece.row(small_job, partial(adapter_of, session, served))
            for name, (kind, in_flight) in cases.items():
                if kind == "adapter" and trained is None:
                    piece.without("there is no adapter", name)
                model = trained["name"] if trained and kind == "adapter" else "base"
                piece.row(name, partial(chats, session, served, model, in_flight))
    piece.finish()
