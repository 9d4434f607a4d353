"""Chats in flight, through nip and directly: tokens per second, seconds to the first byte.

`benchmarks/pass_through.py` measures, over the largest shape: with the base model, and with an
adapter. The embedded engine has no address of its own and is asked through nip alone.
"""

import argparse
import asyncio
import time
from functools import partial
from statistics import median
from typing import Any

from pass_through import compare, run

from gpu_pieces.jobs import small_rows
from gpu_pieces.load import body_of
from gpu_pieces.results import Piece, Row
from gpu_pieces.serving import Served, engine_names
from gpu_pieces.sizes import Session


def adapter_of(session: Session, served: Served) -> Row:
    """Train a small adapter; its name, and what a job of no length takes."""
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
    body = body_of(model, "Is it right?", sizes.chat_tokens)
    rounds = []
    for _ in range(sizes.chat_rounds):
        rounds.append(asyncio.run(run(served.through, body, in_flight, options.requests)))
    speed: dict[str, Any] = {
        f"median_{name}": median(figures[name] for figures in rounds) for name in rounds[0]
    }
    return {"through_nip": speed, "rounds": rounds}


def measure(session: Session, piece: Piece) -> None:
    """Every number in flight, with base and adapter."""
    engines, vllm = engine_names(session)
    shape = session.sizes.shapes[-1]
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
